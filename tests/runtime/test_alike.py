"""Calls are found again that are alike in all that counts, wherever their tensors lie, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from flashgen.runtime.alike import answer_of_last, forget_last, remember_last


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    forget_last()
    yield
    forget_last()


def tensor(*shape: int, **how: Any) -> torch.Tensor:
    return torch.zeros(shape or (2, 8, 16), **how)


def call(**other: Any) -> list[Any]:
    given = {"q": tensor(), "k": tensor(2, 4, 16), "scale": 0.5, "lse": True, "config": None, "needs": [True, False]}
    return [*{**given, **other}.values()]


def test_a_call_with_other_tensors_that_lie_alike_is_found() -> None:
    remember_last("attention", call(), "found")
    assert answer_of_last("attention", call(q=torch.ones(2, 8, 16))) == "found"
    assert answer_of_last("another", call()) is None


def odd(q: torch.Tensor, behind: int = 1) -> torch.Tensor:
    """The same, so many numbers of 4 bytes behind a multiple of 16."""
    room = torch.zeros(q.numel() + behind)
    assert room.data_ptr() % 16 == 0
    return room[behind:].view_as(q)


@pytest.mark.parametrize(
    "other",
    [
        lambda: {"q": tensor(2, 9, 16)},
        lambda: {"q": tensor(2, 16, 8).transpose(1, 2)},
        lambda: {"q": tensor(16, 16)},
        lambda: {"q": tensor(dtype=torch.float16)},
        lambda: {"q": tensor(requires_grad=True)},
        lambda: {"q": torch.nn.Parameter(tensor(), requires_grad=False)},
        lambda: {"q": torch._neg_view(tensor())},
        lambda: {"q": odd(tensor())},
        lambda: {"q": None},
        lambda: {"config": tensor()},
        lambda: {"scale": 0.25},
        lambda: {"scale": None},
        lambda: {"lse": False},
        lambda: {"lse": 1},
        lambda: {"config": "BM=64"},
        lambda: {"needs": [True, True]},
        lambda: {"needs": (True, False)},
    ],
    ids=[
        "length", "strides", "rank", "dtype", "gradient", "class", "negated", "odd address", "no tensor",
        "one tensor more", "number", "no number", "flag", "a number for a flag", "text", "list", "tuple for a list",
    ],
)  # fmt: skip
def test_what_differs_is_not_alike(other: Callable[[], dict[str, Any]]) -> None:
    remember_last("attention", call(), "found")
    assert answer_of_last("attention", call(**other())) is None
    assert answer_of_last("attention", call()) == "found"


def test_what_is_made_in_inference_mode_is_not_alike() -> None:
    with torch.inference_mode():
        made = call()
    remember_last("attention", call(), "found")
    assert answer_of_last("attention", made) is None


def test_one_tensor_twice_is_alike_where_it_is_one_again() -> None:
    one = tensor(2, 4, 16)
    remember_last("attention", call(q=one, k=one), "one")
    another = tensor(2, 4, 16)
    assert answer_of_last("attention", call(q=another, k=another)) == "one"
    assert answer_of_last("attention", call(q=another, k=one)) is None
    remember_last("attention", call(q=another, k=one), "two")
    assert answer_of_last("attention", call(q=one, k=another)) == "two"
    assert answer_of_last("attention", call(q=one, k=one)) == "one"


def test_zeros_are_left_to_others() -> None:
    for scale in (0.0, -0.0):
        remember_last("attention", call(scale=scale), "found")
        assert answer_of_last("attention", call(scale=scale)) is None


def test_odd_addresses_are_alike_where_they_are_as_odd() -> None:
    """As `mask[..., 1]` of a mask with one query: its memory begins behind that of `mask[..., 0]`."""
    remember_last("attention", call(q=odd(tensor())), "found")
    assert answer_of_last("attention", call(q=odd(tensor()))) == "found"
    for other in ({}, {"q": odd(tensor(), 2)}, {"q": odd(tensor()), "k": odd(tensor(2, 4, 16))}):
        assert answer_of_last("attention", call(**other)) is None


def test_a_list_is_kept_as_it_was() -> None:
    needs = [True, False]
    remember_last("attention", call(needs=needs), "found")
    needs[1] = True
    assert answer_of_last("attention", call(needs=needs)) is None
    assert answer_of_last("attention", call()) == "found"


def test_few_kinds_of_calls_are_kept_whose_first_tensors_have_one_shape() -> None:
    for length in range(1, 7):
        remember_last("attention", call(k=tensor(2, length, 16)), length)
        remember_last("attention", call(q=tensor(2, length, 16)), length)
    kept = [answer_of_last("attention", call(k=tensor(2, length, 16))) for length in range(1, 7)]
    assert kept == [None, None, 3, 4, 5, 6]
    kept = [answer_of_last("attention", call(q=tensor(2, length, 16))) for length in range(1, 7)]
    assert kept == [1, 2, 3, 4, 5, 6]
