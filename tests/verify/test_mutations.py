"""verify can fail: a kernel with one mistake is caught by the quick level, whatever the mistake."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from gallery import VARIANTS
from mutants import assert_caught, rendered
from packages import changed

from flashgen.codegen import uses_schedule, write_package
from flashgen.verify import cases_for


@dataclass(frozen=True)
class Mutation:
    """A mistake: in the package of a variant, each text is replaced by another."""

    name: str
    variant: str
    replacements: tuple[tuple[str, str], ...]


MUTATIONS = [
    Mutation("no maximum subtracted", "causal", (
        ("m_new = tl.maximum(m, tl.max(qk, 1) * qk_scale)", "m_new = tl.zeros_like(m)"),
    )),
    Mutation("no rescale", "causal", (("alpha = tl.exp2(m - m_new)", "alpha = tl.exp2((m - m_new) * 0)"),)),
    Mutation("no rescale of the accumulator", "full", (("acc * alpha[:, None]", "acc"),)),
    Mutation("no rescale of the sum", "full", (("l = l * alpha + ", "l = l + "),)),
    Mutation("modifier after the maximum", "softcap", (
        ("def online_softmax(x, ", "def online_softmax(x, raw, "),
        ("tl.max(x, 1)", "tl.max(raw, 1)"),
        ("= online_softmax(x, v_tile", "= online_softmax(x, qk, v_tile"),
    )),
    Mutation("bias after the maximum", "alibi", (
        ("def online_softmax(x, ", "def online_softmax(x, raw, "),
        ("tl.max(x, 1)", "tl.max(raw, 1)"),
        ("= online_softmax(x, v_tile", "= online_softmax(x, qk, v_tile"),
    )),
    Mutation("mask indices relative to the tile", "causal", (
        ("k = start + tl.arange(0, BN)[None, :]", "k = tl.arange(0, BN)[None, :]"),
    )),
    Mutation("mask indices relative to the tile", "dilated", (
        ("k = start + tl.arange(0, BN)[None, :]", "k = tl.arange(0, BN)[None, :]"),
    )),
    Mutation("rows not aligned to the keys", "causal", (
        ("(tl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]", "tl.minimum(rows, q_len - 1)[:, None]"),
    )),
    Mutation("one key too many in the mask", "causal", (("return k <= q", "return k <= q + 1"),)),
    Mutation("one key too few in the window", "sliding_window", (("r = q - 1023", "r = q - 1022"),)),
    Mutation("the first tile of the window left out", "sliding_window", (
        ("tl.range(first, stop, BN)", "tl.range(first + BN, stop, BN)"),
    )),
    Mutation("no mask at the ragged end", "full", (("qk = tl.where(k < kv_len, qk, -float(\"inf\"))", "qk = qk"),)),
    Mutation("the last tile of keys left out", "causal", (
        ("tl.range(full_end, stop, BN)", "tl.range(full_end, stop - BN, BN)"),
    )),
    Mutation("another KV head", "full", (("kv_h = h // (heads // kv_heads)", "kv_h = h % kv_heads"),)),
    Mutation("one batch element for all", "full", (("begin_k.to(tl.int64) * stride_kb", "begin_k.to(tl.int64) * 0"),)),
    Mutation("lse in log2", "full", (("(m + tl.log2(l)) * 0.6931471805599453", "m + tl.log2(l)"),)),
    Mutation("lse without the maximum", "full", (("(m + tl.log2(l)) *", "tl.log2(l) *"),)),
    Mutation("no sink in the denominator", "sink", (("l = l * alpha + tl.exp2(sink - m_sink)", "l = l * alpha"),)),
    Mutation("the largest logit in log2", "full", (("m * 0.6931471805599453, l)", "m, l)"),)),
    Mutation("the largest logit without its row's term", "alibi", (
        ("(m + row_shift) * 0.6931471805599453, l)", "m * 0.6931471805599453, l)"),
    )),
    Mutation("the sink taken for a logit", "sink", (
        ("m * 0.6931471805599453, l)", "m_sink * 0.6931471805599453, l)"),
    )),
    Mutation("the largest logit of an empty row", "causal", (
        ("tl.where(empty, -float(\"inf\"), largest)", "largest"),
    )),
    Mutation("no scale", "full", (("qk_scale = scale * ", "qk_scale = "),)),
    Mutation("exp for exp2", "full", (("1.4426950408889634", "1.0"),)),
    Mutation("an empty row divided by zero", "causal", (("tl.where(empty, 1.0, l)", "l"),)),
    Mutation("a running maximum that starts at zero", "full", (
        ("tl.full([BM], -3.0e38, tl.float32)", "tl.zeros([BM], tl.float32)"),
    )),
    Mutation("the slopes of the wrong head", "alibi", (("slopes_ptr + h", "slopes_ptr + kv_h"),)),
    Mutation("slopes of the caller ignored", "alibi", (
        ("inputs=(slopes,), scale", "inputs=(None,), scale"),
    )),
    Mutation("every tile taken as full", "document", (("state.to(tl.int8)", "(state * 0 + 2).to(tl.int8)"),)),
    Mutation("mixed tiles skipped", "document", (("state.to(tl.int8)", "tl.where(state == 1, 0, state).to(tl.int8)"),)),
    Mutation("tiles on the diagonal taken as full", "document", (
        ("every = (k_last <= q_first)", "every = (k_first <= q_first)"),
    )),
    Mutation("the first tile of each chunk classified alone", "document", (
        ("keys = tl.minimum((chunk + i) * BN", "keys = tl.minimum(i * BN"),
    )),
    Mutation("rows of few queries counted from each tile's first", "causal", (
        ("rows = tile * BM + tl.arange(0, BM)\n    in_range", "rows = tl.arange(0, BM)\n    in_range"),
    )),
    Mutation("head_dim cut to a multiple of 16", "full", (("[q_len, head_dim]", "[q_len, head_dim // 16 * 16]"),)),
    Mutation("weights rounded to 8 bits", "full", (("p.to(v_tile.dtype)", "p.to(tl.float8e5).to(v_tile.dtype)"),)),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.variant}: {m.name}")
def test_a_mistake_is_caught(mutation: Mutation, tmp_path: Path) -> None:
    variant, package = VARIANTS[mutation.variant], tmp_path / mutation.variant
    right = rendered(variant)
    mutated = changed(right, *mutation.replacements)
    assert mutated != right
    write_package(package, mutated)
    cases = cases_for(variant, "quick", gpu=False, scheduled=uses_schedule(variant))
    assert_caught(package, variant, cases)
