"""The benchmark: for every case, all candidates checked against each other, then timed in the same rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flashgen.bench.agreement import disagreements
from flashgen.bench.candidates import CANDIDATES, DETERMINISTIC, FLASHGEN, OURS, ways
from flashgen.bench.flex import does_not_fit
from flashgen.bench.installed import Unavailable
from flashgen.bench.passes import FORWARD, PASSES, Forward, Run, flops, leaves, run_of, trainable
from flashgen.bench.rows import Case, Row
from flashgen.bench.timing import Timer, cuda_timer, interleave, peak_bytes
from flashgen.codegen.pairwise import SIZES, Pairwise, make
from flashgen.ending import reporting
from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.problem import Problem
from flashgen.problems.work import CEILING_SIZE, density
from flashgen.spec.variant import Variant
from flashgen.tuning.timing import Timing

if TYPE_CHECKING:
    from torch import Tensor

CEILING = "matrix product"
# What makes the forward passes of a candidate to try one after the other, each with a note.
Ways = Callable[[], Iterable[tuple[str, Forward]]]


@dataclass(frozen=True)
class Bench:
    """How to measure. `seconds` is the time after which no further case starts, None for no limit."""

    candidates: tuple[str, ...] = CANDIDATES
    passes: tuple[str, ...] = (FORWARD,)
    rounds: int = 15
    seconds: float | None = None

    @classmethod
    def choose(
        cls, candidates: Sequence[str] | None, passes: Sequence[str] | None, rounds: int, seconds: float | None,
        known: Sequence[str] = CANDIDATES,
    ) -> Bench:  # fmt: skip
        """The candidates of these names, all that are `known` for None; the generated kernel always takes part.

        The passes of these names, forward alone for None.
        """
        for kind, given, names in (("candidate", candidates, known), ("pass", passes, PASSES)):
            unknown = [name for name in given or () if name not in names]
            if unknown:
                raise UsageError(f"no {kind} {unknown[0]!r}; expected one of {', '.join(map(repr, names))}")
        chosen = tuple(n for n in known if n == FLASHGEN or not candidates or n in candidates)
        return cls(chosen, tuple(passes or (FORWARD,)), rounds, seconds)

    def candidates_of(self, step: str) -> tuple[str, ...]:
        """The candidates of a pass; the forward pass is always deterministic."""
        return tuple(name for name in self.candidates if step != FORWARD or name != DETERMINISTIC)


def machine() -> tuple[str, str, str]:
    """The GPU's name and the versions of torch and triton; EnvironmentProblem without a GPU."""
    import torch
    import triton

    if not torch.cuda.is_available():
        raise EnvironmentProblem(
            "bench found no GPU; expected one that torch can use: `flashgen doctor` says what is missing"
        )
    return torch.cuda.get_device_name(), torch.__version__, triton.__version__


@reporting
def on_a_gpu(work: Callable[[], int]) -> int:
    """What a program of measurements does, where there is a GPU; its exit status. What goes wrong is said in a line."""
    machine()
    return work()


@dataclass(frozen=True)
class Prepared:
    """A case whose candidates ran once: the passes of those that agree, why others are missing, the visible share."""

    case: Case
    candidates: tuple[str, ...]
    ready: Mapping[str, Run]
    notes: Mapping[str, str]
    density: float


def prepare_case(variant: Variant, module: ModuleType, case: Case, candidates: Sequence[str]) -> Prepared:
    """Run each of these candidates of a case once, on the current GPU."""
    import torch

    problem, names = case.problem, tuple(candidates)
    call = make_inputs(variant, problem, device="cuda")
    training = case.step != FORWARD
    if training:
        call = trainable(variant, call)
    pairwise = make(variant, {name: getattr(problem, name) for name in SIZES}, call.keywords)
    with torch.no_grad():
        share = density(pairwise, problem, "cuda")
    with torch.set_grad_enabled(training):
        ready, notes = ready_candidates(names, variant, module, problem, call, pairwise, case.step)
        notes |= disagreements(ready, FLASHGEN, case.step, call.v, leaves(variant, call))
    return Prepared(case, names, ready, notes, share)


