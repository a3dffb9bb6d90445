"""What is asked of a variant has one answer, worked out once, which is that of its spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gallery import VARIANTS

from flashgen.analysis.facts import Facts, facts_of
from flashgen.codegen import render
from flashgen.lang import bounds, log2
from flashgen.spec import load


def facts(**spec: Any) -> Facts:
    return facts_of(load({"name": "some", **spec}))


def named(fact: str) -> set[str]:
    """The variants of the gallery of which it is true."""
    return {name for name, variant in VARIANTS.items() if getattr(facts_of(variant), fact)}


def test_all_that_ask_of_a_spec_get_the_same_facts() -> None:
    path = Path(__file__).parents[2] / "variants" / "alibi.yaml"
    assert facts_of(load(path)) is facts_of(load(path))
    assert facts_of(load(path)).logits is facts_of(load(path)).logits


def test_rendering_a_variant_works_its_keys_and_its_logits_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(name: str, function: Any) -> Any:
        return lambda *arguments: asked.append(name) or function(*arguments)

    for name, module in (("key_range", bounds), ("row_range", bounds), ("logits", log2), ("slope", log2)):
        monkeypatch.setattr(f"flashgen.analysis.facts.{name}", counted(name, getattr(module, name)))
    render(load({"name": "once", "score": "score - 0.125 * abs(q - k)", "mask": "(k <= q) & (k >= q - 77)"}))
    assert sorted(asked) == ["key_range", "logits", "row_range", "slope"]


def test_masks_that_are_no_interval_use_a_schedule() -> None:
    assert named("uses_schedule") == {"block_sparse", "dilated", "document", "global_window"}
    assert not facts(mask="(k <= q) & (k >= q - 8)").uses_schedule
    assert facts(mask="(q - k) % 3 == 0").uses_schedule


def test_a_schedule_for_one_axis_says_nothing_of_the_other() -> None:
    inputs = {"last": {"shape": ["batch", "kv_len"], "dtype": "int32"}}
    by_query = facts(inputs=inputs, mask="k <= last[b, q]")
    assert not by_query.uses_schedule
    assert by_query.rows_scheduled
    by_key = facts(inputs=inputs, mask="q <= last[b, k]")
    assert by_key.uses_schedule
    assert not by_key.rows_scheduled


@pytest.mark.parametrize(
    ("mask", "longest_first", "is_window"),
    [
        ("k <= q", True, False),
        ("(k <= q) & (k >= q - 8)", False, True),
        ("(k <= q) & (k >= 3)", False, False),
        ("k < kv_len - 2", False, False),
        ("k >= q", False, False),
    ],
)
def test_how_the_ends_of_the_keys_move(mask: str, longest_first: bool, is_window: bool) -> None:
    found = facts(mask=mask)
    assert (found.longest_first, found.is_window) == (longest_first, is_window)


@pytest.mark.parametrize(
    ("mask", "align", "ends"),
    [
        ("k <= q", "bottom_right", True),
        ("k <= q", "top_left", False),
        ("k <= q + 1", "bottom_right", False),
        ("k < kv_len - 2", "top_left", True),
        ("k >= q", "bottom_right", False),
    ],
)
def test_whether_the_mask_keeps_keys_below_the_length(mask: str, align: str, ends: bool) -> None:
    assert facts(mask=mask, align=align).ends_before_kv_len == ends


def test_what_a_mask_differs_by() -> None:
    inputs = {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}, "win": {"shape": ["heads"], "dtype": "int32"}}
    by_batch = facts(inputs={"doc": inputs["doc"]}, mask="doc[b, q] == doc[b, k]")
    assert (by_batch.mask_by_batch, by_batch.mask_by_head, by_batch.mask_reads_keys) == (True, False, True)
    by_head = facts(inputs={"win": inputs["win"]}, mask="k >= q - win[h]")
    assert (by_head.mask_by_batch, by_head.mask_by_head, by_head.mask_reads_keys) == (False, True, False)
    by_kv_head = facts(mask="(q + k) % 3 != kv_h")
    assert (by_kv_head.mask_by_batch, by_kv_head.mask_by_head, by_kv_head.mask_reads_keys) == (False, True, False)
    counted = facts(mask="(q + k) % 3 != b % 2")
    assert (counted.mask_by_batch, counted.mask_by_head, counted.mask_reads_keys) == (True, False, False)


@pytest.mark.parametrize(
    ("spec", "of_positions"),
    [
        ({"causal": True}, True),
        ({"mask": "(k <= q) & (k >= q - (kv_len - q_len) - 3)"}, True),
        ({"mask": "(k <= q) & (k >= q - 3 * h)"}, False),
        ({"mask": "(k <= q) & (k >= q - 3 * b)"}, False),
        ({"mask": "(k <= q) & (k >= q - W)", "params": {"W": {"value": 3, "runtime": True}}}, False),
        (
            {
                "causal": True,
                "inputs": {"t": {"shape": ["heads", "kv_len"], "dtype": "float32"}},
                "score": "score + t[h, k]",
            },
            False,
        ),
        ({"causal": True, "inputs": {"t": {"shape": ["heads"], "dtype": "float32"}}, "score": "score + t[h]"}, True),
    ],
)
def test_masks_that_follow_from_positions_alone(spec: dict[str, Any], of_positions: bool) -> None:
    assert facts(**spec).mask_of_positions == of_positions


def test_slopes_that_differ_from_pair_to_pair() -> None:
    assert facts(softcap=30.0).nonlinear
    assert not facts(bias="alibi").nonlinear
    assert not facts(score="3 * score").nonlinear


def test_where_learned_inputs_are_read() -> None:
    assert [each.site.gather.input for each in facts_of(VARIANTS["relative_bias"]).placements] == ["rel"]
    assert facts_of(VARIANTS["causal"]).placements == ()


def test_a_mask_of_positions_alone() -> None:
    assert {"causal", "sliding_window"} <= named("plain_mask")
    assert not {"full", "alibi", "softcap", "document", "dilated"} & named("plain_mask")


def test_batch_elements_are_each_for_itself_unless_their_number_is_read() -> None:
    assert not named("counts_batch")
    own = {"own": {"shape": ["batch", "kv_len"], "dtype": "int32"}}
    of = {"of": {"shape": ["n"], "dtype": "int32"}}
    assert not facts(inputs=own | of, mask="of[own[b, q]] == own[b, k]").counts_batch
    for mask in ("own[0, k] > 0", "own[b - 1, k] > 0", "(own[b, k] > 0) | (b > 1)"):
        assert facts(inputs=own, mask=mask).counts_batch, mask
    assert facts(inputs=of, mask="of[b] > k").counts_batch
    assert facts(mask="k < q + b").counts_batch
    assert facts(score="score / batch").counts_batch
    assert facts(inputs={"x": {"shape": ["batch + 1"], "dtype": "int32"}}, mask="x[0] > k").counts_batch
    pairs = {"pairs": {"shape": ["batch", "batch"], "dtype": "int32"}}
    assert facts(inputs=pairs, mask="pairs[b, b] > k").counts_batch
