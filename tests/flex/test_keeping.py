"""What mods keep of what they make, for later or for other code: a trace leaves nothing in it, and ends nothing."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flex_beside_torch import by_torch

from flashgen.flex import flex_attention

LENGTH, HEADS = 24, 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def made(count: int) -> torch.Tensor:
    return torch.arange(LENGTH, device=DEVICE) * (1.0 / count)


class Once:
    """One that has nothing but what it keeps."""

    @functools.cached_property
    def table(self) -> torch.Tensor:
        return made(3)


class Kept:
    @functools.cache  # noqa: B019
    def by_method(self, count: int) -> torch.Tensor:
        return made(count)

    @staticmethod
    @functools.cache
    def by_static(count: int) -> torch.Tensor:
        return made(count)


class Missing(dict[int, torch.Tensor]):
    def __missing__(self, count: int) -> torch.Tensor:
        return self.setdefault(count, made(count))


by_function = functools.cache(made)
by_property, by_method, by_static = Once(), Kept(), Kept()
by_mapping: dict[str, torch.Tensor] = {}
by_subclass, by_attribute = Missing(), SimpleNamespace()


@functools.cache
def by_recursion(count: int) -> torch.Tensor:
    return made(3) if count == 1 else by_recursion(count - 1) * 0.5


def mapped() -> torch.Tensor:
    if "table" not in by_mapping:
        by_mapping["table"] = made(3)
    return by_mapping["table"]


def of_attribute() -> torch.Tensor:
    if not hasattr(by_attribute, "table"):
        by_attribute.table = made(3)
    return by_attribute.table


# How a mod gets to a table that is made at the first call alone.
WAYS: dict[str, Callable[[], torch.Tensor]] = {
    "function": lambda: by_function(3),
    "recursion": lambda: by_recursion(3),
    "property": lambda: by_property.table,
    "method": lambda: by_method.by_method(3),
    "static method": lambda: by_static.by_static(3),
    "mapping": mapped,
    "kind of mapping": lambda: by_subclass[3],
    "attribute": of_attribute,
}


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, HEADS, LENGTH, 16, generator=generator).to(DEVICE) for _ in range(3)]


def is_right(score: Any) -> None:
    q, k, v = inputs()
    found = flex_attention(q, k, v, score)
    expected = by_torch(score, None)(q.double(), k.double(), v.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_table_that_is_made_once_is_that_before_and_after(way: str) -> None:
    def score_mod(score, b, h, q, k):
        return score + WAYS[way]()[k]

    is_right(score_mod)
    # By now torch's own has been here, and has kept it.
    kept = WAYS[way]()
    is_right(score_mod)
    factor = 0.25 if way == "recursion" else 1.0
    torch.testing.assert_close(kept, made(3) * factor)


def test_what_a_cached_function_reads_has_gradients() -> None:
    weight = torch.linspace(-1, 1, HEADS, device=DEVICE).requires_grad_()

    @functools.cache
    def doubled(count: int) -> torch.Tensor:
        return weight * count

    def score_mod(score, b, h, q, k):
        return score + doubled(2)[h] * k

    q, k, v = inputs()
    d_out = torch.ones_like(q)
    (found,) = torch.autograd.grad(flex_attention(q, k, v, score_mod), weight, d_out * v)
    wanted = by_torch(score_mod, None)(q.double(), k.double(), v.double())
    (expected,) = torch.autograd.grad(wanted, weight, (d_out * v).double())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_an_object_with_an_end_does_not_end_with_a_trace() -> None:
    class Ends:
        def __init__(self) -> None:
            self.slopes, self.opened = torch.ones(HEADS, device=DEVICE), ["a file"]

        def __del__(self) -> None:
            self.opened.clear()

        def mod(self, score, b, h, q, k):
            return score + self.slopes[h] * k

    ends = Ends()
    is_right(ends.mod)
    assert ends.opened


def test_a_module_that_has_the_mod_that_reads_it_goes_with_it() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.ones(HEADS, device=DEVICE))
            self.score_mod = lambda score, b, h, q, k: score + self.bias[h] * k

    layer = Layer()
    for _ in range(2):
        is_right(layer.score_mod)
    gone = weakref.ref(layer)
    del layer
    gc.collect()
    assert gone() is None