def measure(cases: Sequence[Prepared], rounds: int, timer: Timer) -> list[Row]:
    """The candidates of all these cases, which are of one dtype and pass, timed in the same rounds."""
    import torch

    runs = {(each.case, name): run for each in cases for name, run in each.ready.items()}
    with torch.set_grad_enabled(cases[0].case.step != FORWARD):
        peaks = {key: peak_bytes(run) for key, run in runs.items()}
        timings = time_all(runs, cases[0].case.problem.dtype, rounds, timer)
    found = []
    for each in cases:
        ours = {name: timings[each.case, name] for name in each.ready} | {CEILING: timings[CEILING]}
        held = {name: peaks[each.case, name] for name in each.ready}
        found += rows(each.case, each.candidates, each.density, ours, held, each.notes)
    return found


def measure_case(variant: Variant, module: ModuleType, case: Case, bench: Bench) -> list[Row]:
    """Every candidate on one case, on the current GPU."""
    import torch

    torch.cuda.empty_cache()
    prepared = prepare_case(variant, module, case, bench.candidates_of(case.step))
    return measure([prepared], bench.rounds, cuda_timer())


def ready_candidates(
    names: Iterable[str], variant: Variant, module: ModuleType, problem: Problem, call: Call, pairwise: Pairwise,
    step: str,
) -> tuple[dict[str, Run], dict[str, str]]:  # fmt: skip
    """The candidates whose pass ran once, compiled and planned; notes, also why the others did not."""
    found = {name: partial(ways, name, variant, module, problem, call, pairwise, step) for name in names}
    return ran(found, variant, call, step)


def ran(makers: Mapping[str, Ways], variant: Variant, call: Call, step: str) -> tuple[dict[str, Run], dict[str, str]]:
    """Candidates by what makes their forward passes: the passes of those that ran once, and why others did not."""
    ready: dict[str, Run] = {}
    notes: dict[str, str] = {}
    for name, make_ways in makers.items():
        try:
            notes[name], ready[name] = _first_that_fits(make_ways(), variant, call, step)
        except Unavailable as reason:
            notes[name] = str(reason)
        except (RuntimeError, ValueError, AssertionError) as error:
            if name in OURS:
                raise
            # A rival's own limit (a head dimension, memory) is a result, not a failure of the benchmark.
            notes[name] = first_line(error)
    return ready, {name: note for name, note in notes.items() if note}


def _first_that_fits(
    forwards: Iterable[tuple[str, Forward]], variant: Variant, call: Call, step: str
) -> tuple[str, Run]:  # fmt: skip
    """The pass by the first of these forward passes, with its note, whose kernels fit the GPU. It ran once."""
    refused: RuntimeError | None = None
    for note, forward in forwards:
        try:
            run = run_of(step, forward, variant, call)
            run()
            return note, run
        except RuntimeError as error:
            if not does_not_fit(error):
                raise
            refused = error
    assert refused is not None
    raise refused


def time_all(ready: Mapping[Any, Run], dtype: str, rounds: int, timer: Timer) -> dict[Any, Timing]:
    """The passes and, named CEILING, the matrix product in the same rounds."""
    import torch

    kind = getattr(torch, dtype)
    left, right = (torch.randn(CEILING_SIZE, CEILING_SIZE, dtype=kind, device="cuda") for _ in range(2))

    def product() -> Tensor:
        return left @ right

    product()
    return interleave({**ready, CEILING: product}, timer, rounds)


def rows(
    case: Case,
    candidates: Iterable[str],
    share: float,
    timings: Mapping[str, Timing],
    peaks: Mapping[str, int],
    notes: Mapping[str, str],
) -> list[Row]:
    """One row for each candidate, measured or not."""
    ceiling = 2 * CEILING_SIZE**3 / timings[CEILING].median_us / 1e6
    work = flops(case.step, case.problem, share)
    result = []
    for name in candidates:
        row = Row(case, name, share, ceiling=ceiling, note=notes.get(name, ""))
        if name in timings:
            timing = timings[name]
            tflops = work / timing.median_us / 1e6
            row = replace(
                row,
                median_ms=timing.median_us / 1e3,
                spread=timing.spread,
                tflops=tflops,
                share=tflops / ceiling,
                peak_mib=peaks[name] / 2**20,
            )
        result.append(row)
    return result


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
