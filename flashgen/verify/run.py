"""Prove cases in this process: on a GPU, or under Triton's interpreter if the process was started with it."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import ModuleType

import torch

from flashgen.codegen.rehearsal import Wanted, rehearsal
from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.draws import note_of
from flashgen.problems.dropped import DroppedModule
from flashgen.problems.packed import Module, PackedModule, packed_call
from flashgen.problems.prepared import prepared
from flashgen.runtime.forward_pass import decoded
from flashgen.runtime.lookup import current_device
from flashgen.runtime.record_files import RecordWarning
from flashgen.spec.variant import Input, Variant
from flashgen.verify.bearable import bearable
from flashgen.verify.budget import Verdict, judge
from flashgen.verify.case import Case, along
from flashgen.verify.gradients import draw_loss, launch_gradients, prove_gradients
from flashgen.verify.paged import launch_paged, prove_paged
from flashgen.verify.paged_cases import PagedCase
from flashgen.verify.poison import poisoned
from flashgen.verify.report import CaseResult, Report
from flashgen.verify.row_terms import counted_apart

LEAST_DENSITY = 0.05

# Of a mask that hides all: numbers that are compared differ by a rounding somewhere.
NOTHING_SEEN = "no query saw a key in any case, so that all results are 0: does the mask hide what it should show?"


def run_cases(
    module: ModuleType,
    variant: Variant,
    cases: Sequence[Case | PagedCase],
    *,
    level: str,
    device: str,
    seconds: float = math.inf,
    progress: Callable[[CaseResult], None] | None = None,
    ready: Iterable[object] = (),
) -> Report:
    """Run each case on `device` and judge it; cases that would start after `seconds` fail as not run.

    A case waits for the next of `ready`, as far as there are any.
    """
    start = time.monotonic()
    results, waiting = [], iter(ready)
    for case in cases:
        next(waiting, None)
        if time.monotonic() - start > seconds:
            result = CaseResult(case.name, math.inf, 0.0, False, f"not run: the limit of {seconds:.0f} s was reached")
        else:
            result = run_case(module, variant, case, device)
        results.append(result)
        if progress is not None:
            progress(result)
    note = NOTHING_SEEN if results and all(result.ok and result.error == 0 for result in results) else note_of(variant)
    return Report(level, _device_name(device), tuple(results), time.monotonic() - start, note)


def rehearse(
    module: ModuleType, variant: Variant, cases: Sequence[Case | PagedCase], device: str
) -> Iterator[tuple[Wanted, ...]]:
    """Of each case the kernels that it would have to compile and those before it did not, found without running one."""
    told = 0
    with rehearsal(module, current_device(torch.device(device).index or 0).capability) as wanted:
        for case in cases:
            # What goes wrong here goes wrong again in the proof, and is told there.
            with contextlib.suppress(Exception), _without_warnings():
                _launch(module, variant, case, device)
            yield tuple(wanted)[told:]
            told = len(wanted)


def _launch(module: ModuleType, variant: Variant, case: Case | PagedCase, device: str) -> None:
    """What a case launches."""
    if isinstance(case, PagedCase):
        launch_paged(module, variant, case, device)
        return
    given, call = as_given(module, variant, case, dense_call(variant, case, device))
    if case.backward is not None:
        launch_gradients(given, variant, case, case.backward, call)
    else:
        _poisoned_answer(given, case, call)


def run_case(module: ModuleType, variant: Variant, case: Case | PagedCase, device: str) -> CaseResult:
    """Run one case; an exception of the kernel is a failed case, named in its detail."""
    try:
        with _without_warnings():
            verdict = _prove(module, variant, case, device)
    except Exception as error:  # noqa: BLE001 - whatever a wrong kernel raises is a verdict on that kernel
        return CaseResult(case.name, math.inf, 0.0, False, _reason(error))
    return CaseResult(case.name, verdict.error, verdict.budget, verdict.ok, verdict.detail)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """A proof holds for every config, and most of its problems are of sizes that nobody tunes for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordWarning)
        yield


