"""What each technique of the Hopper forward brings, as the table of docs/notes/hopper_forward.md.

    python -m flashgen.bench.ablation [VARIANT ...] [--rows FILE] [--resume] [--seconds S]

Each row compares a kernel with one that lacks a technique: by its config, its spec, its schedule, or by an edit of the
generated text. All kernels of a variant and size are proven, then timed in the same shuffled rounds, medians are
printed in TFLOP/s on visible pairs. Needs a Hopper GPU. An edited kernel that is wrong may hang it: run this under
`timeout`; with --rows and --resume it goes on where it stopped. Exit status 1 where a kernel is not right.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING

from flashgen.bench.agreement import disagreements
from flashgen.bench.edits import edited
from flashgen.bench.passes import FORWARD, Run
from flashgen.bench.rows import Case, Row
from flashgen.bench.run import Bench, machine, rows, time_all
from flashgen.bench.session import Measure, Session
from flashgen.bench.techniques import CAPABILITY, COMPARISONS, PLACES, PLANS, Comparison, Kernel, Place, kernels_of
from flashgen.bench.timing import cuda_timer, peak_bytes
from flashgen.codegen import load_module, render, write_package
from flashgen.codegen.pairwise import SIZES, make
from flashgen.ending import reporting
from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.gallery import resolve
from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.problem import Problem
from flashgen.problems.work import density
from flashgen.runtime import Config
from flashgen.runtime.lookup import current_device
from flashgen.spec import load
from flashgen.spec.variant import Variant

if TYPE_CHECKING:
    from torch import Tensor

HEADER = ("technique", "where", "without", "with", "gain")


@dataclass(frozen=True)
class Modules:
    """The modules of a variant, below a folder, each loaded once: torch registers operators module by module."""

    variant: Variant
    folder: Path
    rendered: dict[bool, Mapping[str, str]] = field(default_factory=dict)
    loaded: dict[tuple[bool, str], ModuleType] = field(default_factory=dict)

    def of(self, kernel: Kernel) -> ModuleType:
        """The module that the kernel is part of."""
        key = (kernel.approximate, kernel.edit)
        if key not in self.loaded:
            fast = kernel.approximate
            files = self.rendered.get(fast) or render(replace(self.variant, approximate=fast))
            self.rendered[fast] = files
            path = self.variant.module_in(self.folder / str(len(self.loaded)))
            write_package(path, edited(files, kernel.edit) if kernel.edit else files)
            self.loaded[key] = load_module(path)
        return self.loaded[key]


def proven(variant: Variant, module: ModuleType, config: Config, problem: Problem) -> str:
    """Empty where the kernel computes its formula at a small size, else what is wrong."""
    from flashgen.verify import Case as Proof
    from flashgen.verify import run_case

    small = replace(problem, batch=2, heads=4, kv_heads=2, q_len=1100, kv_len=1100)
    result = run_case(module, variant, Proof("ablation", small, config), "cuda")
    return "" if result.ok else f"not timed: {result}"


def run_of(module: ModuleType, call: Call, config: Config, plan: str) -> Run:
    """The forward pass as a call without arguments; the schedule is made before."""
    keywords = {**call.keywords, "config": config}
    if hasattr(module, "plan"):
        made = module.plan(call.q, call.k, call.v, **keywords)
        keywords["plan"] = PLANS[plan](made) if plan else made

    def run() -> tuple[Tensor, ...]:
        return (module.attention(call.q, call.k, call.v, **keywords),)

    return run


def measure_place(modules: Modules, kernels: Mapping[str, Kernel], case: Case, bench: Bench) -> list[Row]:
    """Each kernel by its label, the first as built: proven alone, compared with the first, timed with all."""
    import torch

    problem = case.problem
    call = make_inputs(modules.variant, problem, "cuda")
    ready: dict[str, Run] = {}
    notes: dict[str, str] = {}
    with torch.no_grad():
        for label, kernel in kernels.items():
            module, config = modules.of(kernel), kernel.config_for(problem, modules.variant)
            notes[label] = proven(modules.variant, module, config, problem)
            if not notes[label]:
                ready[label] = run_of(module, call, config, kernel.plan)
        notes |= disagreements(ready, next(iter(kernels)), FORWARD, call.v, ())
        peaks = {label: peak_bytes(run) for label, run in ready.items()}
        timings = time_all(ready, problem.dtype, bench.rounds, cuda_timer())
        pairwise = make(modules.variant, {name: getattr(problem, name) for name in SIZES}, call.keywords)
        share = density(pairwise, problem, "cuda")
    return rows(case, kernels, share, timings, peaks, notes)


def measured(places: Sequence[Place], session: Session, folder: Path) -> Iterator[tuple[Place, dict[str, Row]]]:
    """The rows of each place by label, as far as the session's time goes."""
    modules: dict[str, Modules] = {}
    for place in places:
        here = modules.setdefault(place.variant, Modules(variant_of(place), folder / place.variant))
        kernels = kernels_of(place, here.variant)
        session.measure = _measure(here, kernels)
        session.bench = replace(session.bench, candidates=tuple(kernels))
        for found in session.run(here.variant, [place.problem]):
            yield place, {row.candidate: row for row in found}


