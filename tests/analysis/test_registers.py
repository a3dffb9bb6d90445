"""Which built-in config a variant's forward pass has by what its scores take of registers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flashgen.analysis.facts import facts_of
from flashgen.analysis.registers import has_lookups
from flashgen.codegen import default_of, generate, load_module
from flashgen.spec.load import load

TABLE = {"table": {"shape": ["heads", 64], "dtype": "float32"}}
BIAS = {"bias": {"shape": ["heads", "q_len", "kv_len"], "dtype": "bfloat16"}}
DOCUMENTS = {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}}


def spec(score: str, **others: Any) -> Any:
    return load({"name": "scored", "causal": True, **others, "score": score})


@pytest.mark.parametrize(
    "score",
    [
        "score * (1 + 0.1 * sin(0.01 * (q - k)))", "score - log(1 + abs(q - k))", "score - log2(1.0 + score * score)",
        "score * erf(score)", "score * (1.0 + abs(q - k)) ** -0.5", "score * cos(score)", "score + tan(0.1 * score)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("masked", [False, True])
def test_long_functions_of_pairs_have_the_portable_kernel(score: str, masked: bool) -> None:
    documents = {"inputs": DOCUMENTS, "mask": "doc[b, q] == doc[b, k]"} if masked else {}
    variant = spec(score, align="top_left", **documents)
    assert facts_of(variant).has_long_functions
    for dtype, head_dim in (("bfloat16", 64), ("float16", 128)):
        for packed in (False, True):
            config = default_of(variant, "forward", packed)("sm_90", dtype, head_dim, head_dim)
            assert config.backend == "portable"


@pytest.mark.parametrize(
    ("score", "others"),
    [
        ("score + table[h, (q - k) % 64]", {"inputs": TABLE}),
        ("score + table[h, (q - k) // w % 64]", {"inputs": TABLE, "params": {"w": {"value": 7, "runtime": True}}}),
        ("score / (1 + 0.001 * (q - k))", {}),
        ("score + sigmoid(0.01 * (q - k))", {}),
    ],
)
def test_lookups_and_quotients_of_pairs_have_narrow_tiles(score: str, others: dict[str, Any]) -> None:
    variant = spec(score, **others)
    assert has_lookups(facts_of(variant).logits.pair)
    for head_dim in (64, 128):
        config = default_of(variant, "forward")("sm_90", "bfloat16", head_dim, head_dim)
        assert (config.backend, config.BM, config.BN) == ("hopper", 128, 64)
    # Without a mask registers suffice.
    unmasked = default_of(spec(score, **others, causal=False), "forward")("sm_90", "bfloat16", 128, 128)
    assert (unmasked.backend, unmasked.BN) == ("hopper", 128)


NEAR = "score + table[h, clamp(q - k, 0, 63)]"
PREFIX = {"mask": "(k < 1024) | (k <= q)"}


@pytest.mark.parametrize(
    ("score", "mask", "keys"),
    [
        (NEAR, {}, 128),
        (NEAR, {"causal": False}, 128),
        (NEAR, {"causal": False, **PREFIX}, 128),
        # Most tiles of a narrow window are mixed or near the diagonal, and so may be those of documents.
        (NEAR, {"causal": False, "window": {"left": 1023, "right": 0}}, 64),
        (NEAR, {"inputs": TABLE | DOCUMENTS, "mask": "doc[b, q] == doc[b, k]"}, 64),
        # Registers for a logarithm are taken from all tiles, however few of them read by pairs.
        ("score + table[h, min(floor(log(1 + abs(q - k)) * 9), 63)]", {}, 64),
        ("score + table[h, min(floor(log(1 + abs(q - k)) * 9), 63)]", {"causal": False}, 64),
    ],
)
def test_tables_that_most_tiles_read_at_one_place_have_wide_tiles(score: str, mask: dict[str, Any], keys: int) -> None:
    variant = spec(score, **({"inputs": TABLE} | mask))
    config = default_of(variant, "forward")("sm_90", "bfloat16", 128, 128)
    assert (config.backend, config.BM, config.BN) == ("hopper", 128, keys)


def test_quotients_of_keys_in_a_mask_have_narrow_tiles() -> None:
    width = {"w": {"value": 96, "runtime": True}}
    near = load({"name": "near", "params": width, "mask": "(abs(q // w - k // w) <= 8) & (abs(q % w - k % w) <= 8)"})
    config = default_of(near, "forward")("sm_90", "bfloat16", 128, 128)
    assert (config.backend, config.BM, config.BN) == ("hopper", 128, 64)
    # Those by a constant are shifts, or products.
    blocks = load({"name": "near", "mask": "abs(q // 128 - k // 128) % 3 == 1"})
    assert default_of(blocks, "forward")("sm_90", "bfloat16", 128, 128).BN == 128


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("score", "inputs"), [("score + bias[h, q, k]", BIAS), ("score + table[h, clamp(q - k, 0, 63)]", TABLE)]
)
def test_what_is_read_for_each_pair_leaves_registers_for_a_delay_in_narrow_tiles(
    score: str, inputs: dict, causal: bool
) -> None:
    default = default_of(spec(score, inputs=inputs, align="top_left", causal=causal), "backward_kv")
    assert default("sm_90", "bfloat16", 128, 128).axis("delay_dq") == 1
    assert default("sm_90", "bfloat16", 64, 64).axis("delay_dq") == 0


@pytest.mark.parametrize(
    ("score", "others"),
    [
        ("score", {}),
        ("30 * tanh(score / 30)", {}),
        ("score * exp(-0.001 * (q - k))", {}),
        ("score - sqrt(abs(q - k))", {}),
        ("score ** 2.0 + score", {}),
        # A product, and exp2.
        ("score ** 3.0 + score", {}),
        ("score * 2.0 ** (-0.001 * (q - k))", {}),
        # Of each key, and of each row, once.
        ("score + log(1.0 + k) + sin(1.0 * q)", {}),
        ("score + table[h, k % 64]", {"inputs": TABLE}),
        ("score + bias[h, q, k]", {"inputs": BIAS, "align": "top_left"}),
    ],
)
def test_others_have_wide_ones(score: str, others: dict[str, Any]) -> None:
    variant = spec(score, **others)
    assert not facts_of(variant).has_long_functions
    assert not has_lookups(facts_of(variant).logits.pair)
    config = default_of(variant, "forward")("sm_90", "bfloat16", 128, 128)
    assert (config.backend, config.BN) == ("hopper", 128)


def test_a_module_says_the_same(tmp_path: Path) -> None:
    variant = spec("score - log(1 + abs(q - k))")
    module = load_module(generate(variant, tmp_path))
    for packed, own in ((False, module.VARIANT), (True, module.VARLEN)):
        for sizes in (("sm_90", "bfloat16", 128, 128), ("sm_80", "float16", 64, 64), ("gfx942", "float32", 32, 32)):
            assert own.configs["forward"].default(*sizes) == default_of(variant, "forward", packed)(*sizes)
