"""Calls that repeat one made before hand the driver what that one did, at their own addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from handed import addresses_of, leaves_of
from torch.utils._python_dispatch import TorchDispatchMode

from flashgen.bench.unlaunched import unlaunched
from flashgen.runtime import replay
from flashgen.runtime.launching import replaced
from flashgen.runtime.lookup import forget
from flashgen.runtime.replay import repeated
from flashgen.runtime.tracing import GIVEN, MADE, Launch, Place, Result, Tracer

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tensors of the CPU stand for those of a GPU")

Modules = Callable[[str], ModuleType]
Handed = list[tuple[Any, ...]]
# Calls until one is a replay.
FIRST = 3


@pytest.fixture
def handed() -> Iterator[Handed]:
    """What reaches the driver."""
    seen: Handed = []
    with unlaunched(lambda *passed: seen.append(passed)):
        yield seen


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A 1 for each pass that was a replay."""
    seen: list[int] = []
    plain = replay.Replay.__call__

    def counted(self: replay.Replay, arguments: Any) -> Any:
        seen.append(1)
        return plain(self, arguments)

    monkeypatch.setattr(replay.Replay, "__call__", counted)
    return seen


def qkv(*shape: int, heads: int = 2, grad: bool = False) -> list[torch.Tensor]:
    shape = shape or (1, heads, 80, 64)
    return [torch.randn(*shape).bfloat16().requires_grad_(grad) for _ in range(3)]


def named(handed: Handed, tensors: dict[str, torch.Tensor]) -> list[list[Any]]:
    """What was handed over, addresses by the names of these tensors, others numbered as they come."""
    names: dict[int, str] = {tensor.data_ptr(): name for name, tensor in tensors.items()}
    found = []
    for passed in handed:
        for address in addresses_of(passed):
            names.setdefault(address, f"made {len(names)}")
        found.append([names.get(leaf, leaf) if isinstance(leaf, int) else leaf for leaf in leaves_of(passed)])
    handed.clear()
    return found


def given(name: str, grad: bool) -> dict[str, torch.Tensor]:
    tensors = dict(zip("qkv", qkv(grad=grad), strict=True))
    if name == "relative_bias":
        tensors["rel"] = torch.randn(2, 129, requires_grad=grad)
    if name == "sink":
        tensors["sinks"] = torch.randn(2, requires_grad=grad)
    return tensors


@pytest.mark.parametrize("name", ["causal", "alibi", "softcap", "relative_bias", "sink"])
def test_a_replayed_call_launches_what_the_first_did(
    gallery_module: Modules, handed: Handed, replays: list[int], name: str
) -> None:
    module, seen = gallery_module(name), []
    for _ in range(FIRST + 1):
        tensors = given(name, grad=False)
        replays.clear()
        out, lse = module.attention(**tensors, return_lse=True)
        seen.append((named(handed, {**tensors, "out": out, "lse": lse}), out.stride(), lse.stride()))
    assert replays == [1]
    assert seen[0][0] and all(each == seen[0] for each in seen)


@pytest.mark.parametrize("wanted", ["qkv", "q", "kv"])
@pytest.mark.parametrize("name", ["causal", "alibi"])
def test_so_does_a_replayed_backward_pass(
    gallery_module: Modules, handed: Handed, replays: list[int], name: str, wanted: str
) -> None:
    module, seen = gallery_module(name), []
    for _ in range(FIRST + 1):
        tensors = given(name, grad=False)
        asked = [tensors[each].requires_grad_() for each in wanted]
        out, lse = module.attention(**tensors, return_lse=True)
        handed.clear()
        replays.clear()
        d_out = torch.ones_like(out)
        gradients = torch.autograd.grad(out, asked, d_out)
        known = {**tensors, "out": out, "lse": lse, "d_out": d_out}
        known |= {f"d{each}": gradient for each, gradient in zip(wanted, gradients, strict=True)}
        seen.append((named(handed, known), [each.stride() for each in gradients]))
    assert replays == [1]
    assert seen[0][0] and all(each == seen[0] for each in seen)