def _reason(error: BaseException) -> str:
    """The first line of the exception at the root of one: Triton wraps what a kernel raises."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def _prove(module: ModuleType, variant: Variant, case: Case | PagedCase, device: str) -> Verdict:
    if isinstance(case, PagedCase):
        with _products(variant.allow_tf32):
            return prove_paged(module, variant, case, device)
    return prove_call(module, variant, case, dense_call(variant, case, device))


def prove_call(module: ModuleType, variant: Variant, case: Case, dense: Call) -> Verdict:
    """Run one call and judge it; where the case packs its sequences, these are the batch elements of `dense`."""
    given, call = as_given(module, variant, case, dense)
    loss = draw_loss(variant, case, case.backward, call) if case.backward else None
    call = bearable(call, given.reference, case.gain, case.scale, loss)
    if case.backward is not None:
        with _products(variant.allow_tf32):
            return prove_gradients(given, variant, case, case.backward, call)
    out, lse, *largest = _poisoned_answer(given, case, call)
    dropout = case.dropout(variant)
    with _products(variant.allow_tf32):
        return judge(
            out, lse, call, given.reference, case.scale, _counted_apart(variant, case, dense),
            largest=largest[0] if largest else None, kept=1.0 if dropout is None else 1 - dropout.p,
        )  # fmt: skip


@contextlib.contextmanager
def _products(allow_tf32: bool) -> Iterator[None]:
    """Eager PyTorch multiplies float32 as the spec lets the kernel do; float64 is not touched."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def dense_call(variant: Variant, case: Case, device: str) -> Call:
    """The arguments of a case, before its sequences are packed."""
    # A hint of one global token in 200 is realistic, and proves nothing at length 100.
    samples = tuple(
        (name, sample if sample.density is None else replace(sample, density=max(sample.density, LEAST_DENSITY)))
        for name, sample in variant.samples
    )
    variant = replace(variant, samples=samples)
    call = make_inputs(variant, case.problem, device, case.seed, case.layout, dict(case.params))
    inputs = dict(call.inputs)
    for tensor in variant.inputs:
        if case.defaults and tensor.default is not None:
            del inputs[tensor.name]
        elif case.broadcast:
            ones = tuple(slice(0, 1) if dim.may_be_one else slice(None) for dim in tensor.dims)
            inputs[tensor.name] = inputs[tensor.name][ones]
        if case.stretches and tensor.name in inputs:
            inputs[tensor.name] = _in_stretches(tensor, inputs[tensor.name], case.stretches)
    q, k = (call.q.abs(), -call.k.abs()) if case.below else (call.q, call.k)
    return replace(call, q=q * case.gain, k=k, inputs=inputs)


def _in_stretches(tensor: Input, values: torch.Tensor, count: int) -> torch.Tensor:
    """An input with so many of its values along queries and keys, each for a stretch of as many."""
    for axis, dim in enumerate(tensor.dims):
        if along(dim):
            length = -(-values.shape[axis] // count)
            first = torch.arange(values.shape[axis], device=values.device) // length * length
            values = values.index_select(axis, first)
    return values


def as_given(module: ModuleType, variant: Variant, case: Case, call: Call) -> tuple[Module, Call]:
    """The module and the call as they are, or where the case packs its sequences, or drops weights, those of that."""
    given: Module = module
    if case.lengths:
        given = PackedModule(module, variant, case.problem, case.lengths, case.rest)
        call = packed_call(variant, call, case.lengths, case.rest)
    dropout = case.dropout(variant)
    return (given if dropout is None else DroppedModule(given, dropout)), call


def _counted_apart(variant: Variant, case: Case, call: Call) -> torch.Tensor:
    """As the function of this name has it, of a call before it is packed, for the rows that it has then."""
    found = counted_apart(variant, call)
    if not case.lengths:
        return found
    parts = [each.expand(-1, q_len) for each, (q_len, _) in zip(found, case.lengths, strict=True)]
    return torch.cat([*parts, parts[0].new_zeros(len(parts[0]), case.rest[0])], 1)[None]


def _poisoned_answer(module: Module, case: Case, call: Call) -> tuple[torch.Tensor, ...]:
    arguments = (call.q, call.k, call.v)
    with poisoned():
        if case.decoded and case.config is not None:
            kernels = vars(module.module if isinstance(module, DroppedModule) else module)["VARIANT"]
            out, lse, *_ = decoded(kernels, prepared(kernels, call, case.scale), case.config)
            return out, lse
        plan = {}
        if case.planned:
            plan = {"plan": module.plan(*arguments, **call.keywords, config=case.config)}
        return module.attention(
            *arguments, **call.keywords, **plan, scale=case.scale, return_lse=True, return_max=case.return_max,
            config=case.config,
        )  # fmt: skip


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "the CPU (Triton's interpreter)"
