"""Captured tensors that a mod turns, cuts or computes with before it reads an element: as torch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flex_views as views
import pytest
import torch
from flex_beside_torch import by_torch

from flashgen.flex import flex_attention, kernels, to_spec
from flashgen.flex.converted import converted

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODS = {**views.VIEWS, **views.DERIVED}


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = views.BATCH, views.HEADS, views.LENGTH, 16
    return [torch.randn(shape, generator=generator).to(DEVICE).requires_grad_() for _ in range(3)]


def is_right(mod: Callable[..., Any], learned: list[torch.Tensor]) -> None:
    """The results, the log-sum-exp and all gradients are torch's in double precision."""
    q, k, v = inputs()
    want, want_lse = by_torch(mod, None)(q.double(), k.double(), v.double(), return_lse=True)
    out, lse = flex_attention(q, k, v, mod, return_lse=True)
    torch.testing.assert_close((out.double(), lse.double()), (want, want_lse), rtol=1e-5, atol=1e-5)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    found, wanted = (
        torch.autograd.grad((each * weight).sum(), [q, k, v, *learned], allow_unused=True) for each in (out, want)
    )
    assert [each is None for each in found] == [each is None for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", MODS)
def test_it_computes_what_torch_does(name: str) -> None:
    is_right(MODS[name], views.LEARNED)


def test_dimensions_in_another_order_are_read_in_place() -> None:
    for name in ("t", "T", "mT", "transpose", "permute", "movedim", "new dimension", "at a place turned", "select"):
        spec, tensors, _ = to_spec(views.VIEWS[name])
        assert all(any(each is known for known in views.LEARNED) for each in tensors.values()), (name, spec)


def test_what_is_captured_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.rand(views.HEADS, 2 * views.LENGTH, device=DEVICE, requires_grad=True)

    def mod(score, b, h, q, k):
        return score + table.softmax(-1)[:, 2:][h, k] * table.abs().max()

    is_right(mod, [table])
    monkeypatch.setattr(kernels, "meaning", None)
    with torch.no_grad():
        table.mul_(3)
    is_right(mod, [table])
    table = torch.rand(views.HEADS, 2 * views.LENGTH + 5, device=DEVICE, requires_grad=True)
    is_right(mod, [table])


def test_other_sizes_are_those_that_torch_works_with() -> None:
    def made(table: torch.Tensor) -> Callable[..., Any]:
        return lambda score, b, h, q, k: score + table.flatten()[h * table.shape[1] + k]

    for length in (24, 30, 24):
        table = torch.rand(views.HEADS, length, device=DEVICE, requires_grad=True)
        is_right(made(table), [table])


def test_another_number_in_it_builds_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.rand(views.HEADS, views.LENGTH, device=DEVICE, requires_grad=True)

    def made(factor: float, shift: int) -> Callable[..., Any]:
        return lambda score, b, h, q, k: score + (table * factor + shift)[h, k]

    is_right(made(0.5, 2), [table])
    monkeypatch.setattr(kernels, "meaning", None)
    is_right(made(2.5, 7), [table])


def test_a_number_of_which_python_makes_another_one_is_that() -> None:
    table = torch.rand(views.HEADS, views.LENGTH, device=DEVICE, requires_grad=True)

    def made(number: int) -> Callable[..., Any]:
        return lambda score, b, h, q, k: score + (table * 2**-number)[h, k]

    for number in (1, 3):
        is_right(made(number), [table])


def test_a_score_and_a_mask_share_what_is_made() -> None:
    spec, tensors, _ = to_spec(
        lambda score, b, h, q, k: score + views.counts.cumsum(-1)[b, k],
        lambda b, h, q, k: views.counts.cumsum(-1)[b, q] >= views.counts.cumsum(-1)[b, k],
    )
    assert list(spec["inputs"]) == list(tensors) == ["counts_cumsum"]
    assert torch.equal(tensors["counts_cumsum"], views.counts.cumsum(-1))


def test_casts_around_a_call_are_no_part_of_the_mod() -> None:
    """Also where the first call is inside of them."""
    mod = views.DERIVED["matmul"]
    kernels.forget()
    with torch.autocast(DEVICE, torch.bfloat16):
        flex_attention(*inputs(), mod)
    is_right(mod, views.LEARNED)


UNREAD: dict[str, Callable[..., Any]] = {
    "an integer": lambda score, b, h, q, k: score + views.document[k] % 1,
    "a product": lambda score, b, h, q, k: score + views.document[k] * 0 + views.row[k] * 0,
    "a power": lambda score, b, h, q, k: score + views.row[k] ** 0,
    "a power of what is made": lambda score, b, h, q, k: score + views.row.cumsum(0)[k] ** 0,
    "a number": lambda score, b, h, q, k: score + (views.first % 1) * q,
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_nothing_is_left_of_has_a_gradient_of_zeros(name: str) -> None:
    is_right(UNREAD[name], views.LEARNED)


FILE = """
import torch
table = torch.rand(8, 99)
def smooth(score, b, h, q, k):
    return score + table.softmax(-1)[h, q - k + 49] + table[h].cumsum(0)[k] + table.t()[k, h]
"""
YAML = """\
# Made by torch of what the mod captures, and to be passed as it is then:
#   table_softmax: table.softmax(-1, False)
#   table_cumsum: table[i].cumsum(0) for each i
inputs:
"""


def test_its_yaml_says_what_to_pass(tmp_path: Any) -> None:
    file = tmp_path / "smooth_mods.py"
    file.write_text(FILE)
    text = converted(f"{file}:smooth")
    assert YAML in text
    assert "  table: {shape: [heads, kv_len], dtype: float32}\n" in text
    assert text.endswith("+ table_cumsum[h, k] + table[h, k]\n")
