"""Where a call must go through torch's dispatcher, and that it does there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import pytest
import torch
from attending import CONFIG, DEVICE
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from flashgen.runtime.dispatch import is_direct, records

PLAIN = torch.randn(1, 2, 4, 16, device=DEVICE)


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


@contextmanager
def below_autograd() -> Iterator[None]:
    with torch._C._AutoDispatchBelowAutograd():
        yield


CALM = {
    "nothing": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast(DEVICE),
    "below autograd": below_autograd,
}
BUSY = {
    "a dispatch mode": Dispatched,
    "a function mode": Called,
    "a default device": lambda: torch.device(DEVICE),
    "fake tensors": lambda: FakeTensorMode(allow_non_fake_inputs=True),
    "the profiler": torch.profiler.profile,
    "forward-mode derivatives": torch.autograd.forward_ad.dual_level,
}
STRANGE = {
    "a subclass": lambda: PLAIN.as_subclass(Subclass),
    "fake": lambda: FakeTensorMode().from_tensor(PLAIN),
    "meta": lambda: PLAIN.to("meta"),
    "negated lazily": lambda: torch.zeros(2, dtype=torch.complex64).conj().imag,
    "functional": lambda: torch._to_functional_tensor(PLAIN),
    "zeros without memory": lambda: torch._efficientzerotensor(2, device=DEVICE),
    "out of a transform": lambda: escaped(),
}


def escaped() -> torch.Tensor:
    """What a transform of torch.func gave its function, after it has returned."""
    seen: list[torch.Tensor] = []
    torch.func.grad(lambda x: [seen.append(x), x.sum()][1])(PLAIN)
    return seen[0]


@pytest.mark.parametrize("state", CALM)
def test_where_nothing_listens_a_call_is_direct(state: str) -> None:
    with CALM[state]():
        assert is_direct([PLAIN, None, 0.5, torch.nn.Parameter(PLAIN), PLAIN.transpose(1, 2)])
    assert is_direct([PLAIN])


@pytest.mark.parametrize("state", BUSY)
def test_modes_hear_of_every_call(state: str) -> None:
    with BUSY[state]():
        assert not is_direct([PLAIN])
    assert is_direct([PLAIN])


@pytest.mark.parametrize("kind", STRANGE)
def test_tensors_with_a_will_of_their_own_are_dispatched(kind: str) -> None:
    assert not is_direct([PLAIN, STRANGE[kind]()])


def test_transforms_and_tracers_hear_of_every_call() -> None:
    heard = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        heard.append(is_direct([x]))
        return x.sum()

    torch.func.vmap(layer)(PLAIN)
    torch.func.grad(layer)(PLAIN)
    make_fx(layer)(PLAIN)
    assert heard == [False] * 3


def test_autograd_records_what_asks_for_it() -> None:
    asking = PLAIN.clone().requires_grad_()
    assert records([None, asking]) and not records([None, PLAIN])
    for silent in (torch.no_grad, torch.inference_mode, below_autograd):
        with silent():
            assert not records([asking])


def test_a_mode_sees_the_operator(gallery_module: Callable[[str], ModuleType]) -> None:
    module, seen = gallery_module("causal"), []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    direct = module.attention(PLAIN, PLAIN, PLAIN, config=CONFIG)
    with Watch():
        assert torch.equal(module.attention(PLAIN, PLAIN, PLAIN, config=CONFIG), direct)
    assert module.OPERATOR.overload in seen


def test_the_profiler_sees_the_operator(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("causal")
    with torch.profiler.profile() as profile:
        module.attention(PLAIN, PLAIN, PLAIN, config=CONFIG)
    assert module.OPERATOR.overload.name() in {event.key for event in profile.key_averages()}


def test_fake_tensors_stay_fake(gallery_module: Callable[[str], ModuleType]) -> None:
    with FakeTensorMode() as mode:
        q = mode.from_tensor(PLAIN)
        out, lse = gallery_module("alibi").attention(q, q, q, return_lse=True)
    assert (out.shape, lse.shape, out.device) == (PLAIN.shape, PLAIN.shape[:3], PLAIN.device)
    assert type(out) is not torch.Tensor
    real = gallery_module("alibi").attention(PLAIN, PLAIN, PLAIN, config=CONFIG)
    assert type(real) is torch.Tensor


def test_what_is_sharded_is_taken_as_local_map_hands_it_over(gallery_module: Callable[[str], ModuleType]) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.experimental import local_map

    attention = gallery_module("causal").attention
    whole = attention(PLAIN, PLAIN, PLAIN, config=CONFIG)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        q = distribute_tensor(PLAIN, init_device_mesh(DEVICE, (1,)), [Shard(1)])
        with pytest.raises(
            NotImplementedError, match=r"takes no DTensor; expected each process's own tensors, .*local_map"
        ):
            attention(q, q, q, config=CONFIG)
        heads = ([Shard(1)],)
        sharded = local_map(
            lambda *given: attention(*given, config=CONFIG), out_placements=heads[0], in_placements=heads * 3
        )
        assert torch.equal(sharded(q, q, q).full_tensor(), whole)
    finally:
        torch.distributed.destroy_process_group()
