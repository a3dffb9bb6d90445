"""`flashgen bench --mode decode|paged`: a variant beside its peers, in GB/s of keys and values read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import torch

from flashgen.bench.candidates import FLASHGEN
from flashgen.bench.installed import Unavailable
from flashgen.bench.serving import COPY, Run, graph, replays_us
from flashgen.bench.serving_peers import PEERS
from flashgen.bench.timing import interleave
from flashgen.files import append_to
from flashgen.paged import PagedCall, make_paged, packed_keywords
from flashgen.problems import Call, Problem, make_inputs
from flashgen.spec.variant import Variant
from flashgen.work import least_bytes


@dataclass(frozen=True)
class ServingRow:
    """A candidate's median microseconds, spread as a share of it, and GB/s of what must be read and written.

    `share` is the time of a copy on the device of as many bytes over this one. What could not be measured has None,
    and why in `note`.
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
        lines = path.read_text(encoding="utf-8").splitlines() if path and resume and path.exists() else []
        self._known = [row for line in lines if (row := _parsed(line)) is not None]

    def known(self, variant: Variant, problem: Problem) -> list[ServingRow]:
        about = (variant.name, problem.mode, str(problem))
        return [row for row in self._known if (row.variant, row.mode, row.problem) == about]

    def add(self, rows: list[ServingRow]) -> None:
        if self._path is not None:
            append_to(self._path, "".join(f"{json.dumps(asdict(row))}\n" for row in rows))


def _parsed(line: str) -> ServingRow | None:
    try:
        return ServingRow(**json.loads(line))
    except (ValueError, TypeError):
        return None


def run(
    variant: Variant, module: ModuleType, problems: list[Problem], rounds: int, file: ServingRows
) -> Iterator[list[ServingRow]]:
    """The rows of one problem after another."""
    for problem in problems:
        rows = file.known(variant, problem)
        if not rows:
            rows = measure(variant, module, problem, rounds)
            file.add(rows)
        yield rows
