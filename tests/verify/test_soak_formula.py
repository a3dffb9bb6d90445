"""The soak's evaluation of expressions and of attention: each operator beside plain numbers, each key beside loops."""

from __future__ import annotations

import math

import pytest
import torch

from flashgen.verify.soak.attend import Oracle, paper_slopes, softmax
from flashgen.verify.soak.case import Case, Recipe
from flashgen.verify.soak.draw import draw
from flashgen.verify.soak.formula import Formula, size
from flashgen.verify.soak.tensors import call_of

NAMES = {
    "q": torch.tensor([[-7], [5]]),
    "k": torch.tensor([[0, 2, 3]]),
    "n": torch.tensor(4),
    "flag": torch.tensor(True),
    "cap": torch.tensor(1.5, dtype=torch.float64),
    "score": torch.tensor([[0.5, -2.0, 3.0], [0.0, 1.0, -1.0]], dtype=torch.float64),
}
INPUTS = {
    "doc": torch.tensor([10, 20, 30], dtype=torch.int8),
    "rel": torch.tensor([[0.5, 1.5], [2.5, 3.5]], dtype=torch.bfloat16),
    "seen": torch.tensor([True, False]),
}
LETS = {"d": "q - k", "twice": "d + d"}


def evaluated(text: str) -> torch.Tensor:
    return Formula(NAMES, INPUTS, LETS, torch.float64).evaluate(text)


# Values at q -7 and k 0, 2, 3; then at q 5.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q + k", [[-7, -5, -4], [5, 7, 8]]),
        ("q - k * 2", [[-7, -11, -13], [5, 1, -1]]),
        ("q // n + 0 * k", [[-2, -2, -2], [1, 1, 1]]),
        ("q // k", [[0, -4, -3], [0, 2, 1]]),
        ("q % k", [[0, 1, 2], [0, 1, 2]]),
        ("k % -2", [[0, 0, -1]]),
        ("7 // (q + k)", [[-1, -2, -2], [1, 1, 0]]),
        ("k ** 2", [[0, 4, 9]]),
        ("k ** 0", [[1, 1, 1]]),
        ("2 ** k", [[1.0, 4.0, 8.0]]),
        ("-k ** 2", [[0, -4, -9]]),
        ("k / 2", [[0.0, 1.0, 1.5]]),
        ("q & k", [[0, 0, 1], [0, 0, 1]]),
        ("q | k", [[-7, -5, -5], [5, 7, 7]]),
        ("q ^ k", [[-7, -5, -6], [5, 7, 6]]),
        ("~k", [[-1, -3, -4]]),
        ("k << 2", [[0, 8, 12]]),
        ("k << -3", [[0, 2, 3]]),
        ("q >> 100", [[-1], [0]]),
        ("q >> 1", [[-4], [2]]),
        ("abs(q)", [[7], [5]]),
        ("min(q, k, 1)", [[-7, -7, -7], [0, 1, 1]]),
        ("max(q, k, 1)", [[1, 2, 3], [5, 5, 5]]),
        ("clamp(q, -2, n)", [[-2], [4]]),
        ("k < 2", [[True, False, False]]),
        ("0 < k <= 2", [[False, True, False]]),
        ("k == 2.0", [[False, True, False]]),
        ("k != 2", [[True, False, True]]),
        ("(k >= 2) & flag", [[False, True, True]]),
        ("(k > 2) | (q > 0)", [[False, False, True], [True, True, True]]),
        ("(k > 0) ^ flag", [[True, False, False]]),
        ("k > 0 and q > 0", [[False, False, False], [False, True, True]]),
        ("k > 0 or q > 0", [[False, True, True], [True, True, True]]),
        ("not k > 0", [[True, False, False]]),
        ("~(k > 0)", [[True, False, False]]),
        ("(k > 0) == (k > 2)", [[True, False, True]]),
        ("(k > 0) + (k > 2)", [[0, 1, 2]]),
        ("k if k > 2 else -1", [[-1, -1, 3]]),
        ("where(k > 2, k, 0.5)", [[0.5, 0.5, 3.0]]),
        ("where(flag, 1, k)", 1),
        ("floor(score)", [[0, -2, 3], [0, 1, -1]]),
        ("floor(k / -2)", [[0, -1, -2]]),
        ("score // 2", [[0.0, -1.0, 1.0], [0.0, 0.0, -1.0]]),
        ("score % 2", [[0.5, 0.0, 1.0], [0.0, 1.0, 1.0]]),
        ("score // 0.1", [[4.0, -20.0, 29.0], [0.0, 9.0, -10.0]]),
        ("k // 0.1", [[0.0, 19.0, 29.0]]),
        ("score // inf", [[0.0, -1.0, 0.0], [0.0, 0.0, -1.0]]),
        ("score % 0.3", [[0.2, 0.1, 0.0], [0.0, 0.1, 0.2]]),
        ("score % inf", [[0.5, math.inf, 3.0], [0.0, 1.0, math.inf]]),
        ("score % -inf", [[-math.inf, -2.0, -math.inf], [0.0, -math.inf, -1.0]]),
        ("min(k, -9223372036854775807 - 1)", [[-(2**63)] * 3]),
        ("min(q, k - 9223372036854775807 - 1)", [[-(2**63), 2 - 2**63, 3 - 2**63]]),
        ("exp(k)", [[1.0, math.exp(2), math.exp(3)]]),
        ("exp2(k)", [[1.0, 4.0, 8.0]]),
        ("log(k + 1)", [[0.0, math.log(3), math.log(4)]]),
        ("log2(k + 1.0)", [[0.0, math.log2(3), 2.0]]),
        ("tanh(score)", [[math.tanh(x) for x in (0.5, -2.0, 3.0)], [math.tanh(x) for x in (0.0, 1.0, -1.0)]]),
        ("sqrt(k)", [[0.0, math.sqrt(2), math.sqrt(3)]]),
        ("sigmoid(k)", [[0.5, 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-3))]]),
        ("doc[k]", [[10, 30, 30]]),
        ("doc[q]", [[10], [30]]),
        ("rel[1, k - 1]", [[2.5, 3.5, 3.5]]),
        ("rel[seen[0], seen[1]] + cap", [4.0]),
        ("seen[doc[k] // 20]", [[True, False, False]]),
        ("twice", [[-14, -18, -20], [10, 6, 4]]),
        ("true", True),
        ("(1\n  + 2)", 3),
    ],
)
def test_an_expression_has_the_value_that_the_language_says(text: str, expected: object) -> None:
    wanted = torch.tensor(expected)
    found = evaluated(text)
    assert found.is_floating_point() == wanted.is_floating_point(), found
    assert (found.dtype == torch.bool) == (wanted.dtype == torch.bool), found
    shape = torch.broadcast_shapes(found.shape, wanted.shape)
    torch.testing.assert_close(
        found.double().expand(shape), wanted.double().expand(shape), rtol=1e-6, atol=1e-6, check_stride=False
    )


