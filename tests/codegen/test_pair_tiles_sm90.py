"""What the Hopper kernel for dK and dV reads for each pair in rows: how much it loads by tiles, and that this fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from offline_compiler import Compile
from pair_biases import assert_fits, spec

from flashgen.analysis.facts import facts_of
from flashgen.codegen import generate
from flashgen.codegen.kernels.backward_kv_sm90 import BackwardKvSm90View, backward_kv_sm90_view
from flashgen.codegen.naming import mangled
from flashgen.spec import load

# Bytes a thread that may be spilled: with Triton 3.6, where it was measured, it is up to 332, with 3.9 up to 832.
FEW_BYTES = 840


def view_of(found: dict[str, Any]) -> BackwardKvSm90View:
    return backward_kv_sm90_view(facts_of(mangled(load(found))))


@pytest.mark.parametrize(
    ("dtypes", "by_tiles", "many_bytes"),
    [
        (("int8",), True, False),
        (("bfloat16",), True, False),
        (("float16", "int8"), True, True),
        (("float32",), True, True),
        (("float32", "int8"), False, False),
        (("int64",), False, False),
    ],
)
def test_as_much_is_loaded_by_tiles_as_registers_hold(
    dtypes: tuple[str, ...], by_tiles: bool, many_bytes: bool
) -> None:
    tiles = view_of(spec(*dtypes)).pair_tiles
    assert (tiles is not None) == by_tiles
    assert tiles is None or tiles.many_bytes == many_bytes


def test_wide_heads_load_each_pair() -> None:
    assert view_of(spec("bfloat16")).wide.pair_tiles is None


@pytest.mark.parametrize("score", ["", "score * t0[h, q, k]", "5.0 * tanh((score + t0[h, q, k]) / 5.0)"])
def test_a_full_tile_has_a_function_of_what_was_loaded(score: str) -> None:
    view = view_of(spec("bfloat16", score=score))
    assert view.pair_tiles is not None and view.score is not None
    assert view.pair_tiles.score.name != view.score.name
    assert "q" not in view.tile_reads("full") and "q" in view.tile_reads("mixed")
    assert view.logits_of("mixed") != view.logits_of("full")


def test_what_is_also_read_elsewhere_is_read_from_addresses_that_are_there(tmp_path: Path) -> None:
    """The same input at other places too, beside a mask that gives a part of their address a name."""
    elsewhere = "score + t0[h, q, k] + t0[k % 2, q, off[b]]"
    found = spec("float16", score=elsewhere, mask="doc[b, q] == doc[b, k]", align="top_left")
    found["inputs"] |= {
        "off": {"shape": ["batch"], "dtype": "int32"}, "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
    }  # fmt: skip
    assert view_of(found).pair_tiles is not None
    generate(load(found), tmp_path)  # which knows where every name comes from


@pytest.mark.matrix
@pytest.mark.parametrize(("dtype", "head_dim"), [("bfloat16", 64), ("float32", 128)])
def test_it_fits(dtype: str, head_dim: int, tmp_path: Path, compiled: Compile) -> None:
    assert_fits(dtype, "backward_kv", head_dim, FEW_BYTES, tmp_path, compiled)
