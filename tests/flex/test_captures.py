"""What mods capture beside objects: numbers of Python, defaults, torch's own pages; and how long it lives."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flex_beside_torch import by_torch
from small_calls import DEVICE, LENGTH, inputs, is_right
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask

from flashgen.flex import flex_attention, kernels

# What Python does with these numbers no tensor does.
SCALES, count, shift = {1: 0.5, 2: 3.0}, 2, 0.3
BY_NUMBERS: dict[str, Callable[..., torch.Tensor]] = {
    "key": lambda score, b, h, q, k: score * SCALES[count],
    "key with a default": lambda score, b, h, q, k: score * SCALES.get(count, 9.0),
    "member": lambda score, b, h, q, k: score * (0.5 if count in {1, 7} else 2.0),
    "type": lambda score, b, h, q, k: score * (0.5 if isinstance(count, int) else 2.0),
    "power": lambda score, b, h, q, k: score * 2**-count,
    "numpy": lambda score, b, h, q, k: score * float(np.sqrt(count)) + float(np.asarray(shift)),
    "tests": lambda score, b, h, q, k: score * ((count > 0) + (count > 1)) + round(shift, 1),
}


@pytest.mark.parametrize("name", BY_NUMBERS)
def test_numbers_are_those_of_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_right(BY_NUMBERS[name])
    monkeypatch.setitem(globals(), "count", 1)
    monkeypatch.setitem(globals(), "shift", 0.71)
    is_right(BY_NUMBERS[name])


def test_another_number_by_a_name_in_the_code_builds_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    held = SimpleNamespace(width=2, least=[0])
    mask = lambda b, h, q, k: (q - k).abs() < getattr(held, "width", min(held.least))  # noqa: E731
    is_right(None, mask)
    monkeypatch.setattr(kernels, "meaning", None)
    held.width = 9
    is_right(None, mask)


def test_defaults_may_be_assigned_to() -> None:
    def mod(score, b, h, q, k, weight=2.0, *, above=True):
        return score + weight * k if above else score - weight * k

    for _ in range(2):
        is_right(mod)
    mod.__defaults__ = (3.0,)
    is_right(mod)
    mod.__kwdefaults__ = {"above": False}
    is_right(mod)


def test_what_mods_capture_goes_with_them() -> None:
    def made(table: torch.Tensor) -> Any:
        return lambda score, b, h, q, k, above=1: score + table[h] * above

    table = torch.zeros(2, device=DEVICE)
    mod, gone = made(table), weakref.ref(table)
    for _ in range(2):
        flex_attention(*inputs(), mod)
    del table, mod
    gc.collect()
    assert gone() is None


def test_a_tensor_whose_data_is_of_another_kind_is_read_anew() -> None:
    table = torch.randint(0, 5, (LENGTH,), device=DEVICE)

    def mask(b, h, q, k):
        return table[q] == table[k]

    is_right(None, mask)
    for dtype in (torch.float32, torch.int8):
        table.data = table.data.to(dtype)
        is_right(None, mask)


def test_mods_over_pages_of_torchs_own_read_its_tables() -> None:
    page, pages, lengths = 16, 8, torch.tensor([37, 5, 20], device=DEVICE)
    batch, room = len(lengths), 48
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(batch, 4, 1, 16, generator=generator).to(DEVICE)
    k, v = (torch.randn(batch, 2, room, 16, generator=generator).to(DEVICE) for _ in "kv")

    def score(score, b, h, q, k):
        return score + 0.1 * k * (h + 1)

    def seen(b, h, q, k):
        return k < lengths[b]

    blocks = create_block_mask(seen, batch, 1, 1, room, device=DEVICE, BLOCK_SIZE=page)
    expected = by_torch(score, seen)(q.double(), *(each.double().repeat_interleave(2, 1) for each in (k, v)))
    for order in ((2, 0, 1), (1, 2, 0)):
        table = PagedAttention(pages, page, batch, device=DEVICE)
        caches = [torch.zeros(1, 2, pages * page, 16, device=DEVICE) for _ in "kv"]
        for b in order:
            sequence, length = torch.tensor([b], device=DEVICE), int(lengths[b])
            table.reserve(sequence[0], lengths[b])
            places = torch.arange(length, device=DEVICE)[None]
            table.assign(sequence, places, *(each[b : b + 1, :, :length] for each in (k, v)), *caches)
        found = flex_attention(
            q, *caches, table.get_score_mod(score), table.convert_logical_block_mask(blocks), enable_gqa=True
        )
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
