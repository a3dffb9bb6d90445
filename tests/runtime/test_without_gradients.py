"""attention_paged has no gradients: it runs as if nobody asked for one, and says so to who does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType

import pytest
import torch

from flashgen.bench.unlaunched import is_repeated, unlaunched
from flashgen.problems.paged import make_batch

Attend = Callable[..., torch.Tensor]
NONE = r"^attention_paged has no gradients; expected attention or attention_varlen, or torch\.no_grad\(\)$"
NO_TANGENTS = r"_paged has no forward-mode derivative; expected tensors without tangents"
# One query a sequence, of 20 and of 30 keys.
Q, *CACHE = make_batch((20, 30)).arguments
HANDLES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "directly": nullcontext,
    "past a profiler": torch.profiler.profile,
}


@pytest.fixture
def attend(gallery_module: Callable[[str], ModuleType]) -> Attend:
    attention: Attend = gallery_module("causal").attention_paged
    return attention


@pytest.fixture
def trained() -> Iterator[torch.Tensor]:
    """Queries as those of a layer whose weights are trained."""
    yield Q.clone().requires_grad_()


@pytest.mark.parametrize("handled", HANDLES.values(), ids=HANDLES)
@pytest.mark.parametrize("with_out", [False, True], ids=["new", "out"])
def test_a_call_runs_and_its_backward_pass_is_refused(
    attend: Attend, trained: torch.Tensor, with_out: bool, handled: Callable[[], AbstractContextManager[object]]
) -> None:
    room = torch.empty_like(Q) if with_out else None
    wanted, wanted_lse = attend(Q, *CACHE, return_lse=True)
    for _ in range(2):
        with handled():
            out, lse = attend(trained, *CACHE, out=room, return_lse=True)
        assert torch.equal(out, wanted)
        assert torch.equal(lse, wanted_lse)
        for result in (out, lse):
            with pytest.raises(NotImplementedError, match=NONE):
                result.sum().backward()
    if room is not None:
        assert out.data_ptr() == room.data_ptr()
        assert not room.requires_grad, "a step's buffer would keep all steps before"


def test_results_may_be_written_to(attend: Attend, trained: torch.Tensor) -> None:
    """As serving code does that forgets no_grad."""
    for room in (None, torch.empty_like(Q)):
        torch.testing.assert_close(attend(trained, *CACHE, out=room).mul_(2).detach(), 2 * attend(Q, *CACHE))


def test_gradients_of_a_cache_and_of_inputs_are_refused(gallery_module: Callable[[str], ModuleType]) -> None:
    k_cache = CACHE[0].clone().requires_grad_()
    with pytest.raises(NotImplementedError, match=NONE):
        gallery_module("causal").attention_paged(Q, k_cache, *CACHE[1:]).sum().backward()
    sinks = torch.zeros(Q.shape[1], requires_grad=True)
    with pytest.raises(NotImplementedError, match=NONE):
        gallery_module("sink").attention_paged(Q, *CACHE, sinks=sinks).sum().backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_recorded_where_gradients_are_off(
    attend: Attend, trained: torch.Tensor, mode: Callable[[], AbstractContextManager[object]]
) -> None:
    room = torch.zeros_like(Q).requires_grad_()
    with mode():
        assert not attend(trained, *CACHE).requires_grad
        assert attend(trained, *CACHE, out=room) is room
    assert torch.equal(room, attend(Q, *CACHE))


@pytest.mark.parametrize("handled", HANDLES.values(), ids=HANDLES)
def test_an_out_that_requires_a_gradient_is_refused_and_not_written(
    attend: Attend, handled: Callable[[], AbstractContextManager[object]]
) -> None:
    room = torch.zeros_like(Q).requires_grad_()
    with handled(), pytest.raises(ValueError, match="out requires a gradient, and attention_paged has none"):
        attend(Q, *CACHE, out=room)
    assert not room.any()


@pytest.mark.skipif(torch.cuda.is_available(), reason="tensors of the CPU stand for those of a GPU")
@pytest.mark.parametrize("with_out", [False, True], ids=["new", "out"])
def test_calls_that_are_repeated_are_recorded_too(attend: Attend, trained: torch.Tensor, with_out: bool) -> None:
    room = torch.empty_like(Q) if with_out else None
    with unlaunched(lambda *_: None):
        for _ in range(6):
            out = attend(trained, *CACHE, out=room)
        assert is_repeated(lambda: attend(trained, *CACHE, out=room))
    with pytest.raises(NotImplementedError, match=NONE):
        out.sum().backward()


def test_torch_func_says_what_there_is_not(attend: Attend) -> None:
    def loss(q: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return attend(q, *CACHE, out=out).sum()

    for room in (None, torch.empty_like(Q)):
        with pytest.raises(NotImplementedError, match=NONE):
            torch.func.grad(loss)(Q, room)
    with pytest.raises(NotImplementedError, match=NO_TANGENTS):
        torch.func.jvp(loss, (Q,), (Q,))
    factor = torch.func.grad(lambda factor: factor * loss(Q))(torch.tensor(3.0))
    torch.testing.assert_close(factor, loss(Q))


def test_vmap_goes_one_element_after_another(attend: Attend) -> None:
    queries, lengths = torch.stack([Q, 2 * Q, -Q]), torch.stack([CACHE[-1] - less for less in range(3)])

    def step(q: torch.Tensor, seq_lens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(attend(q, *CACHE[:-1], seq_lens, return_lse=True))

    wanted = [torch.stack(each) for each in zip(*map(step, queries, lengths), strict=True)]
    found = torch.func.vmap(step, in_dims=(1, 0))(queries.transpose(0, 1), lengths)
    torch.testing.assert_close(found, tuple(wanted))
    found = torch.func.vmap(torch.func.vmap(step))(queries[None], lengths[None])
    torch.testing.assert_close(found, tuple(each[None] for each in wanted))


def test_vmap_refuses_gradients_and_an_out_by_name(attend: Attend) -> None:
    queries = torch.stack([Q, Q]).requires_grad_()
    mapped = torch.func.vmap(lambda q: attend(q, *CACHE))
    with pytest.raises(NotImplementedError, match=NONE):
        mapped(queries).sum().backward()
    with pytest.raises(NotImplementedError, match=NONE):
        torch.func.grad(lambda q: mapped(q).sum())(queries.detach())
    room = torch.zeros_like(Q)
    with pytest.raises(ValueError, match=r"out is given to attention_paged under torch\.func\.vmap; expected None"):
        torch.func.vmap(lambda q: attend(q, *CACHE, out=room))(queries.detach())
    assert not room.any()
