"""Derivatives read as a person would write them, and agree with PyTorch's autograd at every point that has one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from expression_strategies import expressions
from hypothesis import assume, event, given
from hypothesis import strategies as st
from language_world import RUNTIME, SCOPE, SIZES, TENSORS, compile, pairs

from flashgen.emit.torch import emit
from flashgen.lang.derivative import ZERO, derivatives, gradients
from flashgen.lang.evaluate import evaluate
from flashgen.lang.nodes import Const, Expr, Gather, Op, Type, const, gather, op, var
from flashgen.lang.show import show
from flashgen.lang.softcaps import with_softcaps
from flashgen.lang.traversal import inputs, variables, walk
from flashgen.lang.vocabulary import VARYING

SCORE = var("score", Type.FLOAT)
SHAPE = tuple(SIZES[name] for name in ("batch", "heads", "q_len", "kv_len"))


def by_score(text: str) -> str:
    (found,) = derivatives(compile(text, Type.FLOAT), [SCORE])
    assert found.type is Type.FLOAT
    return show(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("score", "1.0"),
        ("score * half", "0.5"),
        ("score / 4 - q * k", "0.25"),
        ("3 - score", "-1.0"),
        ("score - score", "0.0"),
        ("q - k", "0.0"),
        ("sum(i, n, score * i)", "sum(i, n, i * 1.0)"),
        ("sum(i, n, score)", "max(n, 0) * 1.0"),
        ("2 * sum(i, n, sin(score * i))", "sum(i, n, cos(score * i) * i) * 2.0"),
        ("sum(i, n, i * q * 1.0)", "0.0"),
        ("score ** 2", "score * 2.0"),
        ("score ** 3", "score * score * 3.0"),
        ("score ** 0.5", "score ** -0.5 * 0.5"),
        ("2.0 ** score", "2.0 ** score * 0.6931471805599453"),
        ("1 / score", "-(1.0 / score / score)"),
        ("exp(score)", "exp(score)"),
        ("log(score) + 1", "1.0 / score"),
        ("sqrt(score)", "0.5 / sqrt(score)"),
        ("sin(score * 2)", "cos(score * 2.0) * 2.0"),
        ("cos(score)", "-sin(score)"),
        ("tan(score)", "1.0 + tan(score) * tan(score)"),
        ("erf(score)", "exp(-(score * score)) * 1.1283791670955126"),
        ("log1p(score)", "1.0 / (1.0 + score)"),
        ("sign(score) + ceil(score) + score", "1.0"),
        ("sigmoid(score)", "sigmoid(score) * (1.0 - sigmoid(score))"),
        ("score * sigmoid(score)", "sigmoid(score) * (1.0 + score * (1.0 - sigmoid(score)))"),
        ("abs(score)", "where(score > 0.0, 1.0, where(score < 0.0, -1.0, 0.0))"),
        ("floor(score) * 2 + score", "1.0"),
        ("score // half + score % half", "1.0"),
        ("where(score > 1, 2, 3) + score", "1.0"),
        ("max(score, 0)", "where(score >= 0.0, 1.0, 0.0)"),
        ("min(3, score)", "where(score <= 3.0, 1.0, 0.0)"),
        ("clamp(score, -cap, cap)", "where(score >= -cap and score <= cap, 1.0, 0.0)"),
        ("max(min(score, cap), 0)", "where(score <= cap and score >= 0.0, 1.0, 0.0)"),
        ("max(score, q)", "where(score < q, 0.0, where(score == q, 0.5, 1.0))"),
        ("where(q < k, score, 2 * score)", "where(q < k, 1.0, 2.0)"),
        ("where(q < k, score, 1.5)", "where(q < k, 1.0, 0.0)"),
        ("where(score < 1, 1.5, score)", "where(score < 1.0, 0.0, 1.0)"),
        ("where(flag, where(q < k, score, 0), 3 * score)", "where(flag, where(q < k, 1.0, 0.0), 3.0)"),
        ("log(score) if score > 0 else 0", "where(score > 0.0, 1.0 / score, 0.0)"),
        ("score * rel[h, q] * keep[b, k]", "keep[b, k] * rel[h, q]"),
        ("rel[h, floor(score)]", "0.0"),
    ],
)
def test_text(text: str, expected: str) -> None:
    found = by_score(text)
    assert found == show(compile(expected, Type.FLOAT))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("score + rel[h, clamp(q - k, 0, 2)]", [("rel[h, clamp(q - k, 0, 2)]", "1.0")]),
        ("score - rel[h, 0] * abs(q - k)", [("rel[h, 0]", "-(abs(q - k) * 1.0)")]),
        ("score * rel[h, q] + rel[h, k]", [("rel[h, q]", "score"), ("rel[h, k]", "1.0")]),
        ("score + rel[h, q] + rel[h, q]", [("rel[h, q]", "2.0")]),
        ("score + where(rel[h, q] > 0, 1, 2)", []),
        ("rel[h, floor(rel[h, q])]", [("rel[h, floor(rel[h, q])]", "1.0")]),
        ("min(score, rel[h, k])", [("rel[h, k]", "where(rel[h, k] > score, 0.0, {half})")]),
    ],
)  # fmt: skip
def test_each_load_of_a_learned_input_has_its_derivative(text: str, expected: list[tuple[str, str]]) -> None:
    ((name, sites),) = gradients(compile(text, Type.FLOAT), ["rel"]).sites
    assert name == "rel"
    half = "where(score == rel[h, k], 0.5, 1.0)"
    found = [(show(site.gather), show(site.derivative)) for site in sites]
    assert found == [(read, derivative.format(half=half)) for read, derivative in expected]


def test_a_number_that_float32_does_not_hold_is_a_product_of_such_that_it_does() -> None:
    """Times infinity, what is 0 would be no number."""
    (found,) = derivatives(compile("sigmoid(score) * 3e38 * 4.0", Type.FLOAT), [SCORE])
    numbers = [node.value for node in walk(found) if isinstance(node, Const)]
    assert all(2.0**-126 <= value <= 3.4028234663852886e38 for value in numbers)
    assert math.prod(value for value in numbers if value != 1.0) == pytest.approx(1.2e39)
    assert evaluate(found, {"score": 0.0}, {}) == pytest.approx(0.25 * 1.2e39)


@pytest.mark.parametrize("text", ["cap * tanh(score / cap)", "30 * tanh(score / 30)", "tanh(score * 49) / 49"])
def test_the_slope_of_a_cap_comes_from_its_value(text: str) -> None:
    (score,) = with_softcaps(compile(text, Type.FLOAT), [])
    (t,) = (node for node in walk(score) if isinstance(node, Op) and node.name == "softcap")
    assert derivatives(score, [SCORE]) == (op("sub", const(1.0), op("mul", t, t)),)


def test_the_slope_of_another_tanh_keeps_its_digits() -> None:
    (found,) = derivatives(compile("tanh(score * score)"), [SCORE])
    # 1 - tanh(25) ** 2 is 0 in float64.
    assert evaluate(found, {"score": 5.0}) == pytest.approx(10.0 / math.cosh(25.0) ** 2, rel=1e-12)


def test_the_derivative_reads_what_the_expression_computes() -> None:
    (score,) = with_softcaps(compile("cap * tanh((score + rel[h, q]) / cap)"), ["rel"])
    (t,) = (node for node in walk(score) if isinstance(node, Op) and node.name == "softcap")
    found = gradients(score, ["rel"])
    assert t in set(walk(found.score))
    assert found.sites[0][1][0].derivative is found.score


def test_equal_work_is_shared_and_the_size_stays_linear() -> None:
    score: Expr = SCORE
    for _ in range(40):
        score = op("mul", op("tanh", score), op("sigmoid", score))
    (found,) = derivatives(score, [SCORE])
    assert len(list(walk(found))) < 60 * 40


def test_a_chain_is_a_product() -> None:
    node: Expr = SCORE
    for _ in range(500):
        node = op("tanh", node)
    (found,) = derivatives(node, [SCORE])
    values = 0.5
    expected = 1.0
    for _ in range(500):
        values = math.tanh(values)
        expected *= 1 - values * values
    assert evaluate(found, {"score": 0.5}) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("branch", ["log(score)", "sqrt(score)", "1 / score", "score ** -1.5", "exp(-score) ** 9"])
def test_a_branch_not_taken_gives_exactly_nothing(branch: str) -> None:
    """PyTorch gives NaN for some of these."""
    (found,) = derivatives(compile(f"where(score > 0, {branch}, 3 * score)"), [SCORE])
    for score in (0.0, -0.0, -1.0, -2000.0):
        assert evaluate(found, {"score": score}) == 3.0
    (twice,) = derivatives(compile(f"where(q < k, {branch}, 0) + where(k < 3, {branch}, 0)"), [SCORE])
    assert evaluate(twice, {"score": 0.0, "q": 9, "k": 5}) == 0.0


def environment(score: torch.Tensor, rel: torch.Tensor) -> dict[str, Any]:
    h = torch.arange(SIZES["heads"]).view(1, -1, 1, 1)
    return {
        **SIZES,
        **RUNTIME,
        "torch": torch,
        "math": math,
        "score": score,
        "b": torch.arange(SIZES["batch"]).view(-1, 1, 1, 1),
        "h": h,
        "kv_h": h // 2,
        "q": (torch.arange(SIZES["q_len"]) + SIZES["kv_len"] - SIZES["q_len"]).view(-1, 1),
        "k": torch.arange(SIZES["kv_len"]).view(1, -1),
        "doc": torch.tensor(TENSORS["doc"]),
        "off": torch.tensor(TENSORS["off"]),
        "rel": rel,
        "keep": torch.tensor(TENSORS["keep"]),
        "gain": torch.tensor(TENSORS["gain"], dtype=torch.float64),
        "shift": torch.tensor(TENSORS["shift"]),
    }


def computed(roots: list[Expr], names: dict[str, Any]) -> list[torch.Tensor]:
    emission = emit(roots)
    exec("\n".join([*emission.lines, f"results = [{', '.join(emission.results)}]"]), names)  # noqa: S102
    dtypes = [torch.float64 if isinstance(result, float) else None for result in names["results"]]
    return [torch.as_tensor(r, dtype=d).broadcast_to(SHAPE) for r, d in zip(names["results"], dtypes, strict=True)]


def agrees_with_autograd(expr: Expr) -> None:
    """At every pair, for the scores; for each element of the learned input, summed over the pairs that read it."""
    score = (torch.arange(math.prod(SHAPE), dtype=torch.float64).reshape(SHAPE) * 37 % 129 - 64) / 16
    score[1, :, 0] = torch.tensor([-1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 1.25], dtype=torch.float64)
    rel = torch.tensor(TENSORS["rel"], dtype=torch.float64)
    score.requires_grad_(), rel.requires_grad_()
    (result,) = computed([expr], environment(score, rel))
    if result.requires_grad:
        result.sum().backward()
    with torch.no_grad():
        found = gradients(expr, ["rel"])
        sites = found.sites[0][1]
        names = environment(score, rel)
        (slope,) = computed([found.score], names)
        learned, finite = torch.zeros_like(rel), torch.ones_like(rel, dtype=torch.bool)
        for site in sites:
            *indices, part = computed([*site.gather.indices, site.derivative], names)
            at = [i.clamp(0, size - 1).long() for i, size in zip(indices, rel.shape, strict=True)]
            learned.index_put_(tuple(at), part, accumulate=True)
    by_score = torch.zeros_like(score) if score.grad is None else score.grad
    by_rel = torch.zeros_like(rel) if rel.grad is None else rel.grad
    event(f"{len(sites)} load sites")
    for mine, theirs in ((slope, by_score), (learned, by_rel)):
        finite = theirs.isfinite()
        event("finite" if finite.all() else "not finite everywhere")
        # Sums of large terms may cancel.
        scale = max(1.0, theirs[finite].abs().max().item()) if finite.any() else 1.0
        torch.testing.assert_close(mine[finite], theirs[finite], rtol=1e-9, atol=1e-12 * scale)


@given(expressions(Type.FLOAT, SCOPE, depth=4))
def test_agrees_with_autograd(text: str) -> None:
    agrees_with_autograd(compile(text, Type.FLOAT))


_UNARY = ["neg", "abs", "exp", "exp2", "log", "log2", "tanh", "sqrt", "sigmoid"]
_BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "min", "max"]
_LEAVES = [
    SCORE, gather("rel", (var("h", Type.INT), var("k", Type.INT)), Type.FLOAT),
    gather("rel", (var("h", Type.INT), const(1)), Type.FLOAT), var("cap", Type.FLOAT),
    op("to_float", op("sub", var("q", Type.INT), var("k", Type.INT))),
    *map(const, (-1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0)),
]  # fmt: skip


@st.composite
def wild(draw: st.DrawFn, depth: int) -> Expr:
    """Functions outside of their domains, ties and corners: what the checker lets a user write."""
    if depth == 0:
        return draw(st.sampled_from(_LEAVES))
    name = draw(st.sampled_from([*_UNARY, *_BINARY, *_BINARY, "where"]))
    if name == "where":
        comparison = draw(st.sampled_from(["lt", "ge", "eq"]))
        test = op(comparison, draw(st.sampled_from(_LEAVES)), draw(st.sampled_from(_LEAVES)))
        return op(name, test, draw(wild(depth - 1)), draw(wild(depth - 1)))
    if name in _UNARY:
        return op(name, draw(wild(depth - 1)))
    below = [depth - 1, draw(st.integers(0, depth - 1))]
    return op(name, *(draw(wild(d)) for d in draw(st.permutations(below))))


def _is_tensor(node: Expr) -> bool:
    return bool(inputs(node) or variables(node) & VARYING)


@given(st.integers(1, 3).flatmap(wild))
def test_agrees_with_autograd_on_corners_and_ties(expr: Expr) -> None:
    # What is made of numbers alone raises in Python where it leaves a domain: here, and 1 / 0 and log(-1) as slopes.
    operations = [node for node in walk(expr) if isinstance(node, Op)]
    assume(all(_is_tensor(node) for node in operations))
    assume(not any(node.name == "truediv" and node.args[1] in (ZERO, const(-0.0)) for node in operations))
    assume(not any(node.name == "pow" and isinstance(node.args[0], Const) for node in operations))
    agrees_with_autograd(expr)


@given(expressions(Type.FLOAT, SCOPE), pairs())
def test_derivatives_by_any_node(text: str, pair: dict) -> None:
    """d f / d n is the sum over the operands that read n, so that a replaced node gives the same slope."""
    expr = compile(text, Type.FLOAT)
    stand_in = var("cap", Type.FLOAT)
    (found,) = derivatives(expr, [stand_in])
    read = any(node is stand_in for node in walk(expr))
    assert read or found is ZERO
    assert isinstance(evaluate(found, pair, TENSORS), float)
    assert all(node in set(walk(expr, found)) for node in walk(found) if isinstance(node, Gather))
