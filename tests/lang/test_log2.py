from __future__ import annotations

import math

import pytest
from expression_strategies import expressions
from hypothesis import assume, event, given
from hypothesis import strategies as st
from language_world import SCOPE, TENSORS, compile, pairs
from mask_strategies import drawn

from flashgen.lang.evaluate import evaluate
from flashgen.lang.log2 import LOG2E, affine_in_k, factored, logits
from flashgen.lang.nodes import TRUE, Const, Expr, Type, op
from flashgen.lang.traversal import variables, walk
from flashgen.lang.variables import QK, is_uniform

SCALES = st.sampled_from([0.125, 0.3, 1.0, 2.5])


def check(score: str, mask: str, at: dict, scale: float, q_first: int) -> None:
    """pair + row is the score, log2(e) times or as it is, wherever the mask shows the pair."""
    meaning, shown = compile(score, Type.FLOAT), compile(mask, Type.BOOL)
    found = logits(meaning, shown)
    event("row term" if found.row is not None else "no row term")
    if found.row is not None:
        assert not variables(found.row) & {"k", "qk", "score"}
    check_affine(found.pair, {**at, "qk": at["score"] / scale, "scale": scale, "q_first": q_first})
    if evaluate(shown, at, TENSORS):
        value = evaluate(meaning, at, TENSORS)
        assume(math.isfinite(value))
        kernel = {**at, "qk": at["score"] / scale, "scale": scale, "q_first": q_first}
        parts = [evaluate(part, kernel, TENSORS) for part in (found.pair, found.row) if part is not None]
        # What cancels between the parts is lost to rounding.
        largest = max(map(abs, [1.0, value, *parts]))
        unit = 1.0 if found.natural else math.log2(math.e)
        assert sum(parts) == pytest.approx(value * unit, rel=0, abs=1e-9 * largest)


def check_affine(pair: Expr, kernel: dict) -> None:
    """An affine pair is the dot product and a column's part that grows evenly from key to key."""
    found = affine_in_k(pair)
    event("affine" if found is not None else "not affine")
    if found is None:
        return
    assert is_uniform(found.scaled)
    assert is_uniform(found.per_key)
    scaled, column, per_key = (evaluate(part, kernel, TENSORS) for part in (found.scaled, found.column, found.per_key))
    following = evaluate(found.column, {**kernel, "k": kernel["k"] + 1}, TENSORS)
    assert kernel["qk"] * scaled + column == pytest.approx(evaluate(pair, kernel, TENSORS), rel=1e-9, abs=1e-9)
    assert following - column == pytest.approx(per_key, rel=1e-9, abs=1e-9 * max(1, abs(column)))


@given(score=expressions(Type.FLOAT, SCOPE), at=pairs(), scale=SCALES, q_first=st.integers(-9, 9))
def test_any_score(score: str, at: dict, scale: float, q_first: int) -> None:
    check(score, "True", at, scale, q_first)


TERMS = [
    "score", "slope * abs(q - k)", "rel[h, 1] * abs(q - k)", "cap * tanh(score / cap)", "q", "k / 3.0", "(q - 2 * k)",
    "rel[h, q - k]", "where(q < 4, score, 0.5 * k)", "off[doc[b, k]]", "-score", "log(k + 1.0)", "(k - q) / half",
]  # fmt: skip


@given(
    terms=st.lists(st.sampled_from(TERMS).map(lambda text: text.replace("slope", "half")), min_size=1, max_size=4),
    factors=st.lists(st.sampled_from(["1", "-2.5", "cap", "half", "rel[h, 0]"]), min_size=4, max_size=4),
    mask=drawn("mask", 3),
    at=pairs(),
    scale=SCALES,
    q_first=st.integers(-9, 9),
)
def test_sums_of_products(
    terms: list[str], factors: list[str], mask: str, at: dict, scale: float, q_first: int
) -> None:
    score = " - ".join(f"{factor} * ({term})" for factor, term in zip(factors, terms, strict=False))
    check(score, mask, at, scale, q_first)


@pytest.mark.parametrize(
    "text",
    [
        "score + (k - q) * 5000",
        "score - 3.0 * (7 * (q - k))",
        "score + half * (k - q) * 2**40",
        "score - slope * (q * 20 - k * 20)",
    ],
)
def test_a_steep_distance_stays_whole(text: str) -> None:
    """Counted from a tile's first query it would lose the digits of a score near 0, or wrap."""
    found = logits(compile(text.replace("slope", "cap"), Type.FLOAT), TRUE)
    assert found.row is None
    assert "q_first" not in variables(found.pair)


