"""Calls in programs of torch.export, with lengths and numbers that torch traces as symbols."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from attending import DEVICE

Modules = Callable[[str], ModuleType]
AUTO = torch.export.Dim.AUTO  # type: ignore[attr-defined]
TRACERS = pytest.mark.parametrize("strict", [True, False])


class Layer(torch.nn.Module):
    """A function as a module, which is what torch.export takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def ends_of(*lengths: int) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0, dtype=torch.int32)


@TRACERS
@pytest.mark.parametrize("name", ["causal", "document"])
def test_the_longest_lengths_are_numbers_of_the_call(gallery_module: Modules, name: str, strict: bool) -> None:
    module = gallery_module(name)

    def layer(q: torch.Tensor, k: torch.Tensor, doc: torch.Tensor, ends: torch.Tensor, longest: int) -> Any:
        inputs = {"doc": doc} if name == "document" else {}
        return module.attention_varlen(q, k, k, ends, ends, longest, longest, **inputs)

    def arguments(*lengths: int) -> tuple[Any, ...]:
        total = sum(lengths)
        q, k = (torch.randn(total, heads, 16, device=DEVICE) for heads in (4, 2))
        return q, k, torch.arange(total, device=DEVICE, dtype=torch.int32) // 7, ends_of(*lengths), max(lengths)

    shapes = {"arguments": (*({0: AUTO},) * 4, AUTO)}
    program = torch.export.export(Layer(layer), arguments(13, 7), dynamic_shapes=shapes, strict=strict).module()
    for lengths in ((13, 7), (5, 11, 9)):
        given = arguments(*lengths)
        torch.testing.assert_close(program(*given), layer(*given))


@TRACERS
def test_a_param_follows_from_a_length(gallery_module: Modules, strict: bool) -> None:
    module = gallery_module("prefix_lm")

    def layer(q: torch.Tensor) -> Any:
        return module.attention(q, q, q, prefix=q.shape[2] // 3)

    shapes = {"arguments": ({2: AUTO},)}
    q, longer = (torch.randn(1, 2, length, 16, device=DEVICE) for length in (20, 33))
    program = torch.export.export(Layer(layer), (q,), dynamic_shapes=shapes, strict=strict).module()
    for given in (q, longer):
        torch.testing.assert_close(program(given), layer(given))


def test_a_scale_follows_from_a_length(gallery_module: Modules) -> None:
    """Floats are compiled for each value: the program is for that length."""
    module = gallery_module("causal")

    def layer(q: torch.Tensor) -> Any:
        return module.attention(q, q, q, scale=1 / q.shape[2])

    q = torch.randn(1, 2, 20, 16, device=DEVICE)
    program = torch.export.export(Layer(layer), (q,), dynamic_shapes={"arguments": ({2: AUTO},)}).module()
    torch.testing.assert_close(program(q), layer(q))


@TRACERS
def test_the_longest_lengths_of_a_paged_call_come_from_its_tensors(gallery_module: Modules, strict: bool) -> None:
    module = gallery_module("causal")

    def layer(*tensors: torch.Tensor) -> Any:
        q, cache, table, lengths, ends = tensors
        longest = {"max_seqlen_q": ends.diff().max().item(), "max_seqlen_k": lengths.max().item()}
        return module.attention_paged(q, cache, cache, table, lengths, cu_seqlens_q=ends, **longest)

    table, lengths = (torch.tensor(x, device=DEVICE, dtype=torch.int32) for x in ([[0, 1], [2, 3]], [20, 9]))
    q, cache = torch.randn(8, 4, 16, device=DEVICE), torch.randn(4, 16, 2, 16, device=DEVICE)
    given = (q, cache, table, lengths, ends_of(3, 5))
    program = torch.export.export(Layer(layer), given, strict=strict).module()
    torch.testing.assert_close(program(*given), layer(*given))


@TRACERS
@pytest.mark.parametrize("form", ["attention", "attention_varlen", "attention_paged"])
def test_dimensions_with_names_and_no_bounds_are_any(gallery_module: Modules, form: str, strict: bool) -> None:
    """A named one must hold for all that it could be, where AUTO takes what the program is good for."""
    module = gallery_module("causal")

    def layer(q: torch.Tensor, *others: torch.Tensor) -> Any:
        if form == "attention":
            return module.attention(q, *others, *others)
        if form == "attention_varlen":
            return module.attention_varlen(q, q, q, *others, *others, 9, 9)
        cache, *lengths = others
        return module.attention_paged(q, cache, cache, *lengths)

    def arguments(batch: int) -> tuple[torch.Tensor, ...]:
        if form == "attention":
            return tuple(torch.randn(batch, 2, length, 16, device=DEVICE) for length in (batch + 3, 3 * batch))
        if form == "attention_varlen":
            return torch.randn(4 * batch, 2, 16, device=DEVICE), ends_of(*(4,) * batch)
        q, cache = torch.randn(batch, 2, 16, device=DEVICE), torch.randn(batch**2, 16, 2, 16, device=DEVICE)
        table = torch.arange(batch**2, device=DEVICE, dtype=torch.int32).view(batch, batch)
        return q, cache, table, torch.full((batch,), 19, device=DEVICE, dtype=torch.int32)

    named = [torch.export.Dim(f"size_{place}") for place in range(3)]
    shapes: Any = {
        "attention": ({0: named[0], 2: named[1]}, {0: named[0], 2: named[2]}),
        "attention_varlen": ({0: named[0]}, {0: named[1]}),
        "attention_paged": ({0: named[0]}, {0: named[1]}, {0: named[0], 1: named[2]}, {0: named[0]}),
    }[form]
    exported = torch.export.export(Layer(layer), arguments(2), dynamic_shapes={"arguments": shapes}, strict=strict)
    for batch in (2, 5):
        given = arguments(batch)
        torch.testing.assert_close(exported.module()(*given), layer(*given))
