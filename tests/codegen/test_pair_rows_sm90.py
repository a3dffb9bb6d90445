"""What Hopper kernels read for each pair in rows: how much they load so, and that this fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from offline_compiler import Compile
from pair_biases import assert_fits, spec, with_mask

from flashgen.analysis.facts import facts_of
from flashgen.codegen import default_of, generate
from flashgen.codegen.kernels.backward_kv_sm90 import (
    BackwardKvSm90View,
    backward_kv_sm90_view,
    backward_kv_wide_sm90_view,
)
from flashgen.codegen.kernels.forward import forward_view
from flashgen.codegen.kernels.forward_sm90 import ForwardSm90View, forward_sm90_view
from flashgen.codegen.naming import mangled
from flashgen.spec import load

# Bytes a thread that may be spilled, by mask: of tiles of queries in bfloat16 and float32, and of tiles of keys. With
# Triton 3.6, where it was measured, it is up to 96 and 676.
MOST_SPILLED = {"": (124, 124, 920, 920), "k <= q": (410, 124, 1360, 1200), "pad[b, k]": (124, 124, 1010, 1040)}


def forward(found: dict[str, Any]) -> ForwardSm90View:
    facts = facts_of(mangled(load(found)))
    return forward_sm90_view(facts, forward_view(facts).functions)


def backward(found: dict[str, Any]) -> BackwardKvSm90View:
    return backward_kv_sm90_view(facts_of(mangled(load(found))))


@pytest.mark.parametrize(
    ("dtypes", "loaded", "many_bytes"),
    [
        (("int8",), 1, False),
        (("bfloat16",), 1, False),
        (("float16", "int8"), 2, True),
        (("float16", "bfloat16"), 2, True),
        (("float32",), 1, True),
        (("float32", "int8"), 0, False),
        (("int64",), 0, False),
    ],
)
def test_as_much_is_loaded_in_rows_as_registers_hold(dtypes: tuple[str, ...], loaded: int, many_bytes: bool) -> None:
    for view in (forward(spec(*dtypes)), backward(spec(*dtypes))):
        rows = view.pair_rows
        assert (len(rows.loads) if rows else 0) == loaded
        assert rows is None or rows.many_bytes == many_bytes


@pytest.mark.parametrize(
    "score", ["score + rel[h, clamp(q - k, -8, 8) + 8]", "score + t0[h, k, q]", "score + t0[h, q, kv_len - 1 - k]"]
)
def test_what_does_not_lie_in_rows_is_read_by_each_pair(score: str) -> None:
    found = spec("bfloat16", score=score)
    found["inputs"]["rel"] = {"shape": ["heads", 17], "dtype": "float32"}
    found["inputs"] = {name: tensor for name, tensor in found["inputs"].items() if f"{name}[" in score}
    assert forward(found).pair_rows is None and backward(found).pair_rows is None


@pytest.mark.parametrize("mask", ["", "k <= q", "pad[b, k]"])
@pytest.mark.parametrize("score", ["", "score * t0[h, q, k]", "5.0 * tanh((score + t0[h, q, k]) / 5.0)"])
def test_no_tile_needs_the_positions_of_its_pairs_to_read_for_them(score: str, mask: str) -> None:
    found = with_mask(spec("bfloat16", score=score), mask)
    view, by_key = forward(found), backward(found)
    assert view.score is not None and by_key.score is not None
    for kind in ("mixed", "full"):
        assert not view.reads_k(kind) and "q" not in by_key.tile_reads(kind)


def test_wide_heads_load_each_pair() -> None:
    facts = facts_of(mangled(load(spec("bfloat16"))))
    narrow = backward_kv_sm90_view(facts)
    wide = backward_kv_wide_sm90_view(facts, narrow, narrow.functions)
    assert wide.pair_rows is None and wide.score is not None and narrow.score is not None
    assert wide.score.name != narrow.score.name
    assert "q" in wide.tile_reads("full")


def test_what_is_also_read_elsewhere_is_read_from_addresses_that_are_there(tmp_path: Path) -> None:
    """The same input at other places too, beside a mask that gives a part of their address a name."""
    elsewhere = "score + t0[h, q, k] + t0[k % 2, q, off[b]]"
    found = spec("float16", score=elsewhere, mask="doc[b, q] == doc[b, k]", align="top_left")
    found["inputs"] |= {
        "off": {"shape": ["batch"], "dtype": "int32"}, "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
    }  # fmt: skip
    assert forward(found).pair_rows is not None and backward(found).pair_rows is not None
    generate(load(found), tmp_path)  # which knows where every name comes from


@pytest.mark.parametrize(("dtype", "BN"), [("bfloat16", 128), ("float32", 64)])
def test_wide_tiles_are_the_default_where_registers_suffice(dtype: str, BN: int) -> None:
    config = default_of(load(spec(dtype)), "forward")("sm_90", "bfloat16", 128, 128)
    assert config.BN == BN
    assert config.backend == "hopper"


@pytest.mark.matrix
@pytest.mark.parametrize("mask", MOST_SPILLED)
@pytest.mark.parametrize(
    ("case", "dtype", "family", "head_dim"),
    [
        (0, "bfloat16", "forward", 128),
        (1, "float32", "forward", 128),
        (2, "bfloat16", "backward_kv", 64),
        (3, "float32", "backward_kv", 128),
    ],
)
def test_it_fits(
    case: int, dtype: str, family: str, head_dim: int, mask: str, tmp_path: Path, compiled: Compile
) -> None:
    found = with_mask(spec(dtype), mask)
    assert_fits(found, family, head_dim, MOST_SPILLED[mask][case], tmp_path, compiled)


@pytest.mark.matrix
@pytest.mark.parametrize("family", ["forward", "backward_kv"])
def test_rows_by_what_has_a_name_are_those_of_the_threads_that_load(
    family: str, tmp_path: Path, compiled: Compile
) -> None:
    """Threads that load have other rows than those that hold the scores, also of what both compute of a row."""
    lets = {"group": "clamp((q * q) // 4 + off[b], 0, q_len - 1)"}
    found = spec("bfloat16", score="where(group > k, score + t0[h, group, k], score)", let=lets)
    found["inputs"]["off"] = {"shape": ["batch"], "dtype": "int32"}
    variant = load(found)
    assert forward(found).pair_rows is not None and backward(found).pair_rows is not None
    config = default_of(variant, family)("sm_90", "bfloat16", 64, 64)
    assert compiled(generate(variant, tmp_path), family, "sm_90", "bfloat16", 64, 64, config).error is None


@pytest.mark.matrix
@pytest.mark.parametrize("family", ["forward", "backward_kv"])
def test_a_row_may_be_one_that_a_sum_leads_to(family: str, tmp_path: Path, compiled: Compile) -> None:
    """What a loop adds up for each row stands before the row's address."""
    score = "score + t0[h, min(sum(i, 4, q // (i + 2)), q_len - 1), k]"
    variant = load(spec("bfloat16", score=score))
    config = default_of(variant, family)("sm_90", "bfloat16", 64, 64)
    assert compiled(generate(variant, tmp_path), family, "sm_90", "bfloat16", 64, 64, config).error is None
