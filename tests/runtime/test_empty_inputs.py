"""Inputs of which sizes and params leave no element: none is read, and where one would have to be, the call says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.spec import load

BIAS = {"shape": ["heads", "kv_len // 64"], "dtype": "float32", "grad": True}
TABLE = {"shape": ["size", "2 * size - 3"], "dtype": "float32"}
PARTS = {"shape": ["batch", "kv_len", "r"], "dtype": "float32"}
SUM = "score + sum(i, r, x[b, k, i] * y[b, k, i])"
Build = Callable[[dict[str, Any]], ModuleType]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return lambda spec: load_module(generate(load({"name": "empty", **spec}), tmp_path))


def qkv(kv_len: int, *, packed: bool = False) -> list[torch.Tensor]:
    shapes = [(2, 5, 16), (2, kv_len, 16), (2, kv_len, 16)]
    drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(7)) for shape in shapes]
    return [each.transpose(0, 1) if packed else each[None] for each in drawn]


def test_a_table_by_blocks_of_which_there_is_none(build: Build) -> None:
    module = build({"inputs": {"bias": BIAS}, "score": "score + bias[h, k // 64]"})
    message = r"^bias has kv_len // 64 = 0 in its shape here, so that it has no element; expected at least 1: "
    with pytest.raises(ValueError, match=message):
        module.attention(*qkv(40), bias=torch.ones(2, 0))
    # Nothing is read of it where there are no keys.
    assert not module.attention(*qkv(0), bias=torch.ones(2, 0)).any()


def test_a_packed_sequence_too_short_for_one_reads_the_first_of_the_longest(build: Build) -> None:
    module = build({"inputs": {"bias": BIAS}, "score": "score * bias[h, k // 64]"})
    q, k, v = qkv(170, packed=True)
    ends = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 40, 170], dtype=torch.int32)
    bias = torch.tensor([[2.0, 3.0], [0.5, 0.1]])
    out = module.attention_varlen(q, k, v, *ends, 3, 130, bias=bias)
    for rows, keys, own in ((slice(0, 2), slice(0, 40), bias[:, :1]), (slice(2, 5), slice(40, 170), bias)):
        q_, k_, v_ = (each[part].transpose(0, 1)[None] for each, part in ((q, rows), (k, keys), (v, keys)))
        factors = own[:, torch.arange(k_.shape[2]).div(64, rounding_mode="floor").clamp(max=own.shape[1] - 1)]
        weights = torch.softmax(q_ @ k_.transpose(2, 3) / 4 * factors[:, None], -1)
        torch.testing.assert_close(out[rows].transpose(0, 1)[None], weights @ v_)


@pytest.mark.parametrize("sequences", [0, 1])
def test_rows_of_no_sequence_read_no_block_mask(build: Build, sequences: int) -> None:
    module = build({"block_sparse": {"block_q": 16, "block_kv": 16}})
    ends = torch.zeros(1, dtype=torch.int32)
    blocks = torch.ones(sequences, 2, 1, 1, dtype=torch.bool)
    out, lse = module.attention_varlen(*qkv(5, packed=True), ends, ends, 5, 5, block_mask=blocks, return_lse=True)
    assert not out.any() and bool((lse == -torch.inf).all())


@pytest.mark.parametrize(("size", "named"), [(0, "size = 0"), (1, r"2 \* size - 3 = -1")])
def test_a_table_of_a_runtime_param_that_leaves_none(build: Build, size: int, named: str) -> None:
    spec = {"params": {"size": {"value": 4, "runtime": True}}, "inputs": {"table": TABLE}, "align": "top_left"}
    module = build({**spec, "score": "score + table[q, k]"})
    with pytest.raises(ValueError, match=f"^table has {named} in its shape here"):
        module.attention(*qkv(40), table=torch.ones(size, 0), size=size)


def test_a_sum_of_no_terms_reads_none(build: Build) -> None:
    params = {"r": {"value": 4, "runtime": True}}
    module = build({"params": params, "inputs": {"x": PARTS, "y": PARTS}, "score": SUM})
    q, k, v = qkv(40)
    empty = {"x": torch.ones(1, 40, 0), "y": torch.ones(1, 40, 0), "r": 0}
    expected = torch.softmax(q @ k.transpose(2, 3) / 4, -1) @ v
    torch.testing.assert_close(module.attention(q, k, v, **empty), expected)
    torch.testing.assert_close(module.reference(q, k, v, **empty), expected)


def test_a_dimension_along_which_an_any_finds_nothing(build: Build) -> None:
    spans = {"spans": {"shape": ["batch", "n", 2], "dtype": "int32"}}
    module = build({"inputs": spans, "mask": "(k <= q) | any(i, n, (k >= spans[b, i, 0]) & (k < spans[b, i, 1]))"})
    none = torch.zeros(1, 0, 2, dtype=torch.int32)
    q, k, v = qkv(40)
    seen = torch.ones(5, 40, dtype=torch.bool).tril(35)
    expected = torch.softmax((q @ k.transpose(2, 3) / 4).where(seen, -torch.inf), -1) @ v
    torch.testing.assert_close(module.attention(q, k, v, spans=none), expected)
    torch.testing.assert_close(module.reference(q, k, v, spans=none), expected)
    packed = qkv(40, packed=True)
    ends = torch.tensor([0, 5], dtype=torch.int32), torch.tensor([0, 40], dtype=torch.int32)
    out = module.attention_varlen(*packed, *ends, 5, 40, spans=none)
    torch.testing.assert_close(out.transpose(0, 1)[None], expected)


@pytest.mark.parametrize("mask", ["any(i, n, t[b, i] == k)", "t[b, q % n] <= k"])
def test_a_dimension_that_has_to_have_an_element_says_so(build: Build, mask: str) -> None:
    # The first is read elsewhere too.
    module = build({"inputs": {"t": {"shape": ["batch", "n"], "dtype": "int32"}}, "mask": f"({mask}) | (t[b, 0] == q)"})
    with pytest.raises(ValueError, match=r"^t has shape \(1, 0\); expected \[batch, n\], here \(1, 1 or more\)$"):
        module.attention(*qkv(40), t=torch.ones(1, 0, dtype=torch.int32))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"x is NoneType; expected a torch.Tensor of shape \[size, 2 \* size - 3\] and dtype torch.float32"),
        (torch.ones(()), r"x has shape \(\); expected \[size, 2 \* size - 3\]"),
        (torch.ones(4), r"x has shape \(4,\); expected \[size, 2 \* size - 3\]"),
        (torch.ones(4, 5, 1), r"x has shape \(4, 5, 1\); expected \[size, 2 \* size - 3\]"),
    ],
)
def test_what_cannot_bind_its_dimensions_is_called_by_what_it_is(build: Build, given: Any, message: str) -> None:
    module = build({"inputs": {"x": TABLE}, "score": "score + x[q % size, k % size]"})
    with pytest.raises((TypeError, ValueError), match=message):
        module.attention(*qkv(20), x=given)