def varlen(module: ModuleType, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    out: torch.Tensor = module.attention_varlen(**tensors, max_seqlen_q=50, max_seqlen_k=50)
    return out


def paged(module: ModuleType, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    out: torch.Tensor = module.attention_paged(**tensors)
    return out


def packed_tensors() -> dict[str, torch.Tensor]:
    ends = torch.tensor([0, 30, 80], dtype=torch.int32)
    return {**dict(zip("qkv", qkv(80, 2, 64), strict=True)), "cu_seqlens_q": ends, "cu_seqlens_k": ends.clone()}


def paged_tensors() -> dict[str, torch.Tensor]:
    _, k_cache, v_cache = qkv(8, 16, 2, 64)
    table, lengths = torch.arange(8, dtype=torch.int32).view(2, 4), torch.tensor([40, 60], dtype=torch.int32)
    return {
        "q": torch.randn(2, 2, 64).bfloat16(), "k_cache": k_cache, "v_cache": v_cache, "block_table": table,
        "seq_lens": lengths,
    }  # fmt: skip


def few_tensors() -> dict[str, torch.Tensor]:
    q, (k, v, _) = torch.randn(1, 2, 1, 64).bfloat16(), qkv(1, 2, 600, 64)
    return {"q": q, "k": k, "v": v}


@pytest.mark.parametrize(
    ("make", "attend"),
    [
        (packed_tensors, varlen),
        (paged_tensors, paged),
        (few_tensors, lambda module, tensors: module.attention(**tensors)),
    ],
    ids=["varlen", "paged", "decode"],
)
def test_so_do_other_forms_of_attention(
    gallery_module: Modules, handed: Handed, replays: list[int], make: Any, attend: Any
) -> None:
    module, seen = gallery_module("causal"), []
    for _ in range(FIRST + 1):
        tensors = make()
        replays.clear()
        out = attend(module, tensors)
        seen.append((named(handed, {**tensors, "out": out}), out.stride()))
    assert replays == [1]
    assert seen[0][0] and all(each == seen[0] for each in seen)


def test_one_tensor_in_two_places_may_be_two_the_next_time(
    gallery_module: Modules, handed: Handed, replays: list[int]
) -> None:
    module = gallery_module("causal")
    q, k, v = qkv()
    for _ in range(FIRST):
        module.attention(q, q, q)
    handed.clear()
    module.attention(q, k, v)
    addresses = {leaf for leaf in leaves_of(handed) if isinstance(leaf, int)}
    assert len(replays) == 2 and {q.data_ptr(), k.data_ptr(), v.data_ptr()} <= addresses


@pytest.mark.parametrize(
    "other",
    [
        lambda q, k, v: ((q[..., :40, :], k, v), {}),
        lambda q, k, v: ((q.transpose(1, 2).contiguous().transpose(1, 2), k, v), {}),
        lambda q, k, v: ((q.half(), k.half(), v.half()), {}),
        lambda q, k, v: ((q, k, v), {"scale": 0.5}),
        lambda q, k, v: ((q, k, v), {"return_max": True}),
        lambda q, k, v: ((q, k, v), {"config": "BM=64 BN=64 num_warps=4 num_stages=2"}),
    ],
    ids=["length", "strides", "dtype", "scale", "another output", "config"],
)
def test_a_call_that_is_not_alike_is_no_replay(
    gallery_module: Modules, handed: Handed, replays: list[int], other: Any
) -> None:
    module, tensors = gallery_module("causal"), qkv()
    for _ in range(FIRST):
        module.attention(*tensors)
    assert replays.pop() == 1
    strange, keywords = other(*tensors)
    module.attention(*strange, **keywords)
    assert not replays
    module.attention(*tensors)
    assert replays


def test_calls_with_zeros_of_other_signs_are_not_alike(handed: Handed) -> None:
    calls = [repeated(print, (x, zero)) for x in qkv()[:1] for zero in (0.0, -0.0, 0.0)]
    assert calls[0] is calls[2] is not calls[1]


def test_torchs_wish_for_determinism_counts_at_each_backward_pass(
    gallery_module: Modules, handed: Handed, replays: list[int]
) -> None:
    module, tensors = gallery_module("causal"), qkv(grad=True)

    def launches() -> int:
        out = module.attention(*tensors)
        handed.clear()
        torch.autograd.grad(out, tensors, torch.ones_like(out))
        return len(handed)

    fused = [launches() for _ in range(FIRST + 1)]
    torch.use_deterministic_algorithms(True)
    try:
        # dq by a kernel of its own instead of sums that are brought into order.
        apart = [launches() for _ in range(FIRST + 1)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert len({*fused}) == len({*apart}) == 1
    assert named_kernels(module, tensors, deterministic=True) != named_kernels(module, tensors, deterministic=False)


def named_kernels(module: ModuleType, tensors: list[torch.Tensor], deterministic: bool) -> list[str]:
    """The kernels of a backward pass."""
    names: list[str] = []
    out = module.attention(*tensors, deterministic=deterministic)
    with replaced(lambda kernel, *_: names.append(kernel.__name__)):
        torch.autograd.grad(out, tensors, torch.ones_like(out))
    return names


def test_who_replaces_launches_hears_of_all(gallery_module: Modules, handed: Handed) -> None:
    module, tensors, heard = gallery_module("causal"), qkv(), []
    for _ in range(FIRST):
        module.attention(*tensors)
    with replaced(lambda kernel, *_: heard.append(kernel.__name__)):
        module.attention(*tensors)
    assert heard == ["_forward_sm90"]


def test_hooks_of_triton_are_called(
    gallery_module: Modules, handed: Handed, replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, tensors = gallery_module("causal"), qkv()
    for _ in range(FIRST):
        module.attention(*tensors)
    assert len(replays) == 1
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", SimpleNamespace(calls=[print]))
    with pytest.raises(AttributeError):  # the kernel is launched by Triton, which here is none
        module.attention(*tensors)
    assert len(replays) == 1


def test_forgotten_configs_are_looked_up_again(gallery_module: Modules, handed: Handed, replays: list[int]) -> None:
    module, tensors = gallery_module("causal"), qkv()
    for _ in range(FIRST):
        module.attention(*tensors)
    forget()
    module.attention(*tensors)
    assert len(replays) == 1


def test_a_capture_of_a_graph_has_a_counter_of_its_own(
    gallery_module: Modules, handed: Handed, replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, tensors = gallery_module("causal"), qkv()
    counted = "counter_ptr" in module.VARIANT.takes_of["forward_sm90"]
    for _ in range(FIRST):
        module.attention(*tensors)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    module.attention(*tensors)
    assert len(replays) == (1 if counted else 2)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, nullcontext])
def test_results_are_what_the_mode_makes_them(gallery_module: Modules, handed: Handed, mode: Any) -> None:
    module, tensors = gallery_module("causal"), qkv(grad=True)
    with mode():
        found = [module.attention(*tensors) for _ in range(FIRST + 1)]
    kinds = {(out.requires_grad, out.is_inference()) for out in found}
    assert kinds == {(mode is nullcontext, mode is torch.inference_mode)}


def test_modes_of_torch_hear_of_replayed_calls(gallery_module: Modules, handed: Handed) -> None:
    module, tensors, heard = gallery_module("causal"), qkv(), []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            heard.append(func)
            return func(*args, **(kwargs or {}))

    for _ in range(FIRST):
        module.attention(*tensors)
    with Watch():
        module.attention(*tensors)
    assert module.OPERATOR.overload in heard


def test_what_is_saved_elsewhere_is_read_where_it_comes_back(gallery_module: Modules, handed: Handed) -> None:
    module, tensors = gallery_module("causal"), qkv(grad=True)
    came_back: list[torch.Tensor] = []

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        came_back.append(tensor.clone())
        return came_back[-1]

    for _ in range(FIRST + 1):
        came_back.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, moved):
            out = module.attention(*tensors)
        handed.clear()
        torch.autograd.grad(out, tensors, torch.ones_like(out))
        addresses = {leaf for leaf in leaves_of(handed) if isinstance(leaf, int)}
        assert {tensor.data_ptr() for tensor in came_back} <= addresses


def kernel() -> Any:
    return SimpleNamespace(pre_run_hooks=[], __name__="_kernel")


def test_what_is_written_down_says_where_tensors_lie() -> None:
    x = torch.zeros(2, 3, 4)
    with Tracer([x]) as tracer:
        rows = x.new_empty((2, 8))
        one, other = rows[1].split([2, 6])
        tracer.launched(kernel(), object(), 3, (x[1], one, other, 7, None))
        results = tracer.results([rows.t()])
    (launch,) = tracer.launches
    places = (Place(GIVEN, 0, 48), Place(MADE, 0, 32), Place(MADE, 0, 40))
    assert not tracer.refused and launch == Launch(launch.kernel, launch.compiled, 3, (*places, 7, None))
    assert results == [Result(0, ((8, 2), (1, 8), 0))] and tracer.buffers[0].shape == (2, 8)


@pytest.mark.parametrize(
    ("does", "why"),
    [
        (lambda x, seen: seen(x + 1), "it calls aten.add"),
        (lambda x, seen: x.new_empty(3).fill_(1), "it calls aten.fill_"),
        (lambda x, seen: seen(SOMEWHERE), "a kernel reads a tensor of unknown origin"),
        (lambda x, seen: SOMEWHERE[0], "it takes a part of a tensor of unknown origin"),
    ],
)
def test_what_cannot_be_repeated_is_refused(does: Any, why: str) -> None:
    x = torch.zeros(3)
    with Tracer([x]) as tracer:
        does(x, lambda tensor: tracer.launched(kernel(), object(), 1, (tensor,)))
    assert tracer.refused.startswith(why) and not tracer.later


SOMEWHERE = torch.zeros(3)


def test_a_pass_may_only_return_what_it_makes() -> None:
    x = torch.zeros(3)
    with Tracer([x]) as tracer:
        tracer.results([x])
    assert tracer.refused == "it returns a tensor that it has not made"
