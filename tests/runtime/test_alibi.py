from __future__ import annotations

import math

import pytest
import torch

from flashgen.runtime import alibi_slopes


def slopes_of_the_paper(heads: int) -> list[float]:
    """As the code that came with the paper computes them (get_slopes of ofirpress/attention_with_linear_biases)."""

    def power_of_two(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(heads).is_integer():
        return power_of_two(heads)
    below = 2 ** math.floor(math.log2(heads))
    return power_of_two(below) + slopes_of_the_paper(2 * below)[0::2][: heads - below]


@pytest.mark.parametrize("heads", [*range(1, 21), 32, 71, 112, 128])
def test_slopes_are_those_of_the_paper(heads: int) -> None:
    slopes = alibi_slopes(heads, torch.device("cpu"))
    assert slopes.dtype == torch.float32
    torch.testing.assert_close(
        slopes.double(), torch.tensor(slopes_of_the_paper(heads), dtype=torch.float64), rtol=1e-6, atol=0
    )


def test_eight_heads() -> None:
    assert alibi_slopes(8, torch.device("cpu")).tolist() == [2.0**-i for i in range(1, 9)]


def test_slopes_are_made_once() -> None:
    assert alibi_slopes(6, torch.device("cpu")) is alibi_slopes(6, torch.device("cpu"))


def test_no_heads_have_no_slopes() -> None:
    """As calls without heads have them, whose result is empty."""
    assert alibi_slopes(0, torch.device("cpu")).shape == (0,)
