"""The benchmark of packed sequences without a GPU: who takes part, that all compute the same, and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import ModuleType

import pytest
import torch
from gallery import VARIANTS

from flashgen.bench import Bench, packed
from flashgen.bench.candidates import FLASHGEN, FLEX
from flashgen.bench.flash_attention import FLASH_ATTENTION_4
from flashgen.bench.installed import Unavailable
from flashgen.bench.packed import (
    DENSE,
    PACKED_CANDIDATES,
    TORCH,
    as_dense,
    flex_packed,
    make_batch,
    measure_packed,
    prepare_packed,
)
from flashgen.bench.passes import BACKWARD, FORWARD, flops
from flashgen.bench.rows import Case, Row
from flashgen.bench.run import Prepared
from flashgen.bench.serving_peers import FLASH_ATTENTION
from flashgen.problems.problem import Problem

PROBLEM = Problem(4, 4, 2, 40, 40, 16, 16, "float32", "varlen", min_len=5)
CASE = Case("causal", "", "", PROBLEM, "a GPU", "", "")
Gallery = Callable[[str], ModuleType]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", ["full", "causal", "document", "alibi", "relative_bias", "sink"])
def test_flex_attention_gets_the_variant_sequence_by_sequence(name: str, gallery_module: Gallery) -> None:
    variant = VARIANTS[name]
    batch = make_batch(variant, PROBLEM, "cpu", False)
    out = gallery_module(name).attention_varlen(*batch.arguments, **batch.call.keywords)
    torch.testing.assert_close(flex_packed(variant, batch, compiled=False)(), out, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("step", [FORWARD, BACKWARD])
def test_who_computes_the_variant_is_timed_and_others_say_why_not(
    step: str, gallery_module: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor, *_: object, **options: object):
        """Causal attention of each sequence, as FlashAttention computes it."""
        assert options == {"causal": True}
        parts = [torch.arange(int(a), int(b)) for a, b in pairwise(ends)]
        found = [
            torch.nn.functional.scaled_dot_product_attention(
                *(each[part].transpose(0, 1)[None] for each in (q, k, v)), is_causal=True, enable_gqa=True
            )[0].transpose(0, 1)
            for part in parts
        ]
        return torch.cat(found)

    def imported(module: str, name: str) -> Callable[..., torch.Tensor]:
        if module == "flash_attn":
            return attend
        raise Unavailable("is not installed")

    monkeypatch.setattr(packed, "imported", imported)
    variant, case = VARIANTS["causal"], replace(CASE, step=step)
    names = [name for name in PACKED_CANDIDATES if name not in (FLEX, DENSE)]
    found = prepare_packed(variant, gallery_module("causal"), case, names, "cpu")
    assert set(found.ready) == {*names} - {TORCH, FLASH_ATTENTION_4}
    assert found.notes.pop(FLASH_ATTENTION_4).startswith("is not installed")
    assert found.notes == {TORCH: "is not installed"}
    visible = sum(length * (length + 1) // 2 for length, _ in PROBLEM.lengths)
    assert flops(FORWARD, PROBLEM, found.density) == pytest.approx(2 * visible * 4 * 32)


def test_others_take_part_only_where_they_compute_the_variant(gallery_module: Gallery) -> None:
    found = prepare_packed(VARIANTS["alibi"], gallery_module("alibi"), CASE, [FLASHGEN, TORCH, FLASH_ATTENTION], "cpu")
    assert set(found.ready) == {FLASHGEN}
    assert set(found.notes.values()) == {"does not modify scores"}


def test_dense_sequences_of_as_many_tokens_are_timed_in_the_same_rounds(
    gallery_module: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Problem(32, 16, 16, 4096, 4096, 128, 128, "bfloat16", "varlen", min_len=128)
    dense = Problem(18, 16, 16, 2048, 2048, 128, 128, "bfloat16")
    assert as_dense(usual) == dense
    case, rounds = replace(CASE, problem=usual), []

    def prepared(variant: object, module: object, case: Case, names: list[str]) -> Prepared:
        return Prepared(case, tuple(names), {}, {}, 0.5)

    def timed(cases: list[Prepared], *_: object) -> list[Row]:
        rounds.append([each.case.problem for each in cases])
        return [Row(each.case, name, 0.5, tflops=100.0) for each in cases for name in each.candidates]

    monkeypatch.setattr(packed, "prepare_packed", prepared)
    monkeypatch.setattr(packed, "prepare_case", prepared)
    monkeypatch.setattr(packed, "measure", timed)
    monkeypatch.setattr(packed, "cuda_timer", lambda: None)
    bench = Bench.choose(None, None, 3, None, PACKED_CANDIDATES)
    rows = measure_packed(VARIANTS["causal"], gallery_module("causal"), case, bench)
    assert rounds == [[usual, dense]]
    # All of one case: a file that is resumed has them together.
    assert {row.case for row in rows} == {case}
    assert {row.candidate for row in rows} == set(bench.candidates_of(FORWARD))
    assert [row.note for row in rows if row.candidate == DENSE] == [str(dense)]
    bench = Bench.choose([FLEX], None, 3, None, PACKED_CANDIDATES)
    assert {row.candidate for row in measure_packed(VARIANTS["causal"], None, case, bench)} == {FLASHGEN, FLEX}
