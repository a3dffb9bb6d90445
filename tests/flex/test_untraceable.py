"""What cannot be traced is an error that names the line of the mod and what it does there."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flashgen.errors import FlashgenError
from flashgen.flex import to_spec


def decides(score, b, h, q, k):
    if score > 0:  # here
        return score
    return -score


def unknown_function(score, b, h, q, k):
    return score + torch.special.i0(score)  # here


def inner(score):
    return torch.lgamma(score)  # here


def calls_inner(score, b, h, q, k):
    return inner(score)


def whole_rows(score, b, h, q, k, rows=torch.zeros(3, 4)):  # noqa: B008  # here
    return score + rows[h]


def whole_tables(score, b, h, q, k, tables=torch.zeros(3, 4, 5)):  # noqa: B008
    return score + tables[h]  # here


def extreme_of_a_long_row(score, b, h, q, k, table=torch.zeros(6, 17)):  # noqa: B008
    return score + (table[q] - table[k]).amax()  # here


def diagonal_beside_rows(score, b, h, q, k, tables=torch.zeros(6, 6, 3)):  # noqa: B008
    return score + torch.sort(tables[h, k] + tables[k, k])[0][b]  # here


def fails(score, b, h, q, k):
    raise RuntimeError("no such thing")  # here


def by_floats(score, b, h, q, k, table=torch.zeros(3)):  # noqa: B008
    return score + table[score]  # here


def returns_nothing(score, b, h, q, k):  # here
    score + q


def returns_text(score, b, h, q, k):  # here
    return "score"


def returns_two(score, b, h, q, k):  # here
    return score, score


def cut_off(score, b, h, q, k):
    return score.detach() + score  # here


def cut_off_by_no_grad(score, b, h, q, k):
    with torch.no_grad():
        return score * 2  # here


def cut_off_bias(score, b, h, q, k, bias=torch.zeros(3, requires_grad=True)):  # noqa: B008
    return score + (bias[h] * q).detach()  # here


def places_that_values_decide(score, b, h, q, k, bias=torch.zeros(3)):  # noqa: B008
    return score + bias[bias.nonzero()[0]]  # here


def complex_elements(score, b, h, q, k, bias=torch.zeros(3)):  # noqa: B008
    return score + torch.fft.fft(bias)[k].real  # here


def random_elements(score, b, h, q, k, bias=torch.zeros(3)):  # noqa: B008
    return score + torch.rand_like(bias)[k]  # here


def changes_an_element(score, b, h, q, k, bias=torch.zeros(3)):  # noqa: B008
    bias = bias.clone()
    bias[0] = 1  # here
    return score + bias[k]


def pairs_of_rows(score, b, h, q, k, bias=torch.zeros(3, 4)):  # noqa: B008
    return score + (bias[q] - bias[k].flip(0))[h]  # here


def beyond_a_row(score, b, h, q, k, bias=torch.zeros(3, 4)):  # noqa: B008
    return score + (bias[q] - bias[k])[4]  # here


def changes_a_view(score, b, h, q, k, tables=torch.zeros(3)):  # noqa: B008
    tables.select(0, 1).mul_(2)  # here
    return score


def changes_a_tensor(score, b, h, q, k, seen=torch.zeros(())):  # noqa: B008
    seen += 1  # here
    return score + seen


def draws(score, b, h, q, k):  # here
    return score * random.random()


def catches(score, b, h, q, k):
    try:
        return torch.lgamma(score)  # here
    except Exception:  # noqa: BLE001
        return score


def leaves_as_a_list(score, b, h, q, k, bias=torch.ones(3)):  # noqa: B008
    return score + sum(bias.tolist())  # here


def leaves_for_numpy(score, b, h, q, k, bias=torch.ones(3)):  # noqa: B008
    return score + float(np.asarray(bias)[0])  # here


def rounds_to_decimals(score, b, h, q, k):
    return torch.round(score, decimals=2)  # here


def searches_a_sorted_copy(score, b, h, q, k, edges=torch.ones(3), order=torch.arange(3)):  # noqa: B008
    return score + torch.searchsorted(edges, score, sorter=order)  # here


def searches_rows(score, b, h, q, k, edges=torch.ones(3)):  # noqa: B008
    return score + torch.isin(edges * q, edges).sum()  # here


CASES = {
    rounds_to_decimals: r"round\(decimals=2\); expected",
    searches_a_sorted_copy: "a sorter; expected boundaries that ascend",
    searches_rows: "isin of 1 dimensions; expected a number",
    leaves_as_a_list: r"values that leave torch, as by tolist\(\)",
    leaves_for_numpy: r"values that leave torch, as by tolist\(\)",
    draws: "a random number of Python or NumPy; expected",
    catches: "lgamma",
    changes_a_view: r"aten.mul_.Tensor on what other tensors share, as views do; expected clone\(\)",
    changes_a_tensor: "aten.add_.Tensor on what other tensors share",
    returns_nothing: "its result is None; expected a number for each pair",
    returns_text: "its result is a str; expected",
    returns_two: "its result is a tuple; expected",
    cut_off: "detach",
    cut_off_bias: "detach",
    cut_off_by_no_grad: r"no_grad\(\), of what has a gradient",
    places_that_values_decide: "aten.nonzero.default, whose shape depends on values; expected",
    complex_elements: r"bias.fft_r2c\(.*, which is complex",
    random_elements: "aten.rand_like",
    changes_an_element: "aten.copy_.default on what other tensors share, as views do; expected",
    pairs_of_rows: r"an index of what is no captured tensor, by what is no number; expected a number, as in row\[0\]",
    beyond_a_row: "the index 4 of a row of 4; expected one within it",
    decides: "torch.where",
    unknown_function: "bessel_i0",
    calls_inner: "lgamma",
    whole_rows: "its result has 1 dimensions",
    whole_tables: "tables with 2 of 3 dimensions left",
    extreme_of_a_long_row: "maximum over a row of 17; expected at most 16 numbers",
    diagonal_beside_rows: r"aten.sort.default, which the language of specs does not have",
    fails: "RuntimeError: no such thing",
    by_floats: "index",
}


@pytest.mark.parametrize("mod", CASES, ids=lambda mod: mod.__name__)
def test_an_error_names_the_line_and_the_operation(mod: Callable[..., Any]) -> None:
    source, first = inspect.getsourcelines(inner if mod is calls_inner else mod)
    line = first + next(place for place, text in enumerate(source) if "# here" in text)
    with pytest.raises(ValueError, match=CASES[mod]) as caught:
        to_spec(mod)
    assert isinstance(caught.value, FlashgenError)
    assert str(caught.value).startswith(f"{__file__}:{line}: ")
