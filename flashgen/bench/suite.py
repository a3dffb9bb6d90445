"""All that `flashgen.bench.comparisons` names, measured: a table with a ratio in each row.

    python -m flashgen.bench.suite [GROUP ...] [--rows FILE] [--resume] [--seconds S] [--jobs N]

A group's candidates are compared with each other, then timed in the same shuffled rounds. --jobs processes compile
a group side by side before it is timed. With --rows and --resume a group that was measured is not measured again.
Progress is on standard error; exit status 1 where a candidate does not compute what the generated kernel does.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from flashgen import processes
from flashgen.bench.candidates import FLASHGEN
from flashgen.bench.comparisons import ASKED_FOR, GROUPS, Comparison, Timed, timed_in
from flashgen.bench.passes import digests
from flashgen.bench.rows import Case, Row, read, write
from flashgen.bench.run import Prepared, machine, measure, prepare_case
from flashgen.bench.timing import cuda_timer
from flashgen.codegen import generate, load_module
from flashgen.ending import reporting
from flashgen.errors import UsageError
from flashgen.gallery import resolve
from flashgen.spec import load
from flashgen.spec.variant import Variant

HEADER = ("pass", "kernel", "TFLOP/s", "beside", "TFLOP/s", "ratio")

Found = Mapping[Timed, Row]


def on_the_gpu(cases: Sequence[Prepared], rounds: int) -> list[Row]:
    return measure(cases, rounds, cuda_timer())


@dataclass
class Suite:
    """Measures groups of what is timed together. Modules are generated below `out`; `known` are rows of earlier runs.

    `machine` are the GPU's name and the versions of torch and triton.
    """

    machine: tuple[str, str, str]
    out: Path
    known: Sequence[Row] = ()
    rounds: int = 15
    prepare: Callable[[Variant, ModuleType, Case, Sequence[str]], Prepared] = prepare_case
    measure: Callable[[Sequence[Prepared], int], list[Row]] = on_the_gpu
    modules: dict[str, tuple[Variant, ModuleType]] = field(default_factory=dict)

    def measured(self, group: Sequence[Timed]) -> Found | None:
        """The rows of a group from an earlier run, which stand together; None unless all are there."""
        keys = [(self._case(each), each.candidate) for each in group]
        known = [(row.case, row.candidate) for row in self.known]
        starts = (at for at in range(len(known)) if known[at : at + len(keys)] == keys)
        last = max(starts, default=None)
        return None if last is None else dict(zip(group, self.known[last:], strict=False))

    def run(self, group: Sequence[Timed]) -> Found:
        """The rows of a group, measured now."""
        by_case = {(row.case, row.candidate): row for row in self.measure(self.once(group), self.rounds)}
        keys = {each: (self._case(each), each.candidate) for each in group}
        return {each: by_case[key] for each, key in keys.items() if key in by_case}

    def once(self, group: Sequence[Timed]) -> list[Prepared]:
        """Run each candidate once, by which it is compiled, and compare it with the generated kernel."""
        candidates: dict[Case, list[str]] = {}
        for each in group:
            names = candidates.setdefault(self._case(each), [FLASHGEN])
            names += [each.candidate] if each.candidate not in names else []
        return [self.prepare(*self._module(case.variant), case, names) for case, names in candidates.items()]

    def _case(self, timed: Timed) -> Case:
        identity = self._module(timed.variant)[1].IDENTITY
        templates = digests(timed.step, identity.templates)
        return Case(timed.variant, identity.spec, templates, timed.problem, *self.machine, timed.step)

    def _module(self, name: str) -> tuple[Variant, ModuleType]:
        if name not in self.modules:
            variant = load(resolve(name))
            self.modules[name] = variant, load_module(generate(variant, self.out))
        return self.modules[name]


def compile_ahead(groups: Sequence[str], arguments: Sequence[str], jobs: int) -> None:
    """Run each variant of each group once, in processes of their own; what they compile stays in the caches."""
    command = processes.command("flashgen.bench.suite", "--once", *arguments)
    parts = {(name, each.variant): None for name in groups for each in timed_in(GROUPS[name])}

    def one(part: tuple[str, str]) -> None:
        name, variant = part
        done = subprocess.run(
            [*command, name, "--variant", variant], env=processes.environment(), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            # Whatever it is comes up again where it is measured.
            print(f"{name}, {variant}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}", file=sys.stderr)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, parts))


def table(groups: Mapping[str, Iterable[Comparison]], found: Mapping[str, Found]) -> list[str]:
    """The comparisons of each group that were measured, in Markdown. What several groups time is compared with what
    was timed in the same rounds."""
    lines: list[tuple[str, ...]] = [HEADER, ("---",) * len(HEADER)]
    for name, comparisons in groups.items():
        lines += [_cells(each, found[name]) for each in comparisons if {each.ours, each.other} <= found[name].keys()]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _cells(each: Comparison, found: Found) -> tuple[str, ...]:
    ours, other = found[each.ours].tflops, found[each.other].tflops
    speeds = ["" if speed is None else f"{speed:.0f}" for speed in (ours, other)]
    ratio = f"{ours / other:.2f}" if ours and other else ""
    return each.ours.step, str(each.ours), speeds[0], each.beside, speeds[1], ratio


@reporting
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table on standard output and all else on standard error."""
    parser = argparse.ArgumentParser(prog="python -m flashgen.bench.suite", description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "groups",
        nargs="*",
        metavar="GROUP",
        help=f"only these of {', '.join(GROUPS)}; without any all but {' and '.join(ASKED_FOR)}",
    )
    parser.add_argument("--variant", metavar="NAME", help="only what is timed of this variant")
    parser.add_argument("--once", action="store_true", help="run each candidate once and compare; time nothing")
    parser.add_argument("--out", type=Path, default=Path("generated"), metavar="DIR", help="folder of the modules")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append the results to this file, as JSON lines")
    parser.add_argument("--resume", action="store_true", help="skip the groups that the rows file already has")
    parser.add_argument("--seconds", type=float, metavar="S", help="start no further group after this time")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds of measurement")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that compile ahead, if more than 1")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.groups if name not in GROUPS]
    if unknown:
        raise UsageError(f"no group {unknown[0]!r}; expected one of {', '.join(GROUPS)}")
    if chosen.resume and chosen.rows is None:
        raise UsageError("--resume was given without --rows; expected the file to resume from")
    known = read(chosen.rows) if chosen.resume else []
    suite = Suite(machine(), chosen.out, known, chosen.rounds)
    usual = [name for name in GROUPS if name not in ASKED_FOR]
    groups = {name: _of(GROUPS[name], chosen.variant) for name in chosen.groups or usual}
    if chosen.once:
        return report_once(suite, groups)
    return report(suite, groups, chosen.rows, chosen.seconds, chosen.jobs)