def test_ties_have_the_slopes_that_the_language_says() -> None:
    score = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([1.0, 1.0, 4.0], dtype=torch.float64)

    def slopes(text: str) -> list[float]:
        formula = Formula({"score": score, "other": other, "n": torch.tensor(2)}, {}, {}, torch.float64)
        return torch.autograd.grad(formula.evaluate(text).sum(), score)[0].tolist()

    assert slopes("max(score, other)") == [0.5, 1.0, 0.0]
    assert slopes("min(score, other)") == [0.5, 0.0, 1.0]
    assert slopes("max(score, n)") == [0.0, 1.0, 1.0]
    assert slopes("clamp(score, 1, n)") == [1.0, 1.0, 0.0]
    assert slopes("abs(score - n)") == [-1.0, 0.0, 1.0]


def test_a_rough_tanh_is_off_by_no_more_than_the_instruction() -> None:
    x = torch.linspace(-4, 4, 1001)
    rough = Formula({"x": x}, {}, {}, torch.float32, rough=True).evaluate("tanh(x)")
    error = ((rough - torch.tanh(x)) / torch.tanh(x)).abs().nan_to_num().max()
    assert 2**-14 < error <= 2**-11


def test_extents_are_read_with_sizes() -> None:
    assert size("(kv_len + 15) // 16", {"kv_len": 33}) == 3
    assert size(7, {}) == 7


