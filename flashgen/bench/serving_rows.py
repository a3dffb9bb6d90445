"""`flashgen bench --mode decode|paged`: a variant beside its peers, in GB/s of keys and values read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType

import torch

from flashgen.bench.candidates import FLASHGEN
from flashgen.bench.installed import Unavailable
from flashgen.bench.run import machine
from flashgen.bench.serving import COPY, Run, graph, replays_us
from flashgen.bench.serving_peers import PEERS
from flashgen.bench.timing import interleave
from flashgen.files import append_lines, lines_of
from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.paged import PagedCall, make_paged, packed_keywords
from flashgen.problems.problem import Problem
from flashgen.problems.work import least_bytes
from flashgen.runtime.registry import MODES
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class ServingRow:
    """A candidate's median microseconds, spread as a share of it, and GB/s of what must be read and written.

    `share` is the time of a copy on the device of as many bytes over this one. What could not be measured has None,
    and why in `note`. `kernels` and `machine` say what was measured, and with what.
    """

    variant: str
    mode: str
    problem: str
    candidate: str
    median_us: float | None = None
    spread: float | None = None
    gbs: float | None = None
    share: float | None = None
    note: str = ""
    kernels: str = ""
    machine: str = ""


def measure(
    variant: Variant, module: ModuleType, problem: Problem, rounds: int, device: str = "cuda",
    prepare: Callable[[Run], Run] = graph, timer: Callable[[Run], float] = replays_us,
) -> list[ServingRow]:  # fmt: skip
    """Time all candidates that there are for a problem, in shuffled rounds; `prepare` makes of a call what is timed."""
    notes: dict[str, str] = {}
    runs: dict[str, Run] = {}
    for name, make in _candidates(variant, module, problem, device).items():
        try:
            runs[name] = prepare(make())
        except Unavailable as why:
            notes[name] = str(why)
        except Exception as error:
            if name == FLASHGEN:
                raise
            notes[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    about = (variant.name, problem.mode, str(problem))
    times = interleave(runs, timer, rounds)
    nbytes = least_bytes(problem, "decode")
    measured = [
        ServingRow(
            *about, name, time.median_us, time.spread, nbytes / time.median_us / 1e3,
            times[COPY].median_us / time.median_us,
        )
        for name, time in times.items()
    ]  # fmt: skip
    return [*measured, *(ServingRow(*about, name, note=note) for name, note in notes.items())]


def _candidates(variant: Variant, module: ModuleType, problem: Problem, device: str) -> Mapping[str, Callable[[], Run]]:
    """What makes each call, the variant's own first."""
    call: Call | PagedCall
    if problem.mode == "paged":
        paged = call = make_paged(variant, problem, device)
        own: Callable[[], Run] = lambda: _paged(variant, module, paged)  # noqa: E731
    else:
        dense = call = make_inputs(variant, problem, device)
        own = lambda: lambda: module.attention(dense.q, dense.k, dense.v, **dense.keywords)  # noqa: E731
    half = torch.empty(int(least_bytes(problem, "decode")) // 2, dtype=torch.int8, device=device)
    other = torch.empty_like(half)
    others = {name: (lambda peer=peer: peer(variant, problem, call)) for name, peer in PEERS[problem.mode].items()}
    return {FLASHGEN: own, COPY: lambda: lambda: other.copy_(half), **others}


def _paged(variant: Variant, module: ModuleType, call: PagedCall) -> Run:
    """With a plan that was made before, as for all layers of a step."""
    batch = call.batch
    arguments, keywords = batch.arguments, packed_keywords(variant, batch, call.own)
    given, told = batch.planning
    plan = module.plan_paged(*given, **told)
    options = {**batch.options, **keywords, "plan": plan}
    return lambda: module.attention_paged(*arguments, **options)


class ServingRows:
    """A file of rows, a line of JSON each, to go on from: what it has is not measured again.

    A line that an interruption cut short, or one of another layout, is left out.
    """

    def __init__(self, path: Path | None, resume: bool) -> None:
        self._path = path
        lines = lines_of(path) if path is not None and resume else []
        self._known = [row for line in lines if (row := _parsed(line)) is not None]

    def known(self, variant: Variant, problem: Problem, kernels: str = "", machine: str = "") -> list[ServingRow]:
        """The rows of a problem that are of these kernels, measured on this machine."""
        about = (variant.name, problem.mode, str(problem), kernels, machine)
        return [r for r in self._known if (r.variant, r.mode, r.problem, r.kernels, r.machine) == about]

    def add(self, rows: list[ServingRow]) -> None:
        if self._path is not None:
            append_lines(self._path, [json.dumps(asdict(row)) for row in rows])


def _parsed(line: str) -> ServingRow | None:
    try:
        return ServingRow(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None


def run(
    variant: Variant, module: ModuleType, problems: list[Problem], rounds: int, file: ServingRows
) -> Iterator[list[ServingRow]]:
    """The rows of one problem after another."""
    here = ", ".join(machine())
    for problem in problems:
        kernels = kernels_of(module, problem.mode)
        rows = file.known(variant, problem, kernels, here)
        if not rows:
            found = measure(variant, module, problem, rounds)
            rows = [replace(row, kernels=kernels, machine=here) for row in found]
            file.add(rows)
        yield rows


def kernels_of(module: ModuleType, mode: str) -> str:
    """The digests of the spec and of the kernels that serve calls of this form."""
    identity = module.IDENTITY
    return "+".join([identity.spec, *(identity.templates[kernel] for kernel in MODES[mode])])
