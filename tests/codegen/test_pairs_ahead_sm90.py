"""What the Hopper forward kernel reads for each pair in rows: how much it loads a tile ahead, and that this fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from offline_compiler import Compile
from pair_biases import assert_fits, spec

from flashgen.analysis.facts import facts_of
from flashgen.codegen import default_of, generate
from flashgen.codegen.kernels.forward import forward_view
from flashgen.codegen.kernels.forward_sm90 import ForwardSm90View, forward_sm90_view
from flashgen.codegen.naming import mangled
from flashgen.spec import load

# Bytes a thread that may be spilled: with Triton 3.6, where it was measured, it is up to 52, with 3.9 up to 124.
FEW_BYTES = 124


def view_of(found: dict[str, Any]) -> ForwardSm90View:
    facts = facts_of(mangled(load(found)))
    return forward_sm90_view(facts, forward_view(facts).functions)


@pytest.mark.parametrize(
    ("dtypes", "loaded"),
    [
        (("int8",), 1),
        (("bfloat16",), 1),
        (("float16", "bfloat16"), 2),
        (("float32",), 1),
        (("float32", "int8"), 0),
        (("int64",), 0),
    ],
)
def test_as_much_is_loaded_ahead_as_registers_hold(dtypes: tuple[str, ...], loaded: int) -> None:
    ahead = view_of(spec(*dtypes)).pairs_ahead
    assert (len(ahead.loads) if ahead else 0) == loaded


@pytest.mark.parametrize(
    "score", ["score + rel[h, clamp(q - k, -8, 8) + 8]", "score + t0[h, k, q]", "score + t0[h, q, kv_len - 1 - k]"]
)
def test_what_does_not_lie_in_rows_is_read_by_each_pair(score: str) -> None:
    found = spec("bfloat16", score=score)
    found["inputs"]["rel"] = {"shape": ["heads", 17], "dtype": "float32"}
    found["inputs"] = {name: tensor for name, tensor in found["inputs"].items() if f"{name}[" in score}
    assert view_of(found).pairs_ahead is None


@pytest.mark.parametrize("score", ["", "score * t0[h, q, k]", "5.0 * tanh((score + t0[h, q, k]) / 5.0)"])
def test_full_tiles_have_a_function_of_what_was_loaded(score: str) -> None:
    view = view_of(spec("bfloat16", score=score))
    assert view.pairs_ahead is not None and view.score is not None
    assert view.pairs_ahead.score.name != view.score.name
    assert view.reads_k("mixed") and not view.reads_k("full")
    assert view.logits_of("mixed") != view.logits_of("full")


@pytest.mark.parametrize(("dtype", "BN"), [("bfloat16", 128), ("float32", 64)])
def test_wide_tiles_are_the_default_where_registers_suffice(dtype: str, BN: int) -> None:
    config = default_of(load(spec(dtype)), "forward")("sm_90", "bfloat16", 128, 128)
    assert config.BN == BN
    assert config.backend == "hopper"


@pytest.mark.matrix
@pytest.mark.parametrize(("dtype", "head_dim"), [("bfloat16", 128), ("float32", 128)])
def test_it_fits(dtype: str, head_dim: int, tmp_path: Path, compiled: Compile) -> None:
    assert_fits(dtype, "forward", head_dim, FEW_BYTES, tmp_path, compiled)


@pytest.mark.matrix
def test_rows_by_what_has_a_name_are_those_of_the_threads_that_load(tmp_path: Path, compiled: Compile) -> None:
    """Threads that load have other rows than those that hold the scores, also of what both compute of a row."""
    lets = {"group": "clamp((q * q) // 4 + off[b], 0, q_len - 1)"}
    found = spec("bfloat16", score="where(group > k, score + t0[h, group, k], score)", let=lets)
    found["inputs"]["off"] = {"shape": ["batch"], "dtype": "int32"}
    variant = load(found)
    assert view_of(found).pairs_ahead is not None
    config = default_of(variant, "forward")("sm_90", "bfloat16", 64, 64)
    assert compiled(generate(variant, tmp_path), "forward", "sm_90", "bfloat16", 64, 64, config).error is None