def _of(comparisons: Sequence[Comparison], variant: str | None) -> list[Comparison]:
    return [each for each in comparisons if variant in (None, each.ours.variant)]


def report_once(suite: Suite, groups: Mapping[str, Sequence[Comparison]]) -> int:
    """Say which candidates did not run or agree; 1 where one computed something else."""
    wrong = False
    for comparisons in groups.values():
        for prepared in suite.once(timed_in(comparisons)):
            for name, note in prepared.notes.items():
                print(f"{prepared.case.variant}, {prepared.case.problem}, {name}: {note}", file=sys.stderr)
                wrong = wrong or name not in prepared.ready
    return int(wrong)


def report(
    suite: Suite, groups: Mapping[str, Sequence[Comparison]], rows_file: Path | None, seconds: float | None, jobs: int
) -> int:
    """Measure what is left of these groups and print the table of all; 1 where a candidate has no result."""
    start = time.monotonic()
    found = {name: suite.measured(timed_in(comparisons)) or {} for name, comparisons in groups.items()}
    left = [name for name, rows in found.items() if not rows]
    while left and (seconds is None or time.monotonic() - start < seconds):
        name = left.pop(0)
        if jobs > 1:
            compile_ahead([name], ["--out", str(suite.out)], jobs)
            print(f"{name} compiled after {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        found[name] = suite.run(timed_in(groups[name]))
        if rows_file is not None:
            write(rows_file, found[name].values())
        print(f"{name} after {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    print("\n".join(table(groups, found)))
    measured = [(timed, row) for rows in found.values() for timed, row in rows.items()]
    print(
        *dict.fromkeys(f"{row.candidate}, {timed}: {row.note}" for timed, row in measured if row.note),
        *(f"{name} was left when the time was up; --resume takes it up" for name in left),
        sep="\n",
        file=sys.stderr,
    )
    return int(any(row.tflops is None for _, row in measured))


if __name__ == "__main__":
    sys.exit(main())
