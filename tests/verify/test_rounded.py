"""Eager arithmetic rounds as it is told to."""

from __future__ import annotations

import math

import pytest
import torch

from flashgen.verify.rounded import ExactSlopes, FastFunctions, RandomRounding, RoundedProducts


def test_random_roundings_go_to_either_neighbour_and_leave_what_float32_holds() -> None:
    third, whole = torch.full((1000,), 1 / 3, dtype=torch.float64), torch.arange(1000.0, dtype=torch.float64)
    with RandomRounding(0):
        rounded, kept, tested = third * 1.0, (whole + 0.25)[3:], (whole * 2) // 2 == whole
    below = torch.tensor(1 / 3, dtype=torch.float64).float()
    neighbours = {float(below), float(torch.nextafter(below, torch.tensor(0.0)))}
    assert set(rounded.tolist()) == neighbours
    assert torch.equal(kept, torch.arange(3, 1000, dtype=torch.float64) + 0.25)
    assert bool(tested.all())


def test_random_roundings_repeat_with_their_seed_and_spare_the_infinite() -> None:
    values = torch.tensor([1 / 3, -1e300, torch.inf, -torch.inf, torch.nan, 0.0], dtype=torch.float64)
    draws = []
    for _ in range(2):
        with RandomRounding(5):
            draws.append(values + 0.0)
    torch.testing.assert_close(draws[0], draws[1], rtol=0, atol=0, equal_nan=True)
    assert draws[0][2:4].tolist() == [torch.inf, -torch.inf] and bool(draws[0][4].isnan()) and draws[0][5] == 0


@pytest.mark.parametrize(
    "value", [1 + 2.0**-25, 1 - 2.0**-30, 1e-40, 2.0**-151, 2.0**-126 - 2.0**-160, 3.4028235e38, 1e39]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_neighbours_are_those_of_float32_at_either_end_too(value: float, sign: int) -> None:
    exact = torch.full((100,), sign * value, dtype=torch.float64)
    nearest = exact.float()
    away = torch.where(exact > nearest, torch.inf, -torch.inf).float()
    with RandomRounding(0):
        found = exact * 1.0
    assert set(found.tolist()) == {float(nearest[0]), float(torch.nextafter(nearest, away)[0])}


def test_products_and_functions_of_float32_are_those_of_another_dtype() -> None:
    x = torch.full((2, 2), 1 / 3)
    with RoundedProducts(torch.bfloat16):
        assert torch.equal(x @ x, (x.bfloat16() @ x.bfloat16()).float()) and torch.equal(x * x, x * x.clone())
    exact, small = x.tanh(), torch.linspace(-1e-4, 1e-4, 99).tanh()
    with FastFunctions():
        assert torch.equal(x.tanh(), exact.half().float()) and not torch.equal(x.tanh(), exact)
        error = torch.linspace(-1e-4, 1e-4, 99).tanh() - small
    assert 1e-7 < float(error.abs().max()) < 3e-7


def test_a_power_loses_what_its_logarithm_and_its_exponential_do() -> None:
    x = torch.linspace(1, 100, 4000, dtype=torch.float64)
    with RandomRounding(1):
        found = x**4.0
    lost = ((found - x**4) / x**4).abs().max()
    assert 1e-6 < lost < 1e-5


def test_a_fast_tanh_is_off_by_what_its_instruction_may_be() -> None:
    x = torch.linspace(0.5, 1, 1000, dtype=torch.float64)
    with RandomRounding(1, fast=True):
        found = x.tanh()
    off = ((found - x.tanh()) / x.tanh()).abs()
    assert float(off.min()) > 2**-11.1 and float(off.max()) < 2**-10.9


def test_gradients_go_through_random_roundings_and_the_infinite_stays() -> None:
    x = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)
    with RandomRounding(2):
        found = (x * 3).masked_fill(x < 0, -torch.inf)
    assert found.tolist() == [6, -torch.inf]
    found.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3, 0]


def test_a_product_whose_terms_cancel_is_off_by_roundoffs_of_its_terms() -> None:
    left = torch.tensor([[1e4, -1e4, 1e4, -1e4]], dtype=torch.float64)
    right = torch.ones(4, 50, dtype=torch.float64)
    with RandomRounding(3):
        found = left @ right
    assert set(found.flatten().abs().tolist()) == {8e4 * 2.0**-24}
    assert found.min() < 0 < found.max()


@pytest.mark.parametrize("x", [-45.0, -3.0, 0.0, 0.7, 25.0, 300.0, math.inf])
def test_exact_slopes_keep_their_digits_where_tanh_and_sigmoid_are_all_but_1(x: float) -> None:
    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    with ExactSlopes():
        outputs = (torch.tanh(leaf), leaf.tanh(), torch.sigmoid(leaf), leaf.sigmoid())
    tanh, sigmoid = (math.exp(-n * abs(x)) / (1 + math.exp(-n * abs(x))) ** 2 for n in (2, 1))
    assert [float(each) for each in outputs] == [float(f(leaf)) for f in (torch.tanh,) * 2 + (torch.sigmoid,) * 2]
    slopes = [float(torch.autograd.grad(each, leaf)[0]) for each in outputs]
    assert slopes == pytest.approx([4 * tanh] * 2 + [sigmoid] * 2, rel=1e-12, abs=0)