EVERYTHING = {
    "name": "everything",
    "causal": True,
    "window": {"left": "W", "right": 0},
    "bias": "alibi",
    "softcap": 5.0,
    "sink": "learned",
    "block_sparse": {"block_q": 4, "block_kv": 3},
    "params": {"W": 9, "shift": {"value": 2.0, "runtime": True}},
    "inputs": {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}},
    "let": {"same": "doc[b, q] == doc[b, k]"},
    "score": "score * 1.5 + where(same, shift, 0.0)",
    "mask": "(k % 5 != 2) | same",
}


@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
def test_attention_is_its_definition(align: str) -> None:
    case = Case(
        {**EVERYTHING, "align": align}, 2, 4, 2, 11, 13, 3, 5, "float32", scale=0.7, params={"shift": -0.5},
        recipes={"doc": Recipe("segments", 0, 3)},
    )  # fmt: skip
    call = call_of(case, "cpu")
    wide = (call.q.double(), call.k.double(), call.v.double())
    out, lse = Oracle(case).reference(*wide, **call.keywords, scale=case.scale, return_lse=True)
    inputs = {name: tensor.tolist() for name, tensor in call.inputs.items()}
    for b in range(2):
        for h in range(4):
            for i in range(11):
                q = i + 2 if align == "bottom_right" else i
                scores = {}
                for k in range(13):
                    doc = inputs["doc"][b]
                    same = doc[max(min(q, 12), 0)] == doc[k]
                    visible = k <= q and k >= q - 9 and inputs["block_mask"][b][h][i // 4][k // 3]
                    if visible and (k % 5 != 2 or same):
                        score = float(wide[0][b, h, i] @ wide[1][b, h // 2, k]) * 0.7
                        score = 5.0 * math.tanh((score - inputs["slopes"][h] * abs(q - k)) / 5.0)
                        scores[k] = score * 1.5 + (-0.5 if same else 0.0)
                total = sum(map(math.exp, scores.values())) + math.exp(inputs["sinks"][h])
                expected = sum((math.exp(s) * wide[2][b, h // 2, k] for k, s in scores.items()), torch.zeros(5)) / total
                torch.testing.assert_close(out[b, h, i], expected.double(), rtol=1e-9, atol=1e-9)
                assert float(lse[b, h, i]) == pytest.approx(math.log(total) if scores else -math.inf, rel=1e-9)
    assert bool((lse == -math.inf).any())


def test_scores_of_any_size_have_means_and_no_row_nan() -> None:
    score = torch.tensor([[-1e9, -1e9, -1e9], [-3e38, -3e38, -math.inf], [-math.inf] * 3]).view(1, 1, 3, 3)
    v = torch.tensor([[3.0], [6.0], [9.0]]).view(1, 1, 3, 1)
    out, lse = softmax(score, v, None)
    assert out.flatten().tolist() == [6.0, 4.5, 0.0]
    assert lse.flatten().tolist()[2] == -math.inf


def test_slopes_are_the_papers() -> None:
    assert paper_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert paper_slopes(3) == [2.0**-4, 2.0**-8, 2.0**-2]


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_everything_is_made_where_the_tensors_are(first: int) -> None:
    """Whatever is made without saying where is on another device, as on a machine with a GPU."""
    for index in range(first, first + 20):
        case = draw(12, index)
        call = call_of(case, "cpu")
        wide = (call.q.double().requires_grad_(), call.k.double(), call.v.double())
        with torch.device("meta"):
            found = Oracle(case, noise=0.01).reference(*wide, **call.keywords, scale=case.scale, return_lse=True)
            assert [tensor.device.type for tensor in found] == ["cpu", "cpu"]
            if found[0].requires_grad:
                torch.autograd.grad(found[0].sum(), wide[0], allow_unused=True)


@pytest.mark.parametrize("text", ["score ** 2.5", "exp(score)", "log(score)", "2.0 ** score", "log2(score)"])
def test_a_gpus_functions_are_off_by_some_units(text: str) -> None:
    score = torch.linspace(0.5, 30, 1000)
    exact, fast = (Formula({"score": score}, {}, {}, torch.float32, fast=fast).evaluate(text) for fast in (False, True))
    off = (fast - exact).abs() / (1 + exact.abs())
    assert 2.0**-23 < off.max() < 2.0**-15
    wide = Formula({"score": score.double()}, {}, {}, torch.float64, fast=True).evaluate(text)
    assert torch.equal(wide, Formula({"score": score.double()}, {}, {}, torch.float64).evaluate(text))
