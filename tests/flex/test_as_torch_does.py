"""What torch's operations say of types, of memory and of names, specs of mods say too."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flex_beside_torch import by_torch as attention_by_torch
from flex_screen import alike, by_spec, by_torch
from torch.nn import functional

from flashgen.flex import flex_attention, to_spec

BYTES = torch.tensor([0, 3, 200, 255, 5, 7], dtype=torch.uint8)
BYTE = torch.tensor(5, dtype=torch.uint8)
SMALL = torch.tensor([0, 3, -128, 127, -5, 7], dtype=torch.int8)
TESTS = torch.tensor([True, False])
TABLE = torch.arange(36.0).reshape(6, 6)
EDGES = torch.tensor([0, 2, 2, 5])
HEIGHTS = torch.tensor([-3.0, -1.5, 0.0, 0.25, 8.0])
# More rows than there are queries, and than keys.
LONG, LONGER = (torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows)) for rows in (8, 11))
LEARNED = torch.arange(0.0, 72.0, 2).reshape(6, 6).requires_grad_()
CUBE = torch.arange(72.0).reshape(2, 6, 6)
hundred, minus_three = 100, -3


def collected(score, b, h, q, k):
    found = torch.zeros_like(score)
    for step in range(3):
        found += q * step
    return score + found


def through_another_view(score, b, h, q, k):
    twice = score * 2
    twice.view(()).add_(q)
    return twice + k


def each_number_of_a_row(score, b, h, q, k):
    x, y, z = LONG[q] - LONGER[k]
    _, other, _ = (LONG[k] * LONGER[q]).unbind(-1)
    return score + x.abs() + 2 * y * other + z.clamp(min=0)


def copied(score, b, h, q, k):
    found = score.clone()
    found.copy_(q)
    return found + score.clone().fill_(3) + score.clone().zero_()


def taken_apart_in_place(score, b, h, q, k):
    found = score.clone()
    torch.nn.functional.leaky_relu_(found, 0.25)
    return found


def table_and_its_length() -> Callable[..., torch.Tensor]:
    table, table_len = torch.arange(7.0), 5
    return lambda score, b, h, q, k: score + table[(q - k).clamp(-2, 2)] * table_len


def two_tables() -> Callable[..., torch.Tensor]:
    table, table_len = torch.arange(7.0), torch.arange(4.0)
    return lambda score, b, h, q, k: score + table[(q - k).clamp(-2, 2)] * table_len[(q - k).clamp(-3, 3)]


def variable_called_as_a_length() -> Callable[..., torch.Tensor]:
    table = torch.arange(7.0)

    def mod(score, b, h, q, k):
        table_len = (q - k).clamp(-3, 3) * (q + k) // 5
        return score + table[table_len] * table_len * table_len

    return mod


MODS: dict[str, Callable[..., Any]] = {
    "differences by a factor": lambda score, b, h, q, k: (
        torch.rsub(score, q, alpha=3) + torch.add(k, q, alpha=-2) + torch.sub(score, k, alpha=0.5)
    ),
    "extremes beside no number": lambda score, b, h, q, k: (
        torch.fmax(torch.where(k > 3, score, float("nan")), q * 0.5)
        + torch.fmin(k * 0.5, torch.xlogy(q - 2.0, q - 2.0))
    ),
    "quotients toward zero": lambda score, b, h, q, k: (
        score
        + torch.div(q - k, 2, rounding_mode="trunc")
        + torch.div(q - k, -2, rounding_mode="trunc")
        + torch.div(q - k, k - 2.5, rounding_mode="trunc")
        + torch.div(3 * q - k, minus_three, rounding_mode="trunc")
    ),
    "sums of tests": lambda score, b, h, q, k: score * ((q > k) + (h > 0)) + ((q > k) * (k > 1)),
    "products of positions as floats": lambda score, b, h, q, k: score + (q.float() * 2**62) * k.float() * 2.0**-62,
    "power of integers": lambda score, b, h, q, k: score + 3 ** (k % 6) % 7 + (-5) ** (k % 5) % 7,
    "power that is a fraction": lambda score, b, h, q, k: score + (k + 2) ** (1 - q),
    "inverse of a minimum of tests": lambda score, b, h, q, k: score * ~torch.minimum(q > k, h > 0),
    "inverse of a maximum of tests": lambda score, b, h, q, k: score * ~torch.maximum(q > k, h > 0),
    "bytes below 0": lambda score, b, h, q, k: score + (BYTES[k] > -1) + BYTES[k].clamp(min=-1) + BYTES[k] // -3,
    "where of bytes": lambda score, b, h, q, k: score + torch.where(q > k, BYTES[k], -1),
    "bytes and a number": lambda score, b, h, q, k: score + (BYTES[k] + hundred) + (hundred - BYTES[k]) / 2,
    "bytes and a number below 0": lambda score, b, h, q, k: score + BYTES[k] % minus_three + (BYTES[k] > minus_three),
    "bytes over a number below 0": lambda score, b, h, q, k: (
        score + BYTES[k] / -2 + BYTE / -2 + BYTE.clamp(-1, 5) / minus_three + (k > BYTE / -300) + -2 / BYTES[k]
    ),
    "small and a number": lambda score, b, h, q, k: score + SMALL[k] * minus_three - (SMALL[k] + hundred),
    "small and a large number": lambda score, b, h, q, k: score + (SMALL[k] & 300) + (SMALL[k] < hundred * 3),
    "a test where another one holds": lambda score, b, h, q, k: torch.where(k < q, (q > 2).float(), -torch.inf),
    "a captured test and a mask": lambda score, b, h, q, k: (TESTS[h] | TESTS[b]) + torch.where(q < k, -torch.inf, 0),
    "greatest of differences": lambda score, b, h, q, k: torch.where(
        (LONG[q] - LONGER[k]).abs().amax() < 1.5, score, (LONG[q] * LONGER[k]).min()
    ),
    "extremes beside sums": lambda score, b, h, q, k: (
        score + torch.amin(LONG[q] - (LONGER[k] + LONG[h]).sum(), 0) + torch.amax(LONG[q] > LONGER[k])
    ),
    "less their mean": lambda score, b, h, q, k: (
        score + ((LONG[q] * LONGER[k]) - (LONG[q] * LONGER[k]).mean(0, keepdim=True)).square().sum()
    ),
    "numbers of what is computed of rows": lambda score, b, h, q, k: torch.where(
        (row := (LONG[q] - LONGER[k]).abs())[0] < 1.5, score + row[-1] * row[minus_three], (row * row[1]).sum()
    ),
    "each number of a row": each_number_of_a_row,
    "rows of one as numbers": lambda score, b, h, q, k: (
        torch.logsumexp(LONG[q] + LONGER[k], 0)
        + (LONG[q, :1] - LONGER[k, :1]).squeeze()
        + (LONG[q, 1:2] * LONGER[k, :1]).view(())
        + score.unsqueeze(0).squeeze(-1)
    ),
    "rows of tables of two lengths": lambda score, b, h, q, k: (
        score + torch.sort(LONG[q] - LONGER[q])[0][k % 3] + torch.softmax(LONG[k] * LONGER[k], 0)[h]
    ),
    "elements of tables of two lengths": lambda score, b, h, q, k: (
        score + torch.cat([TABLE[h, :3], LONG[h]])[q] * torch.sort(CUBE[b, h, :3] - LONGER[h])[0][b]
    ),
    "a learned diagonal beside a row": lambda score, b, h, q, k: (
        score + torch.full_like(torch.gt(TABLE[h, k], LEARNED[k, k]), True)
    ),
    "all of one dimension": lambda score, b, h, q, k: score + TABLE[:, k][q] + TABLE[h, :][k],
    "dots": lambda score, b, h, q, k: score + TABLE[..., k][q] + TABLE[h, ...][k] + CUBE[..., k][b, q],
    "all of the middle": lambda score, b, h, q, k: score + CUBE[h, :, k][q] + CUBE[:, q, -1][b],
    "no number": lambda score, b, h, q, k: torch.where(k > 3, score, float("nan")) + torch.xlogy(k, k + 1.0),
    "halves, rounded": lambda score, b, h, q, k: torch.round(score * 4) + torch.round((q - k) * 0.5) + torch.round(k),
    "floats below a half, rounded": lambda score, b, h, q, k: torch.round(score * 0.0 + 0.49999997) + score,
    "places between edges": lambda score, b, h, q, k: (
        torch.bucketize(k, EDGES) - 2 * torch.bucketize(q, EDGES, right=True)
    ),
    "places between heights": lambda score, b, h, q, k: torch.bucketize(score, HEIGHTS, out_int32=True) * score,
    "places of what is no number": lambda score, b, h, q, k: (
        torch.bucketize(torch.where(k > 3, score, float("nan")), HEIGHTS)
        + 9 * torch.bucketize(torch.where(q > 2, score, float("nan")), HEIGHTS, right=True)
    ),
    "edges before places": lambda score, b, h, q, k: (
        torch.searchsorted(EDGES, k, side="right") - 3 * torch.searchsorted(EDGES, q, right=False) + score
    ),
    "one of several": lambda score, b, h, q, k: torch.where(
        torch.isin(k, EDGES) | torch.isin(q, 3, invert=True), score, h
    ),
    "sums of exponentials": lambda score, b, h, q, k: (
        torch.logaddexp(score, k * 0.5)
        + torch.logaddexp(torch.where(q > k, score, -torch.inf), torch.where(q > 1, h, -torch.inf))
    ),
    "complement and hypotenuse": lambda score, b, h, q, k: torch.special.erfc(score) + torch.hypot(score, TABLE[q, k]),
    "collected in place": collected,
    "through another view": through_another_view,
    "copied": copied,
    "taken apart in place": taken_apart_in_place,
    "a table and its length": table_and_its_length(),
    "two tables": two_tables(),
    "a variable called as a length": variable_called_as_a_length(),
}


@pytest.mark.parametrize("name", MODS)
def test_a_spec_says_what_torch_does(name: str) -> None:
    scores = torch.randint(-24, 25, (2, 2, 5, 6), generator=torch.Generator().manual_seed(1)) / 8
    places = list(itertools.product(*map(range, scores.shape)))
    found = by_spec(*to_spec(MODS[name]), scores, places)
    assert alike(found, by_torch(MODS[name], None, scores).flatten()).all()


def at_corners(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A mod that asks a function for its value at 0, where scores are 0 too."""
    return lambda score, b, h, q, k: score + function(NOTHING[h] * k) * q + function(score) * k * 0.1


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NOTHING = torch.zeros(2, device=DEVICE, requires_grad=True)
CORNERS: dict[str, Callable[..., torch.Tensor]] = {
    "relu": torch.relu,
    "relu6": functional.relu6,
    "hardtanh": lambda x: functional.hardtanh(x, -1, 0),
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.5),
    "clamp": lambda x: x.clamp(0, 1),
    "clamp_min": lambda x: x.clamp(min=0),
    "abs": torch.abs,
}


@pytest.mark.parametrize("name", CORNERS)
def test_a_corner_has_the_derivative_that_torch_gives_it(name: str) -> None:
    mod = at_corners(CORNERS[name])
    generator = torch.Generator().manual_seed(2)
    k, v, d_out = (torch.randn(1, 2, 16, 16, generator=generator).to(DEVICE) for _ in range(3))
    wanted = [torch.zeros_like(k).requires_grad_(), NOTHING]
    truth = attention_by_torch(mod, None)(wanted[0].double(), k.double(), v.double())
    expected = torch.autograd.grad(truth, wanted, d_out.double())
    found = torch.autograd.grad(flex_attention(wanted[0], k, v, mod), wanted, d_out)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
