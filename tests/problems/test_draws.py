"""Inputs with which a formula is not finite around 0 are drawn otherwise, and proof says it; where nothing helps, the
message does."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.codegen import generate, load_module
from flashgen.explain.describe import describe
from flashgen.problems.draws import POSITIVE, SWITCH, drawn_as, note_of
from flashgen.spec import load
from flashgen.spec.variant import Variant
from flashgen.verify import cases_for, gradient_cases_for, run_cases


def learned(score: str, *names: str, **more: object) -> Variant:
    inputs = {name: {"shape": ["heads"], "dtype": "float32", "grad": True} for name in names}
    return load({"name": "mine", "dtype": "float32", "inputs": inputs, "score": score, **more})


KERPLE = "score - r1[h] * log(1 + r2[h] * abs(q - k))"


@pytest.mark.parametrize(
    ("score", "positive"),
    [
        (KERPLE, ("r2",)),
        ("score - r1[h] * abs(q - k) ** r2[h]", ("r2",)),
        ("score + log(1.0 * (r1[h] > 0)) + r2[h]", ()),
        ("score * r1[h] + r2[h]", ()),
        ("score + sqrt(r1[h]) + r2[h]", ("r1",)),
        ("score + log(r1[h]) * sqrt(r2[h])", ("r1", "r2")),
        ("score + log(r1[h] * r2[h])", ("r1", "r2")),
        ("score + log(1 + 0.001 * r2[h] * abs(q - k)) + r1[h]", ("r2",)),
        ("score + sqrt(-2 - r1[h] * r1[h]) + r2[h]", ()),
        ("score + where(r1[h] > 0, log(r1[h]), 0.0) + r2[h]", ()),
        ("score + log(abs(r1[h]) / abs(r1[h])) + r2[h]", ()),
    ],
)
def test_what_is_drawn_as(score: str, positive: tuple[str, ...]) -> None:
    variant = learned(score, "r1", "r2")
    assert drawn_as(variant) == dict.fromkeys(positive, POSITIVE)
    assert bool(note_of(variant)) == bool(positive)


@pytest.mark.parametrize(
    ("score", "dtype"),
    [
        ("score + (1.0 - pad[b, k]) * -3.4028234663852886e38", "float32"),
        ("score + (1.0 - pad[b, k]) * -3.4028234663852886e38 + score", "bfloat16"),
        ("score + 3.4028234663852886e38 * (pad[b, k] - 1.0)", "int32"),
    ],
)
def test_an_additive_mask_as_models_make_it_is_drawn_0_or_1(score: str, dtype: str, tmp_path: Path) -> None:
    variant = load({"name": "bert", "inputs": {"pad": {"shape": ["batch", "kv_len"], "dtype": dtype}}, "score": score})
    assert drawn_as(variant) == {"pad": SWITCH}
    assert describe(variant, False).inputs == (f"pad: {dtype} [batch, kv_len] (drawn 0 or 1)",)
    module = load_module(generate(variant, tmp_path))
    cases = [*cases_for(variant, "quick", False, False), *gradient_cases_for(variant, "quick", False, False)]
    report = run_cases(module, variant, cases, level="quick", device="cpu")
    assert report.passed, str(report)
    assert report.note == (
        "pad was drawn 0 or 1, since the formula is not finite with others; an input's key `range: [low, high]` says "
        "what to draw"
    )


LEAST = "-3.4028234663852886e38"


@pytest.mark.parametrize(
    ("dtypes", "score", "drawn"),
    [
        (("float32", "float32"), f"(1 - a[b, k]) * {LEAST} + (1 - c[b, q]) * {LEAST}", {"a": SWITCH, "c": SWITCH}),
        (("int32", "bool"), f"(1 - a[b, k]) * {LEAST} + where(c[b, q], 0.0, {LEAST})", {"a": SWITCH}),
        (("bool", "bool"), f"where(a[b, k], 0.0, {LEAST}) + where(c[b, q], 0.0, {LEAST})", {}),
        (
            ("int64", "float32"),
            "(a[b, k] - 1) * 3e38 + (a[b, q] - 1) * 3e38 + log(c[b, k])",
            {"a": SWITCH, "c": POSITIVE},
        ),
    ],
)
def test_two_additive_masks_at_once_hide_what_both_hide(
    dtypes: tuple[str, str], score: str, drawn: dict[str, str], tmp_path: Path
) -> None:
    inputs = {name: {"shape": ["batch", "kv_len"], "dtype": dtype} for name, dtype in zip("ac", dtypes, strict=True)}
    gain = {"gain": {"shape": ["heads"], "dtype": "float32", "grad": True}}
    variant = load({"name": "bert", "inputs": inputs | gain, "score": f"score * gain[h] + {score}"})
    assert drawn_as(variant) == drawn
    module = load_module(generate(variant, tmp_path))
    cases = [*cases_for(variant, "quick", False, False), *gradient_cases_for(variant, "quick", False, False)]
    report = run_cases(module, variant, cases, level="quick", device="cpu")
    assert report.passed, str(report)


def test_more_masks_than_two_beside_what_is_positive() -> None:
    inputs = {name: {"shape": ["batch", "kv_len"], "dtype": "float32"} for name in "acd"}
    masks = " + ".join(f"(1 - {name}[b, k]) * {LEAST}" for name in "ac")
    variant = load({"name": "mine", "inputs": inputs, "score": f"score + {masks} + log(d[b, k])"})
    assert drawn_as(variant) == {"a": SWITCH, "c": SWITCH, "d": POSITIVE}


def test_each_input_is_drawn_as_it_must_be() -> None:
    inputs = {
        "r1": {"shape": ["heads"], "dtype": "float32"},
        "r2": {"shape": ["heads"], "dtype": "float32"},
        "pad": {"shape": ["batch", "kv_len"], "dtype": "int64"},
    }
    variant = load({"name": "mine", "inputs": inputs, "score": f"{KERPLE} + (1 - pad[b, k]) * -3.4e38"})
    assert drawn_as(variant) == {"r2": POSITIVE, "pad": SWITCH}
    assert note_of(variant).startswith("r2 was drawn positive, pad was drawn 0 or 1, since the formula is not finite ")


@pytest.mark.parametrize("count", [0, 11, 15, 20, 26])
def test_a_pole_at_distance_0_is_seen_whatever_else_is_drawn(count: int) -> None:
    others = [f"r{number}" for number in range(count)]
    read = "".join(f" + {name}[h]" for name in others)
    score = f"score{read} - slope[h] * abs(q - k) ** power[h]"
    assert drawn_as(learned(score, *others, "slope", "power")) == {"power": POSITIVE}


def test_few_visible_pairs_decide() -> None:
    assert drawn_as(learned(KERPLE, "r1", "r2", mask="(q * 7 + k * 3) % 60 == 0")) == {"r2": POSITIVE}


def test_pairs_that_the_mask_hides_need_no_score() -> None:
    assert drawn_as(learned("score + r[h] * sqrt(q - k)", "r", causal=True)) == {}


@pytest.mark.parametrize("mask", ["k % 8 == 7", "(q // 8 + k // 8) % 5 == 3 or k == q"])
def test_pairs_that_are_rare_and_heads_of_which_one_alone_has_no_score_are_seen(mask: str) -> None:
    variant = learned("score - r1[h] * abs(q - k) ** r2[h]", "r1", "r2", mask=mask)
    assert drawn_as(variant) == {"r2": POSITIVE}


def test_a_range_is_the_specs_own_choice() -> None:
    inputs = {"r": {"shape": ["heads"], "dtype": "float32", "range": [-2, -1]}}
    variant = load({"name": "mine", "inputs": inputs, "score": "score + log(r[h])"})
    assert drawn_as(variant) == {}
    assert describe(variant, False).inputs == ("r: float32 [heads] (drawn from -2 to -1)",)


def test_kerple_is_proven_with_gradients_and_says_what_was_drawn(tmp_path) -> None:
    variant = learned(KERPLE, "r1", "r2")
    module = load_module(generate(variant, tmp_path))
    cases = [*cases_for(variant, "quick", False, False)[:2], *gradient_cases_for(variant, "quick", False, False)[:2]]
    report = run_cases(module, variant, cases, level="quick", device="cpu")
    assert report.passed, str(report)
    assert report.note == (
        "r2 was drawn positive, since the formula is not finite with values around 0; an input's key "
        "`range: [low, high]` says what to draw"
    )


def test_a_formula_that_is_never_finite_says_what_was_drawn_and_what_to_write(tmp_path) -> None:
    variant = learned("score + sqrt(-2.0 - abs(r[h]))", "r")
    module = load_module(generate(variant, tmp_path))
    report = run_cases(module, variant, cases_for(variant, "quick", False, False)[:1], level="quick", device="cpu")
    (case,) = report.failures
    assert case.detail.startswith(
        "the formula itself is not finite at [batch, head, row] [0, 0, 0], in float64, with r "
    )
    assert case.detail.endswith("; an input's key `range: [low, high]` says what to draw")
