"""How long a call keeps the host busy, measured where there is no GPU: all of it but the driver's part of a launch.

    python -m flashgen.bench.unlaunched [--launched] causal alibi

prints microseconds of calls, and of two autograd functions that launch nothing: one that does nothing, and one that
makes and keeps the tensors that attention does, which is the least that its call with a backward pass can cost. In
three columns: of calls at addresses seen before, as where memory goes round; of calls at new ones, as where results
are kept; and the mean of the first calls after one, which is what a simple loop measures, with what is done once.
Tensors are the CPU's and say that they are a GPU's; no kernel is compiled, and the launcher in C that hands arguments
to the driver does nothing. With --launched the calls run on a GPU: then the memory of each tensor that is made, and the
driver's part of each launch, are in it. A call that is found out anew each time is marked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.nvidia.driver import CudaLauncher, wrap_handle_tensordesc
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.interpreter import InterpretedFunction

from flashgen.runtime import call as runtime_call
from flashgen.runtime import described, launching, replay, streams
from flashgen.runtime import paged as runtime_paged
from flashgen.runtime.kernels.sm90 import multiprocessors
from flashgen.runtime.lookup import current_device, forget

# Takes whatever the launcher in C takes.
Hand = Callable[..., object]
_ignore: Hand = "".format
_H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, shared_memory_per_multiprocessor=233472
)
CALLS, ROUNDS = 50, 60


@contextmanager
def unlaunched(hand: Hand = _ignore) -> Iterator[None]:
    """Within the block calls with tensors of the CPU do what they do on an H200; `hand` gets what is launched.

    That is what Triton's own launcher in C gets. Results are whatever the memory has.
    """

    def compiled(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> _Compiled:
        constants = [options[name] for name in kernel.arg_names[len(arguments) :]]
        everything = (*arguments, *constants)
        made = _Compiled(everything, hand)
        passed = [each.data_ptr() if isinstance(each, torch.Tensor) else each for each in everything]
        made.run(*grid, 1, 1, 0, made.function, made.packed_metadata, None, None, None, *passed)
        return made

    utils = SimpleNamespace(
        fill_tma_descriptor=lambda address, *_: ("descriptor of", address),
        fill_tma_descriptor_tiled=lambda address, *_: ("descriptor of", address),
    )
    gpu = SimpleNamespace(get_current_stream=lambda index: 0, utils=utils)
    counters = {(0, 0): torch.zeros(2, dtype=torch.int32)}
    before = driver._active
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.Tensor, "is_cuda", True))
        stack.enter_context(patch.object(torch.Tensor, "get_device", lambda tensor: 0))
        stack.enter_context(patch.object(torch._C, "_cuda_getDevice", lambda: 0, create=True))
        stack.enter_context(patch.object(torch.cuda, "get_device_properties", lambda index: _H200))
        stack.enter_context(patch.object(torch.cuda, "is_current_stream_capturing", lambda: False))
        for reader in (runtime_call, runtime_paged):
            stack.enter_context(patch.object(reader, "interpreted", lambda: True))
        for kind in (triton.JITFunction, InterpretedFunction):
            stack.enter_context(patch.object(kind, "run", compiled))
        stack.enter_context(patch.object(streams, "_counters", counters))
        for memory in (launching._found, launching._known):
            stack.enter_context(patch.dict(memory, clear=True))
        driver.set_active(gpu)
        _forget_gpus()
        try:
            yield
        finally:
            driver._active = before
            _forget_gpus()


def _forget_gpus() -> None:
    current_device.cache_clear()
    multiprocessors.cache_clear()
    forget()


class _Compiled(CompiledKernel):
    """A kernel as if it had been compiled, with Triton's launcher."""

    run: Any = None
    module = None
    function = packed_metadata = 0

    def __init__(self, arguments: tuple[Any, ...], hand: Hand) -> None:
        signature = {place: _type_of(argument) for place, argument in enumerate(arguments)}
        described = [_how_described(argument) for argument in arguments if hasattr(argument, "block_shape")]
        launcher = CudaLauncher.__new__(CudaLauncher)
        launcher.launch = wrap_handle_tensordesc(hand, signature, described)
        for name in ("global_scratch_size", "profile_scratch_size"):
            setattr(launcher, name, 0)
        for name in ("global_scratch_align", "profile_scratch_align", "num_ctas"):
            setattr(launcher, name, 1)
        for name in ("launch_cooperative_grid", "launch_pdl", "gsan_enabled"):
            setattr(launcher, name, False)
        for name in ("arg_annotations", "kernel_signature"):
            setattr(launcher, name, None)
        self.run = launcher


def _type_of(argument: Any) -> str:
    return "tensordesc<...>" if hasattr(argument, "block_shape") else "*i8"


def _how_described(argument: Any) -> Mapping[str, Any]:
    size = {"swizzle": 3, "elem_size": 2, "elem_type": 0, "block_size": list(argument.block_shape)}
    return {**size, "fp4_padded": False}


class Nothing(torch.autograd.Function):
    """What gives an output and gradients without a launch."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(q)

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor) -> Any:
        return d_out, d_out, d_out


class Kept(torch.autograd.Function):
    """What makes and keeps the tensors that attention does, without a launch."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor, _: object) -> Any:
        return tuple(map(torch.empty_like, ctx.saved_tensors[:3]))


