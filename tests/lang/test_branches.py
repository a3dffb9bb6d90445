"""What a branch that is not taken computes makes no gradient NaN, and no value another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.lang.branches import with_tame_branches
from flashgen.lang.nodes import Expr, Op
from flashgen.lang.traversal import walk
from flashgen.spec import load
from flashgen.spec.variant import Variant

LEARNED = {"a": {"shape": ["heads"], "dtype": "float32", "grad": True}}

# A score, how many operands are guarded in it, and one that is the same with branches that are finite anywhere.
GUARDED = {
    "score - where(k < q, a[h] / (q - k), 0.0)": (1, "score - where(k < q, a[h] / max(q - k, 1), 0.0)"),
    "score + where(k < q, a[h] * log(q - k), 0.0)": (1, "score + where(k < q, a[h] * log(max(q - k, 1)), 0.0)"),
    "score + where(k < q, 0.0, a[h] * sqrt(k - q))": (
        1,
        "score + where(k <= q, 0.0, a[h] * sqrt(max(k - q, 1)))",
    ),
    "score + where(k < q, (q - k) ** a[h], 0.0)": (2, "score + where(k < q, max(q - k, 1) ** a[h], 0.0)"),
    "score + where(k < q, a[h] * ((q - k) / (q - k)), 0.0)": (
        1,
        "score + where(k < q, a[h] * (max(q - k, 1) / max(q - k, 1)), 0.0)",
    ),
    "where(score > 0, sqrt(score), score)": (1, "where(score > 0, sqrt(max(score, 1e-30)), score)"),
    "score + where(k < q, where(k > 2, a[h] / (k - 2), a[h] * log(q - k)), 0.0)": (
        2,
        "score + where(k < q, where(k > 2, a[h] / max(k - 2, 1), a[h] * log(max(q - k, 1))), 0.0)",
    ),
}
# Nothing of these derives, or may become infinite, or is read in one branch alone.
HARMLESS = [
    "score + where(k < q, log(q - k), 0.0)",
    "score + where(k < q, a[h] / max(q - k, 1), 0.0)",
    "score + where(k < q, a[h] * (q - k), 0.0)",
    "score + a[h] / (1 + abs(q - k))",
    "where(k < q, score * log(2 + q - k), score - log(2 + q - k))",
    "score * log(2 + q - k) + where(k < q, score * log(2 + q - k), 0.0)",
    "score * log(q - k) + sum(i, heads, where(i > 0, a[h] * log(q - k), 0.0))",
]


# Features of keys, which are no numbers where these are padding.
FEATURES = {
    "x": {"shape": ["batch", "kv_len"], "dtype": "float32"},
    "keep": {"shape": ["batch", "kv_len"], "dtype": "bool"},
}
READ_IN_BRANCHES = [
    "score + where(keep[b, k], a[h] * x[b, k], 0.0)",
    "score + where(keep[b, k], tanh(a[h] + x[b, k]), 0.0)",
    "where(keep[b, k], (0.5 * x[b, k] + 1.0) * score, score)",
    "where(not keep[b, k], score, where(k < q, max(score, x[b, k]), score * x[b, k]))",
]
# Their derivative does not read them.
ADDED_IN_BRANCHES = [
    "score + where(keep[b, k], x[b, k] - a[h], 0.0)",
    "where(keep[b, k], score + 2 * tanh(x[b, k]), score)",
    "where(x[b, k] > 0, 2 * score, score) * a[h]",
]


def variant_of(score: str) -> Variant:
    inputs = {name: form for name, form in (LEARNED | FEATURES).items() if f"{name}[" in score}
    return load({"name": "chosen", "inputs": inputs, "score": score})


def choices(root: Expr) -> int:
    return sum(isinstance(node, Op) and node.name == "where" for node in walk(root))


@pytest.mark.parametrize(("text", "count"), [(text, count) for text, (count, _) in GUARDED.items()])
def test_what_may_do_harm_is_guarded(text: str, count: int) -> None:
    score = variant_of(text).score
    assert choices(with_tame_branches(score, {"a"})) == choices(score) + count


@pytest.mark.parametrize("text", [*HARMLESS, *ADDED_IN_BRANCHES])
def test_nothing_else_is(text: str) -> None:
    score = variant_of(text).score
    assert with_tame_branches(score, {"a"}) is score


def test_a_term_of_a_sum_is_guarded_for_itself() -> None:
    score = variant_of("score + sum(i, heads, where(i > k, a[h] / (i - k), 0.0))").score
    assert choices(with_tame_branches(score, {"a"})) == choices(score) + 1


@pytest.mark.parametrize(("text", "finite"), [(text, finite) for text, (_, finite) in GUARDED.items()])
def test_gradients_are_those_of_what_is_taken(text: str, finite: str, tmp_path: Path) -> None:
    found = []
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(1, 4, 9, 16, dtype=torch.float64, generator=generator)
    for score in (text, finite):
        module = load_module(generate(variant_of(score), tmp_path))
        x, a = drawn.clone().requires_grad_(), torch.linspace(0.1, 1.0, 4, dtype=torch.float64).requires_grad_()
        learned = {"a": a} if "a[h]" in score else {}
        out = module.reference(x, x, x, **learned)
        found.append([out, *torch.autograd.grad(out.square().sum(), [x, *learned.values()])])
    for one, other in zip(*found, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("text", READ_IN_BRANCHES)
def test_what_a_branch_reads_makes_no_gradient_nan_where_it_is_not_taken(text: str, tmp_path: Path) -> None:
    module = load_module(generate(variant_of(text), tmp_path))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(1, 4, 9, 16, dtype=torch.float64, generator=generator)
    keep = torch.arange(9)[None] % 3 > 0
    found = []
    for padding in (float("nan"), float("inf"), 0.5):
        q, a = drawn.clone().requires_grad_(), torch.linspace(0.1, 1.0, 4, dtype=torch.float64).requires_grad_()
        x = drawn[:, 0, :, 0].masked_fill(~keep, padding)
        out = module.reference(q, q, q, x=x, keep=keep, **({"a": a} if "a[h]" in text else {}))
        found.append([out, *torch.autograd.grad(out.square().sum(), [q, a] if "a[h]" in text else [q])])
    for one, other, finite in zip(*found, strict=True):
        assert finite.isfinite().all() and torch.equal(one, finite) and torch.equal(other, finite)
