"""Every kernel of some variants under NVIDIA's compute-sanitizer: memory that is not theirs, races in shared memory.

    python -m flashgen.verify.sanitize [VARIANT ...] [--tool memcheck] [--rows FILE] [--resume] [--seconds S] ...

Each variant's kernels run in parts (see `exercise.parts`). A part runs once without the tool, which compiles its
kernels, then under each tool, in a process of its own with a time limit. Tensors get memory of their own rather than
torch's pool, so that an access beyond one is seen. Prints a line for each run and, at the end, a table by kernel. With
--rows and --resume what was clean before, with the same kernels, is not run again. Exit status 0 where all is
clean, 1 where a run is not or was left, 2 where the tool or a GPU is missing.

racecheck does not follow mbarriers, nor how Triton's warp_specialize starts its roles. It reports what
kernels hand over by them (`barriers` of their records): the number of a tile, P of wide heads, and the arguments of a
role, which have the line of the kernel itself. Such hazards are counted apart; any other is a finding.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from glob import glob
from pathlib import Path

from flashgen import processes
from flashgen.choices import at_least
from flashgen.codegen import generate
from flashgen.codegen.render import MODULE
from flashgen.ending import in_order, reporting
from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.files import append_lines, check_target, lines_of
from flashgen.gallery import resolve
from flashgen.runtime.lookup import current_device
from flashgen.runtime.registry import REGISTRY
from flashgen.spec import load
from flashgen.verify.sanitizer_log import judge, parsed

# Together they have every form of every kernel.
VARIANTS = ("causal", "document", "relative_bias", "block_sparse", "alibi", "full")
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
PLACES = ("/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer", "/opt/*/bin", "/opt/nvidia/*/*", "/opt/cuda*/*")
NAME = "compute-sanitizer"


@dataclass(frozen=True)
class Job:
    """A generated package and the part of it that runs, one of `exercise.parts`."""

    spec: Path
    module: Path
    part: str

    @property
    def sources(self) -> Mapping[str, str]:
        """The text of each file of the package, by name."""
        return {path.name: path.read_text(encoding="utf-8") for path in sorted(self.module.glob("*.py"))}

    @property
    def digest(self) -> str:
        """Changes with the spec and the kernels."""
        named = {"spec", "templates"}
        nodes = ast.walk(ast.parse(self.sources.get(MODULE, "")))
        identity = [ast.unparse(node) for node in nodes if isinstance(node, ast.keyword) and node.arg in named]
        return hashlib.sha256("".join(identity).encode()).hexdigest()[:12]

    @property
    def command(self) -> list[str]:
        return processes.command("flashgen.verify.exercise", str(self.module), str(self.spec), self.part, anywhere=True)


@dataclass(frozen=True)
class Outcome:
    """One run. `tool` is "" for that without one; `found` says in a few words what came out, of that the kernels.

    `digest` is that of the job.
    """

    variant: str
    part: str
    tool: str
    digest: str
    clean: bool
    found: str
    seconds: float

    def is_of(self, job: Job) -> bool:
        return (self.variant, self.part, self.digest) == (job.module.stem, job.part, job.digest)


def find_sanitizer() -> str:
    """The path of compute-sanitizer; EnvironmentProblem where there is none."""
    places = [place for pattern in PLACES for place in sorted(glob(pattern))]
    found = shutil.which(NAME) or shutil.which(NAME, path=os.pathsep.join(places))
    if found is None:
        raise EnvironmentProblem(
            f"{NAME} is neither on PATH nor in {', '.join(PLACES)}; expected that of the CUDA toolkit: install its "
            "package cuda-sanitizer, or add its folder to PATH"
        )
    return found


@dataclass(frozen=True)
class Runs:
    """How jobs are run: the sanitizer's path, the tools, so many processes at once, each for at most `limit` seconds.

    `logs` is the folder for the output of each.
    """

    sanitizer: str
    tools: Sequence[str]
    at_once: int
    limit: float
    logs: Path

    def of(
        self, jobs: Sequence[Job], known: Sequence[Outcome] = (), time_is_up: Callable[[], bool] = lambda: False
    ) -> Iterator[Outcome | None]:
        """Run each job without a tool and then, where that is clean, under each, as outcomes come.

        What is clean in `known` is given first and not run; None stands for a run that would have begun when time was
        up.
        """
        clean = {(job, each.tool): each for job in jobs for each in known if each.clean and each.is_of(job)}
        todo = {job: [tool for tool in self.tools if (job, tool) not in clean] for job in jobs}
        for job in jobs:
            yield from (clean[job, tool] for tool in ("", *self.tools) if (job, tool) in clean)

        def attempt(job: Job, tool: str) -> Outcome | None:
            return None if time_is_up() else self.run(job, tool)

        self.logs.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self.at_once) as pool:
            pending: dict[Future[Outcome | None], Job] = {
                pool.submit(attempt, job, ""): job for job, tools in todo.items() if tools
            }
            while pending:
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    job, outcome = pending.pop(future), future.result()
                    yield outcome
                    if outcome is not None and outcome.clean and not outcome.tool:
                        pending |= {pool.submit(attempt, job, tool): job for tool in todo[job]}

    def run(self, job: Job, tool: str) -> Outcome:
        """One process, which is killed with its children when the time is up."""
        log = self.logs / f"{job.module.stem}-{job.part.replace(', ', '-')}-{tool or 'plain'}.log"
        tooled = [self.sanitizer, "--tool", tool, *job.command] if tool else job.command
        command = processes.command("exec", *tooled)
        start = time.monotonic()
        with log.open("w+", encoding="utf-8", errors="replace") as output:
            # Each tensor in memory of its own; a session of its own, as the tool starts the program as a child.
            environment = processes.environment() | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
            try:
                status = process.wait(self.limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                clean, found = False, f"not done within {self.limit:.0f} s"
            else:
                output.seek(0)
                clean, found = judge(output.read(), status, tool, job.sources)
        return Outcome(job.module.stem, job.part, tool, job.digest, clean, found, time.monotonic() - start)


def read(path: Path | None) -> list[Outcome]:
    """The outcomes in a file of JSON lines, none where there is no such file; a line cut short is left out."""
    found = []
    for line in lines_of(path) if path else ():
        try:
            found.append(Outcome(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def kernels_of(source: str) -> set[str]:
    """The kernels that a module has launched: those that it declares."""
    return {
        ast.unparse(kernel)
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.keyword) and node.arg == "kernels" and isinstance(node.value, ast.Dict)
        for kernel in node.value.values
    }


def by_kernel(outcomes: Iterable[Outcome], expected: Iterable[str], tools: Sequence[str]) -> list[list[str]]:
    """A table: for each kernel and tool, how many of the runs that launch it are clean, and the variants of these."""
    outcomes = list(outcomes)
    launched = {(o.variant, o.part): o.found.split() for o in outcomes if not o.tool and o.clean}
    results = {(o.variant, o.part, o.tool): o.clean for o in outcomes}
    table = [["kernel", *tools, "variants"]]
    for kernel in sorted({*expected, *(name for names in launched.values() for name in names)}):
        runs = [run for run, names in launched.items() if kernel in names]
        counts = [f"{sum(results.get((*run, tool), False) for run in runs)} of {len(runs)}" for tool in tools]
        names = ", ".join(sorted({variant for variant, _ in runs})) or "not launched"
        table.append([kernel, *counts, names])
    return table


def backends_here() -> tuple[str, ...]:
    """The backends whose kernels this GPU runs; EnvironmentProblem without a GPU."""
    import torch

    if not torch.cuda.is_available():
        raise EnvironmentProblem("there is no GPU that torch can use: `flashgen doctor` says what is missing")
    here = current_device(torch.cuda.current_device()).capability
    return tuple(dict.fromkeys(kernel.backend for kernel in REGISTRY if kernel.capability in ("", here)))


@reporting
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashgen.verify.sanitize", description=__doc__.split("\n", 1)[0])
    parser.add_argument("variants", nargs="*", default=VARIANTS, metavar="VARIANT", help="of the gallery")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="memcheck and racecheck by default; repeatable")
    parser.add_argument(
        "--part", action="append", metavar="PART", help="only these, such as 'portable, deterministic'; repeatable"
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append the outcomes to this file, as JSON lines")
    parser.add_argument("--resume", action="store_true", help="skip what was clean according to the rows file")
    parser.add_argument("--seconds", type=float, metavar="S", help="start no further run after this time")
    parser.add_argument("--limit", type=float, default=180.0, metavar="S", help="time limit of each run")
    parser.add_argument("--jobs", type=at_least(1), default=os.cpu_count() or 1, metavar="N", help="runs side by side")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="where the tool's output goes")
    chosen = parser.parse_args(arguments)
    if chosen.resume and chosen.rows is None:
        raise UsageError("--resume was given without --rows; expected the file to resume from")
    if chosen.rows is not None:
        check_target(chosen.rows)
    sanitizer, on = find_sanitizer(), backends_here()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(sanitizer, chosen.tool or TOOLS[:2], chosen.jobs, chosen.limit, chosen.logs or Path(folder, "logs"))
        end = time.monotonic() + (chosen.seconds or float("inf"))
        jobs = jobs_of(chosen.variants, on, chosen.part, Path(folder))
        known = read(chosen.rows) if chosen.resume else []
        return show(runs.of(jobs, known, lambda: time.monotonic() > end), jobs, runs.tools, chosen.rows, known)


def jobs_of(variants: Sequence[str], on: Sequence[str], parts: Sequence[str] | None, folder: Path) -> list[Job]:
    """The parts of these names, all for None, that these backends run, of modules that are generated below `folder`."""
    from flashgen.verify import exercise

    known = exercise.parts()
    unknown = [name for name in parts or () if name not in known]
    if unknown:
        raise UsageError(f"no part {unknown[0]!r}; expected one of {'; '.join(known)}")
    paths = [resolve(name) for name in variants]
    parts = [name for name, part in known.items() if part.backend in on and name in (parts or known)]
    modules: Mapping[Path, Path] = {path: generate(load(path), folder) for path in paths}
    return [Job(path, module, part) for path, module in modules.items() for part in parts]


def show(
    outcomes: Iterator[Outcome | None], jobs: Sequence[Job], tools: Sequence[str], rows: Path | None = None,
    known: Sequence[Outcome] = (),
) -> int:  # fmt: skip
    """Print and keep each run as it comes, at the end the table by kernel; the exit status."""
    found: list[Outcome] = []
    left = 0
    for each in outcomes:
        if each is None:
            left += 1
            continue
        found.append(each)
        if each in known:
            continue
        print(
            f"{each.variant:16} {each.part:24} {each.tool or 'no tool':10} {'clean' if each.clean else 'NOT OK':8} "
            f"{each.seconds:6.1f} s  {each.found}",
            flush=True,
        )
        if rows is not None:
            append_lines(rows, [json.dumps(asdict(each))])
    expected = {kernel for job in jobs for kernel in kernels_of(job.sources.get(MODULE, ""))}
    print()
    for cells in by_kernel(found, expected, tools):
        print(f"{cells[0]:28} {' '.join(f'{cell:10}' for cell in cells[1:-1])} {cells[-1]}", flush=True)
    if left:
        print(f"{left} runs were left when the time was up; --resume takes them up again")
    return 0 if not left and all(each.clean for each in found) else 1


if __name__ == "__main__":
    sys.exit(in_order(main))