def calls_of(module: ModuleType) -> dict[str, Callable[[], object]]:
    """The calls that are timed: each form of attention of a variant without inputs but those with defaults."""
    q, k, v = (torch.randn(1, 2, 64, 64, dtype=torch.bfloat16) for _ in range(3))
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    d_out = torch.ones_like(q)
    packed = [torch.randn(64, 2, 64, dtype=torch.bfloat16) for _ in range(3)]
    packed_leaves = [tensor.clone().requires_grad_() for tensor in packed]
    ends, d_packed = torch.tensor([0, 24, 64], dtype=torch.int32), torch.ones_like(packed[0])
    few = q[:, :, :1].contiguous()
    keys = torch.randn(1, 2, 1024, 64, dtype=torch.bfloat16)

    def varlen(tensors: list[torch.Tensor]) -> torch.Tensor:
        out: torch.Tensor = module.attention_varlen(*tensors, ends, ends, 40, 40)
        return out

    return {
        "nothing, forward+backward": lambda: torch.autograd.grad(Nothing.apply(*leaves), leaves, d_out),
        "tensors kept, forward+backward": lambda: torch.autograd.grad(Kept.apply(*leaves)[0], leaves, d_out),
        "forward": lambda: module.attention(q, k, v),
        "forward that is recorded": lambda: module.attention(*leaves),
        "forward+backward": lambda: torch.autograd.grad(module.attention(*leaves), leaves, d_out),
        "varlen": lambda: varlen(packed),
        "varlen, forward+backward": lambda: torch.autograd.grad(varlen(packed_leaves), packed_leaves, d_packed),
        "decode": lambda: module.attention(few, keys, keys),
        **_paged(module, 2, ""),
        **_paged(module, 256, ", 256 sequences"),
    }


def _paged(module: ModuleType, batch: int, what: str) -> dict[str, Callable[[], object]]:
    """One query for each of so many sequences, of up to 64 keys in pages of 16."""
    q, cache = (torch.randn(shape, dtype=torch.bfloat16) for shape in ((batch, 2, 64), (4 * batch, 16, 2, 64)))
    table = torch.arange(4 * batch, dtype=torch.int32).view(batch, 4)
    lengths = torch.full((batch,), 50, dtype=torch.int32)
    call = partial(module.attention_paged, q, cache, cache, table, lengths)
    with torch.no_grad():
        plan = module.plan_paged(q, cache, table, lengths)
    return {f"paged{what}": call, f"paged with a plan{what}": partial(call, plan=plan)}


def microseconds(call: Callable[[], object], calls: int = CALLS, rounds: int = ROUNDS) -> float:
    """Of a call, the least of some rounds: what else the host does at the time only adds to it."""
    found = []
    for _ in range(rounds):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - start) / calls * 1e6)
    return min(found)


class _Anywhere(dict[Any, Any]):
    """What was handed over in a call, found again wherever its tensors are.

    The memory of CPUs has tensors elsewhere each time that something else is remembered.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[:2], default)

    def __setitem__(self, key: Any, launches: Any) -> None:
        super().__setitem__(key[:2], launches)


def at_known_addresses(call: Callable[[], object], on_gpu: bool = False) -> float:
    """The host's time of a call where what was handed over before for these tensors is handed over again."""
    with nullcontext() if on_gpu else patch.object(replay, "_handed", _Anywhere()):
        call()
        return microseconds(call)


def at_new_addresses(call: Callable[[], object]) -> float:
    """The host's time of a call where nothing was handed over before for any tensor."""

    def anew() -> None:
        replay._handed.clear()
        described._handed.clear()
        call()

    return microseconds(anew)


def first(call: Callable[[], object]) -> float:
    """The mean of the first calls after one, the least of some rounds."""
    found = []
    for _ in range(5):
        forget()
        call()
        found.append(microseconds(call, rounds=1))
    return min(found)


def is_repeated(call: Callable[[], object]) -> bool:
    """Whether all passes of a call, once some were made, repeat what was written down of one."""
    call()
    with ExitStack() as stack:
        passes, replays = (
            stack.enter_context(patch.object(kind, "__call__", autospec=True, side_effect=kind.__call__))
            for kind in (replay.Repeated, replay.Replay)
        )
        call()
    return bool(passes.call_count == replays.call_count)


def main(arguments: list[str]) -> int:
    on_gpu = "--launched" in arguments
    names = [name for name in arguments if name != "--launched"] or ["causal", "alibi"]
    print(f"{'microseconds of the host':46} {'seen':>8} {'new':>8} {f'first {CALLS}':>8}")
    for name in names:
        module = import_module(f"generated.{name}")
        with nullcontext() if on_gpu else unlaunched():
            with torch.device("cuda" if on_gpu else "cpu"):
                calls = calls_of(module)
            for what, call in calls.items():
                times = first(call), at_known_addresses(call, on_gpu), at_new_addresses(call)
                mark = "" if is_repeated(call) else "  not repeated"
                print(f"{name:12} {what:33} {times[1]:8.1f} {times[2]:8.1f} {times[0]:8.1f}{mark}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