@pytest.mark.parametrize(
    "text", ["score + (k - q) * 8", "score - half * (7 * (q - k))", "score - cap * (q * 5 - k * 5)"]
)
def test_another_distance_is_split(text: str) -> None:
    found = logits(compile(text, Type.FLOAT), TRUE)
    assert found.row is not None
    assert "q_first" in variables(found.pair)


@given(k=st.integers(-9, 9), q_first=st.integers(-9, 9))
def test_a_distance_that_wraps_is_not_split(k: int, q_first: int) -> None:
    """In integers 2**63 times a distance is 0 or the least of them, which is small once it is a float times 2**-66."""
    text = f"score + (q - k){' * 8192' * 4} * 2048 * {2.0**-66}"
    check(text, "True", {"score": 0.5, "q": 2, "k": k}, 0.5, q_first)


def test_a_plain_score_is_one_product() -> None:
    found = logits(compile("score"), TRUE)
    assert found.row is None
    assert found.scaled is not None
    assert found.pair is op("mul", QK, found.scaled)
    assert is_uniform(found.scaled)
    assert evaluate(found.scaled, {"scale": 2.0}) == 2.0 * LOG2E.value


@pytest.mark.parametrize("score", ["-score", "score * cap", "score + k / 2", "2 * score - score"])
def test_only_a_positive_multiple_lets_the_maximum_be_taken_early(score: str) -> None:
    assert logits(compile(score), TRUE).scaled is None


def test_a_constant_multiple_is_folded_into_the_scale() -> None:
    found = logits(compile("score * 3 / 2.0"), TRUE)
    assert found.scaled is not None
    assert evaluate(found.scaled, {"scale": 1.0}) == pytest.approx(1.5 * LOG2E.value)


@pytest.mark.parametrize("score", ["30 * tanh(score / 30)", "tanh(score) / 4", "5.0 * (rel[h, k] * score)"])
def test_a_positive_constant_is_left_to_the_softmax(score: str) -> None:
    pair = logits(compile(score), TRUE).pair
    inner, constant = factored(pair)
    assert constant is not None
    assert constant.value > 0
    assert pair is op("mul", inner, constant)


@pytest.mark.parametrize(
    "score",
    [
        "score",
        "-30 * tanh(score / 30)",
        "cap * tanh(score)",
        "2 * tanh(score) + k",
        "0 * k",
        "1e-50 * tanh(score)",
        "1e50 * tanh(score)",
    ],
)
def test_what_may_be_negative_or_no_float32_is_not(score: str) -> None:
    pair = logits(compile(score), TRUE).pair
    assert factored(pair) == (pair, None)


@pytest.mark.parametrize(
    "score",
    [
        "score + (1.0 - rel[h, k]) * 3e38 * 2.0",
        "score + 2.0 * (rel[h, k] * 3e38)",
        "rel[h, k] * 1e-30 * 1e-30 * 1e20",
        "rel[h, k] / 1e-30 / 1e-30",
        "rel[h, k] / 1e-39",
    ],
)
def test_constants_meet_as_far_as_float32_holds_their_product(score: str) -> None:
    """Times infinity, what is 0 would be no number."""
    pair = logits(compile(score), TRUE).pair
    written = [node.value for node in walk(compile(score)) if isinstance(node, Const)]
    for node in walk(pair):
        if isinstance(node, Const) and node.value and node.value not in written:
            assert 2.0**-126 <= abs(node.value) <= 3.4028234663852886e38


def test_alibi_costs_one_product_and_no_absolute_value_a_pair() -> None:
    found = logits(compile("score - rel[h, 1] * abs(q - k)"), compile("k <= q"))
    assert variables(found.pair) == {"qk", "scale", "k", "q_first", "h"}
    assert found.row is not None
    assert variables(found.row) == {"q", "q_first", "h"}


def test_a_small_term_of_the_row_alone_leaves_the_loop() -> None:
    found = logits(compile("score + 3 * tanh(rel[h, q])"), TRUE)
    assert found.scaled is not None
    assert found.row is not None
    assert variables(found.row) == {"h", "q"}


@pytest.mark.parametrize("term", ["3 * tanh(rel[h, q])", "0.5 * (k - q)"])
def test_beside_what_may_be_huge_none_leaves_the_loop(term: str) -> None:
    """A huge score is rounded as a whole: in parts it would be another number where the parts differ."""
    found = logits(compile(f"score + rel[h, k] + {term}"), TRUE)
    assert found.row is None and "q_first" not in variables(found.pair)