def _measure(modules: Modules, kernels: Mapping[str, Kernel]) -> Measure:
    return lambda variant, module, case, bench: measure_place(modules, kernels, case, bench)


def variant_of(place: Place) -> Variant:
    return load(resolve(place.variant))


def table(comparisons: Sequence[Comparison], found: Mapping[Place, Mapping[str, Row]]) -> list[str]:
    """The comparisons of the places that were measured, in Markdown: TFLOP/s, and by how much they differ."""
    lines: list[tuple[str, ...]] = [HEADER, ("---",) * len(HEADER)]
    for each in comparisons:
        if each.place in found:
            variant = variant_of(each.place)
            labels = [kernel.label(each.place.problem, variant) for kernel in (each.without, each.kernel)]
            speeds = [found[each.place][label].tflops for label in labels]
            lines.append((each.technique, str(each.place), *_cells(*speeds)))
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _cells(without: float | None, with_it: float | None) -> tuple[str, str, str]:
    gain = f"{round(100 * (with_it / without - 1)):+d} %" if without and with_it else ""
    return f"{without:.0f}" if without else "", f"{with_it:.0f}" if with_it else "", gain


@reporting
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table on standard output and all else on standard error."""
    parser = argparse.ArgumentParser(prog="python -m flashgen.bench.ablation", description=__doc__.split("\n", 1)[0])
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help="only these variants of the gallery")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append the results to this file, as JSON lines")
    parser.add_argument("--resume", action="store_true", help="skip what the rows file already has")
    parser.add_argument("--seconds", type=float, metavar="S", help="start no further place after this time")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds of measurement")
    chosen = parser.parse_args(arguments)
    return ablate(chosen.variants, chosen.rows, chosen.resume, Bench(rounds=chosen.rounds, seconds=chosen.seconds))


def ablate(
    variants: Sequence[str], rows_file: Path | None, resume: bool, bench: Bench,
    on: Callable[[], tuple[str, str, str]] | None = None,
) -> int:  # fmt: skip
    """What `main` does with its arguments; `on` names the GPU and versions."""
    unknown = [name for name in variants if name not in {place.variant for place in PLACES}]
    if unknown:
        known = ", ".join(dict.fromkeys(place.variant for place in PLACES))
        raise UsageError(f"no comparison for the variant {unknown[0]!r}; expected one of {known}")
    if resume and rows_file is None:
        raise UsageError("--resume was given without --rows; expected the file to resume from")
    places = [place for place in PLACES if not variants or place.variant in variants]
    wrong, found = False, {}
    with TemporaryDirectory() as folder:
        session = Session(bench, Path(folder), rows_file, resume, machine=on or hopper)
        start = time.monotonic()
        for place, here in measured(places, session, Path(folder)):
            print(f"{place}, after {time.monotonic() - start:.0f} s:", file=sys.stderr)
            found[place] = here
            for row in here.values():
                took = row.note or f"{row.tflops:.0f} TFLOP/s ±{100 * (row.spread or 0):.1f} %"
                print(f"  {took}: {row.candidate}", file=sys.stderr, flush=True)
                wrong = wrong or bool(row.note)
    print("\n".join(table(COMPARISONS, found)))
    if session.left:
        print(f"{session.left} places were left when the time was up; --resume takes them up again", file=sys.stderr)
    return 1 if wrong else 0


def hopper() -> tuple[str, str, str]:
    """The GPU's name and the versions of torch and triton; EnvironmentProblem where it is no Hopper."""
    import torch

    found = machine()
    here = current_device(torch.cuda.current_device()).capability
    if here != CAPABILITY:
        raise EnvironmentProblem(f"{found[0]} is {here}; expected {CAPABILITY}: these are its kernels")
    return found


if __name__ == "__main__":
    sys.exit(main())
