"""Every kernel of some variants under NVIDIA's compute-sanitizer: memory that is not theirs, races in shared memory.

    python -m flashgen.verify.sanitize [VARIANT ...] [--tool memcheck] [--seconds S] [--jobs N] [--logs FOLDER]

Each variant and backend runs once without the tool, which compiles its kernels, then under each tool, in a process of
its own with a time limit. Tensors get memory of their own rather than torch's pool, so that an access beyond one is
seen. Prints a table; exit status 1 unless all is clean, 2 where the tool or a GPU is missing.

racecheck does not follow mbarriers, nor how Triton's warp_specialize starts its roles. It reports what the Hopper
kernels hand over by them: the number of a tile (`_announce`, `_announced`) and the arguments of a role, which have the
line of the kernel itself. Such hazards are counted apart; any other is a finding.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from glob import glob
from pathlib import Path

import flashgen
from flashgen.codegen import generate
from flashgen.errors import EnvironmentProblem, FlashgenError
from flashgen.spec import load

VARIANTS = ("causal", "document", "relative_bias")
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
PLACES = ("/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer", "/opt/*/bin", "/opt/nvidia/*/*", "/opt/cuda*/*")
NAME = "compute-sanitizer"
# The functions whose accesses mbarriers or warp_specialize order, see above.
HANDOVERS = re.compile(r"_announced?|_(forward|backward_q|backward_kv)_hopper(_wide)?")


@dataclass(frozen=True)
class Job:
    """A module and the backend whose kernels run."""

    spec: Path
    module: Path
    backend: str

    @property
    def source(self) -> str:
        return self.module.read_text() if self.module.is_file() else ""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "flashgen.verify.exercise", str(self.module), str(self.spec), self.backend]


@dataclass(frozen=True)
class Outcome:
    """One run. `tool` is "" for that without one; `found` says in a few words what came out."""

    variant: str
    backend: str
    tool: str
    clean: bool
    found: str
    seconds: float


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


def sanitize(
    sanitizer: str, jobs: Sequence[Job], tools: Sequence[str], seconds: float, at_once: int, logs: Path
) -> Iterator[Outcome]:
    """Run each job without a tool and then under each, `at_once` jobs side by side, with a log of each run."""

    def runs(job: Job) -> list[Outcome]:
        first = run(job, "", job.command, seconds, logs)
        if not first.clean:
            return [first]
        return [first, *(run(job, tool, [sanitizer, "--tool", tool, *job.command], seconds, logs) for tool in tools)]

    logs.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(at_once) as pool:
        for outcomes in pool.map(runs, jobs):
            yield from outcomes


def run(job: Job, tool: str, command: Sequence[str], seconds: float, logs: Path) -> Outcome:
    """One process, which is killed with its children when the time is up."""
    log = logs / f"{job.module.stem}-{job.backend}-{tool or 'plain'}.log"
    start = time.monotonic()
    with log.open("w+", encoding="utf-8", errors="replace") as output:
        # A session of its own: the tool starts the program as a child.
        process = subprocess.Popen(command, stdout=output, stderr=output, env=_environment(), start_new_session=True)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            clean, found = False, f"not done within {seconds:.0f} s"
        else:
            output.seek(0)
            clean, found = judge(output.read(), status, tool, job.source)
    return Outcome(job.module.stem, job.backend, tool, clean, found, time.monotonic() - start)


def judge(log: str, status: int, tool: str, source: str) -> tuple[bool, str]:
    """Whether a run was clean, and its summary: what the tool counted, or why it did not.

    `source` is the text of the module, whose lines the log names.
    """
    lines = [line.removeprefix("=========").strip() for line in log.splitlines() if line.strip(" =")]
    kernels = [line.removeprefix("kernels: ") for line in lines if line.startswith("kernels: ")]
    summaries = [line for line in lines if re.match(r"(ERROR|RACECHECK) SUMMARY:", line)]
    if kernels and not tool and status == 0:
        return True, kernels[0]
    if kernels and summaries:
        hazards = re.search(r"SUMMARY: (\d+) hazards", summaries[0])
        if hazards and int(hazards[1]) and int(hazards[1]) == handed_over(lines, source):
            return status == 0, f"{summaries[0]}, all where mbarriers or warp_specialize hand over"
        clean = status == 0 and all(re.search(r"SUMMARY: 0 (errors|hazards)", line) for line in summaries)
        return clean, "; ".join(summaries)
    complaints = [line for line in lines if re.match(r"\w*Error\b", line)]
    return False, f"status {status}: {(complaints or lines or ['no output'])[-1]}"


def handed_over(lines: Sequence[str], source: str) -> int:
    """How many reported races are between accesses of HANDOVERS alone."""
    spans = {
        number: node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        for number in range(node.lineno - len(node.decorator_list), (node.end_lineno or node.lineno) + 1)
    }
    races: list[list[str]] = []
    for line in lines:
        accesses = re.findall(r"access at \S+ in \S+?:(\d+)", line)
        if line.startswith("Error: Race reported"):
            races.append([])
        if races:
            races[-1] += [spans.get(int(number), "") for number in accesses]
    return sum(bool(race) and all(map(HANDOVERS.fullmatch, race)) for race in races)


def _environment() -> dict[str, str]:
    """This environment, with this very flashgen importable and each tensor in memory of its own."""
    here = str(Path(flashgen.__file__).resolve().parent.parent)
    path = os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, "PYTHONPATH": path, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def backends() -> tuple[str, ...]:
    """Those whose kernels this GPU runs; EnvironmentProblem without a GPU."""
    import torch

    if not torch.cuda.is_available():
        raise EnvironmentProblem("there is no GPU that torch can use: `flashgen doctor` says what is missing")
    return ("portable", "hopper") if torch.cuda.get_device_capability() == (9, 0) else ("portable",)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashgen.verify.sanitize", description=__doc__.split("\n", 1)[0])
    parser.add_argument("variants", nargs="*", default=VARIANTS, metavar="VARIANT", help="of the gallery")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="memcheck and racecheck by default; repeatable")
    parser.add_argument("--seconds", type=float, default=180.0, metavar="S", help="time limit of each run")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="runs side by side")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="where the tool's output goes")
    chosen = parser.parse_args(arguments)
    tools = chosen.tool or TOOLS[:2]
    try:
        sanitizer, on = find_sanitizer(), backends()
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path("variants") / f"{name}.yaml" for name in chosen.variants]
            jobs = [Job(path, generate(load(path), Path(folder)), backend) for path in paths for backend in on]
            logs = chosen.logs or Path(folder, "logs")
            return show(sanitize(sanitizer, jobs, tools, chosen.seconds, chosen.jobs, logs))
    except FlashgenError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def show(outcomes: Iterator[Outcome]) -> int:
    """Print a line for each run as it comes; the exit status."""
    clean = True
    print(f"{'variant':16} {'backend':9} {'tool':10} {'':8} {'s':>6}  found", flush=True)
    for each in outcomes:
        clean = clean and each.clean
        print(
            f"{each.variant:16} {each.backend:9} {each.tool or 'none':10} {'clean' if each.clean else 'NOT OK':8} "
            f"{each.seconds:6.1f}  {each.found}",
            flush=True,
        )
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