@pytest.mark.parametrize("score", ["score + rel[h, q]", "score - 20000.0", "score + 100.0 * q"])
def test_one_that_may_be_large_stays(score: str) -> None:
    assert logits(compile(score), TRUE).row is None


@pytest.mark.parametrize("term", ["({}) * -10000.0", "({})", "1e9 * ({})"])
@pytest.mark.parametrize("inner", ["rel[h, q] - rel[h, k]", "rel[h, k] - 1.0", "q * 0.5 - k * 0.5"])
def test_a_sum_without_the_score_stays_whole(term: str, inner: str) -> None:
    found = logits(compile(f"score + {term.format(inner)}"), TRUE)
    assert found.row is None
    assert compile(inner) in set(walk(found.pair))


@pytest.mark.parametrize(
    ("score", "natural"),
    [
        ("score", False),
        ("cap * tanh(score / cap)", False),
        ("score - rel[h, 0] * abs(q - k)", False),
        ("score + (1 - keep[b, k]) * -1e4", False),
        ("score + (1 - keep[b, k]) * -1e9", True),
        ("score if k < q else -1e9", True),
        ("score if k < q else -1000000000", True),
        ("score + (1 - keep[b, k]) * -3.4028234663852886e38", True),
        ("score + rel[h, k]", True),
        ("score if k < q else -1e38", True),
        ("score if k < q else cap", True),
        ("score if k < q else n", True),
        ("score + (k % 7 == 3) * cap", True),
        ("score + cap", True),
        ("score + rel[h, 0]", True),
        ("max(score, cap)", True),
        ("score - 0.5 * off[doc[b, k]]", True),
        ("score - 0.5 * clamp(off[doc[b, k]], -9, 9)", False),
        ("score / cap + n * (q - k) / head_dim", False),
        ("cap * cap * tanh(score / cap / n)", False),
        ("10 * tanh(score + rel[h, k])", False),
    ],
)
def test_what_may_be_huge_keeps_its_units(score: str, natural: bool) -> None:
    assert logits(compile(score), TRUE).natural is natural


@pytest.mark.parametrize(
    ("score", "without_fma"),
    [
        # Scores that are not huge are rounded by little, however that is done.
        ("score + (1 - keep[b, k]) * -1e4", False),
        ("0.5 * score - rel[h, 0] * abs(q - k)", False),
        # Where one product is added up there is one way to join it.
        ("score + rel[h, k]", False),
        ("max(score, cap) - rel[h, clamp(2 * k - q, 0, 9)]", False),
        ("score if k < q else -1e9", False),
        # Where there are two, or one that is not added to anything at first, there are more.
        ("score + (1 - keep[b, k]) * -1e9", True),
        ("score + rel[h, k] * cap", True),
        ("score * rel[h, k]", True),
        ("score * 1e9", True),
        ("score + log(rel[h, k])", True),
        ("score + rel[h, k] ** 2", True),
        ("where(rel[h, k] * cap + rel[h, q] > 0, score, -1e9)", True),
    ],
)
def test_a_huge_score_is_rounded_alike_by_all_kernels(score: str, without_fma: bool) -> None:
    assert logits(compile(score), TRUE).without_fma is without_fma


@pytest.mark.parametrize(
    "score",
    ["score - rel[h, 1] * (q - k)", "score + cap * (2 * k - 3 * q)", "score - (q - k) / cap + half * k", "score + k"],
)
def test_a_bias_linear_in_the_key_is_affine(score: str) -> None:
    assert affine_in_k(logits(compile(score), TRUE).pair) is not None


@pytest.mark.parametrize(
    "score",
    [
        "score",
        "score + rel[h, q]",
        "score - half * abs(q - k)",
        "score + k * k",
        "score + q * k",
        "cap * score + k",
        "-score + k",
    ],
)
def test_other_scores_are_not_affine(score: str) -> None:
    assert affine_in_k(logits(compile(score), TRUE).pair) is None


def test_minus_infinity_hides_and_is_no_huge_score() -> None:
    for text in ("score if score >= cap else -inf", "where(k % 2 == 0, -inf, score) * 2"):
        assert not logits(compile(text, Type.FLOAT), TRUE).natural
    assert logits(compile("where(k % 2 == 0, score, -1e30)", Type.FLOAT), TRUE).natural
    # Left out of a row's scores it would hide the row from its log-sum-exp alone.
    assert logits(compile("score + where(q < 3, 0.0, -inf)", Type.FLOAT), TRUE).row is None
