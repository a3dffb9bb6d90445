"""The proof of gradients can fail: a backward pass with one mistake is caught by the quick level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from gallery import VARIANTS
from mutants import assert_caught, rendered
from packages import changed

from flashgen.codegen import uses_schedule, write_package
from flashgen.verify import gradient_cases_for

# The forward pass stays right.
KEPT = {"forward.py", "forward_sm90.py", "schedule.py"}


@dataclass(frozen=True)
class Mutation:
    """A mistake: in the backward pass of a variant's package, a text is replaced by another."""

    name: str
    variant: str
    old: str
    new: str

    def apply(self, files: Mapping[str, str]) -> dict[str, str]:
        backward = {name: text for name, text in files.items() if name not in KEPT}
        return {**files, **changed(backward, (self.old, self.new))}


ROWSUM = "delta = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1)"
MUTATIONS = [
    Mutation("no delta", "full", ROWSUM, "delta = tl.zeros([BM], tl.float32)"),
    Mutation("delta of the wrong rows", "full", "rows.to(tl.int64) * stride_om", "rows.to(tl.int64) * 0 * stride_om"),
    Mutation("no gradient of lse", "full", "delta -= tl.load(d_lse_rows", "delta -= 0.0 * tl.load(d_lse_rows"),
    Mutation("the gradient of lse added", "full", "delta -= tl.load(d_lse_rows", "delta += tl.load(d_lse_rows"),
    Mutation("lse in natural units", "full", "lse * 1.4426950408889634)", "lse)"),
    Mutation("a row that sees nothing", "causal", 'lse == -float("inf"), float("inf")', 'lse == 1.0, float("inf")'),
    Mutation("no scale in dq", "full", "(dq * scale)", "(dq * 1.0)"),
    Mutation("no scale in dk", "full", "(dk * scale)", "(dk * 1.0)"),
    Mutation("the derivative left out of dq", "softcap", "ds = p * (dp - delta) * slope\n", "ds = p * (dp - delta)\n"),
    Mutation("the derivative left out of dk", "softcap", "(p * (dp - delta) * slope)", "(p * (dp - delta))"),
    Mutation("a wrong derivative", "softcap", "1.0 - t * t", "1.0 - t"),
    Mutation("fused dq added twice", "full", "atomic_add([start, 0], dq)", "atomic_add([start, 0], 2.0 * dq)"),
    Mutation("the first queries left out", "causal", "tl.range(first, q_len, BM)", "tl.range(first + BM, q_len, BM)"),
    Mutation("full tiles too early", "causal", "k_last + q_len - kv_len", "k_first + q_len - kv_len"),
    Mutation("queries not aligned to the keys", "causal", "- 1) + (kv_len - q_len))[None, :]", "- 1))[None, :]"),
    Mutation("mixed tiles left out", "causal", "tl.range(full_end, stop, BN)", "tl.range(full_end, full_end, BN)"),
    Mutation("another KV head", "full", "kv_h = h // (heads // kv_heads)", "kv_h = h % kv_heads"),
    Mutation("one batch element for all", "full", "* stride_kb", "* 0"),
    Mutation("weights rounded to 8 bits", "full", "p.to(do_tile.dtype)", "p.to(tl.float8e5).to(do_tile.dtype)"),
    Mutation("ds rounded to 8 bits", "full", "ds.to(k_tile.dtype)", "ds.to(tl.float8e5).to(k_tile.dtype)"),
    Mutation("every tile taken as full", "document", "if i < num_mixed:", "if i < 0:"),
    Mutation("the schedule of another tile", "document", "tiles_ptr += row * num_q_tiles", "tiles_ptr += 0 * row"),
    Mutation("a learned input added twice", "relative_bias", ", tl.sum(ds_out)", ", 2.0 * tl.sum(ds_out)"),
    Mutation("diagonals of the next distance", "relative_bias", "along = start - wrap", "along = start + 1 - wrap"),
    Mutation("a digit lost", "relative_bias", "mask=finite & (high != 0)", "mask=finite & (high == 0)"),
    Mutation("slopes without delta", "alibi", "ds_out = p * (dp - delta)", "ds_out = p * dp"),
    Mutation("sinks without a gradient", "sink", '    sink="sinks",\n', ""),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.variant}: {m.name}")
def test_a_mistake_is_caught(mutation: Mutation, tmp_path: Path) -> None:
    variant, package = VARIANTS[mutation.variant], tmp_path / mutation.variant
    write_package(package, mutation.apply(rendered(variant)))
    cases = gradient_cases_for(variant, "quick", gpu=False, scheduled=uses_schedule(variant))
    assert_caught(package, variant, cases)
