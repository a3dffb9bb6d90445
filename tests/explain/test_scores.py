"""Pictures of score modifications: what is added, and where a score bends, against the formulas themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flashgen.errors import UsageError
from flashgen.explain import picture_of, score_picture_of
from flashgen.explain.curves import DEPTH, curve_of, limits, map_of
from flashgen.explain.picture import ASCII_SHADES, save
from flashgen.explain.scores import ScorePanel
from flashgen.figures import DARK_INK
from flashgen.spec import load

TUNE = {"tune": {"shapes": [{"batch": 1, "heads": 8, "q_len": 64}]}}


def panel_of(length: int = 64, **spec: object) -> ScorePanel:
    variant = load({"name": "shown", **TUNE, **spec})
    return score_picture_of(variant, picture_of(variant, length))


def test_what_is_added_is_shown_by_head_and_only_where_a_pair_is_visible() -> None:
    panel = panel_of(causal=True, score="score - h * (q - k)")
    assert [each.head for each in panel.added] == [0, 2, 5, 7]
    assert panel.bends == ()
    q, k = np.mgrid[:64, :64]
    for each in panel.added:
        np.testing.assert_array_equal(each.values, np.where(k <= q, -each.head * (q - k), np.nan))
    assert panel.span == (-7 * 63, 0)


def test_heads_that_are_alike_are_shown_once() -> None:
    (added,) = panel_of(score="score + k").added
    assert (added.head, added.label) == (None, "every head")


def test_a_cell_of_many_pairs_shows_the_one_in_its_middle() -> None:
    (added,) = panel_of(length=512, score="score + k").added
    assert added.values[0].tolist() == list(range(1, 512, 2))


@pytest.mark.parametrize("cap", [3.0, 30.0])
def test_a_bend_is_shown_where_it_bends(cap: float) -> None:
    panel = panel_of(softcap=cap)
    assert panel.added == ()
    (bend,) = panel.bends
    assert (bend.head, bend.pair, bend.label) == (None, None, "every head")
    np.testing.assert_allclose(bend.score, cap * np.tanh(bend.raw / cap), rtol=1e-6, atol=1e-6)
    assert bend.raw[-1] >= 2 * cap


def test_bends_that_differ_by_pair_or_by_head_are_told_apart() -> None:
    by_pair = panel_of(score="score * (1 + k)").bends
    assert [(bend.head, bend.pair) for bend in by_pair] == [(None, (63, 0)), (None, (63, 32)), (None, (63, 63))]
    by_head = panel_of(score="score * h").bends
    assert [bend.head for bend in by_head] == [0, 2, 5, 7]
    for bend in by_head:
        np.testing.assert_allclose(bend.score, bend.raw * bend.head)


def test_scores_that_stay_as_they_are_have_no_picture() -> None:
    panel = panel_of(causal=True)
    assert (panel.added, panel.bends) == ((), ())


def test_a_score_that_hides_leaves_a_gap() -> None:
    panel = panel_of(score="score + 1 if k < 32 else -inf")
    assert panel.bends == ()
    np.testing.assert_array_equal(panel.added[0].values, np.where(np.arange(64)[None] < 32, 1, [[np.nan]] * 64))


def test_the_scale_ends_where_no_weight_is_left() -> None:
    assert limits(panel_of(causal=True, score="score - h * (q - k)")) == (-DEPTH, 0)
    assert limits(panel_of(score="score + k / 64")) == (0, 63 / 64)
    low, high = limits(panel_of(score="score + 2"))
    assert low < 2 < high


def test_characters_are_darker_where_more_is_added() -> None:
    panel = panel_of(length=4, causal=True, score="score + k")
    assert map_of(panel.added[0], panel, ASCII_SHADES) == [
        "+----+", "|.   |", "|.:  |", "|.:+ |", "|.:+#|", "+----+",
    ]  # fmt: skip


def test_the_curve_in_characters_is_flat_where_the_score_is_capped() -> None:
    lines = curve_of(panel_of(softcap=2.0), 0)
    assert len({len(line) for line in lines}) == 1
    marks = [[row for row, line in enumerate(lines) if line[column] == "*"] for column in range(1, len(lines[0]) - 1)]
    assert all(len(rows) == 1 for rows in marks)
    heights = [rows[0] for rows in marks]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] - heights[-1] < (len(lines) - 2) / 2


def test_a_png_has_the_scores_after_the_masks_on_either_background(tmp_path: Path) -> None:
    from matplotlib import image

    variant = load({"name": "shown", **TUNE, "causal": True, "softcap": 2.0, "bias": "alibi"})
    mask = picture_of(variant, 64)
    score = score_picture_of(variant, mask)
    for name, dark in (("light.png", False), ("dark.png", True)):
        save([mask], tmp_path / name, [score], dark=dark)
    light, dark = (image.imread(tmp_path / name) for name in ("light.png", "dark.png"))
    assert light.shape == dark.shape
    assert light.shape[0] > light.shape[1] / 2, "two rows: the mask, four heads and a curve"
    assert (light[0, 0, 3], dark[0, 0, 3]) == (1, 0)
    ink = np.array([int(DARK_INK[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    assert (np.abs(dark[..., :3] - ink) < 0.01).all(axis=-1).any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("much", ["1e30", "-3e18", "3"])
def test_a_large_constant_for_every_pair_is_drawn(much: str) -> None:
    panel = panel_of(score=f"score + {much}")
    low, high = limits(panel)
    assert low < float(np.float32(much)) < high
    (added,) = panel.added
    assert len(map_of(added, panel, ASCII_SHADES)) == 18


def test_an_input_without_an_element_is_named_where_it_would_be_read() -> None:
    variant = load(
        {
            "name": "shown",
            "inputs": {"a": {"shape": ["kv_len // 64"], "dtype": "float32"}},
            "score": "score + a[k // 64]",
        }
    )
    panel = picture_of(variant, 60)
    with pytest.raises(UsageError, match=r"the input a has no element at 60 queries and keys, by its dimension kv_len"):
        score_picture_of(variant, panel)
    assert score_picture_of(variant, picture_of(variant, 64)).added
