"""Partial results of attention over disjoint keys, merged."""

from __future__ import annotations

import math

import pytest
import torch

from flashgen.runtime.serving import merge_states


def attention_over(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = q @ k.transpose(-1, -2)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def test_parts_merge_into_the_whole_with_its_gradients() -> None:
    torch.manual_seed(0)
    shapes = [(2, 3, 5, 8), (2, 3, 20, 8), (2, 3, 20, 4)]
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    whole = attention_over(q, k, v)
    parts = [attention_over(q, k[:, :, part], v[:, :, part]) for part in (slice(0, 3), slice(3, 11), slice(11, 20))]
    merged = merge_states([out for out, _ in parts], [lse for _, lse in parts])
    weights = [torch.randn_like(each) for each in whole]
    found, wanted = (
        torch.autograd.grad(
            sum((w * x).sum() for w, x in zip(weights, each, strict=True)), (q, k, v), retain_graph=True
        )
        for each in (merged, whole)
    )
    for one, other in zip((*merged, *found), (*whole, *wanted), strict=True):
        torch.testing.assert_close(one, other)


def test_packed_parts_merge_by_their_own_layout() -> None:
    torch.manual_seed(0)
    outs, lses = torch.randn(2, 1, 3, 5, 4), torch.randn(2, 1, 3, 5)
    out, lse = merge_states(outs, lses)
    packed = merge_states([each[0].transpose(0, 1) for each in outs], [each[0] for each in lses])
    torch.testing.assert_close(packed[0].transpose(0, 1)[None], out)
    torch.testing.assert_close(packed[1][None], lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_logarithms_of_32_bits_stay_so_whatever_the_dtype_of_the_outputs(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    outs, lses = torch.randn(3, 2, 4, 5, 8, dtype=torch.float64).to(dtype), 100 + 3 * torch.randn(3, 2, 4, 5)
    out, lse = merge_states(outs, lses)
    assert out.dtype == dtype and lse.dtype == torch.float32
    wanted = (torch.softmax(lses.double(), 0)[..., None] * outs.double()).sum(0)
    torch.testing.assert_close(out, wanted.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-5)
    torch.testing.assert_close(lse, torch.logsumexp(lses.double(), 0).float())


def test_rows_that_saw_nothing_change_nothing() -> None:
    outs = torch.randn(2, 1, 1, 3, 4)
    lses = torch.tensor([[0.5, -math.inf, -math.inf], [-math.inf, 2.0, -math.inf]])[:, None, None]
    outs.requires_grad_(), lses.requires_grad_()
    out, lse = merge_states(outs, lses)
    torch.testing.assert_close(out[0, 0], torch.stack([outs[0, 0, 0, 0], outs[1, 0, 0, 1], torch.zeros(4)]))
    torch.testing.assert_close(lse[0, 0], torch.tensor([0.5, 2.0, -math.inf]))
    (out.sum() + lse[0, 0, :2].sum()).backward()
    assert torch.isfinite(outs.grad).all()
    assert torch.isfinite(lses.grad).all()


@pytest.mark.parametrize("unwritten", [math.nan, math.inf])
def test_nor_does_what_stands_where_they_saw_nothing(unwritten: float) -> None:
    outs = torch.randn(2, 1, 1, 3, 4)
    lses = torch.tensor([[0.5, -math.inf, -math.inf], [-math.inf, 2.0, -math.inf]])[:, None, None]
    spoilt = torch.where(lses[..., None] == -math.inf, unwritten, outs).requires_grad_()
    lses.requires_grad_()
    out, lse = merge_states(spoilt, lses)
    torch.testing.assert_close((out, lse), merge_states(outs, lses))
    packed, _ = merge_states([each[0].transpose(0, 1) for each in spoilt], [each[0] for each in lses])
    torch.testing.assert_close(packed.transpose(0, 1)[None], out)
    (out.sum() + lse[0, 0, :2].sum()).backward()
    assert torch.isfinite(spoilt.grad).all()
    assert torch.isfinite(lses.grad).all()


def test_states_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"outs\[1\] has shape"):
        merge_states([torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 5)], [torch.zeros(1, 2, 3)] * 2)
    with pytest.raises(ValueError, match="1 outs and 2 lses"):
        merge_states([torch.zeros(1, 2, 3, 4)], [torch.zeros(1, 2, 3)] * 2)
    with pytest.raises(TypeError, match=r"lses is NoneType; expected a tensor, or a sequence of them"):
        merge_states([torch.zeros(1, 2, 3, 4)], None)
    with pytest.raises(ValueError, match=r"lses has shape \(\); expected a first dimension, of the parts"):
        merge_states([torch.zeros(1, 2, 3, 4)], torch.zeros(()))
    with pytest.raises(TypeError, match=r"outs\[0\] is float; expected a torch\.Tensor"):
        merge_states([1.0], [torch.zeros(1, 2, 3)])
    with pytest.raises(TypeError, match=r"outs\[0\] is torch\.int32 on cpu; expected floats on cpu"):
        merge_states([torch.zeros(1, 2, 3, 4).int()], [torch.zeros(1, 2, 3)])
    with pytest.raises(TypeError, match=r"lses\[0\] is torch\.float32 on meta; expected floats on cpu"):
        merge_states([torch.zeros(1, 2, 3, 4)], [torch.zeros(1, 2, 3, device="meta")])
    with pytest.raises(TypeError, match=r"outs\[0\] is a sparse_coo tensor; expected a strided"):
        merge_states([torch.zeros(1, 2, 3, 4).to_sparse()], [torch.zeros(1, 2, 3)])


@pytest.mark.parametrize(
    ("out", "lse"), [((2, 2, 3, 4), (1, 2, 3)), ((2, 2, 3, 4), (2, 2, 1)), ((3, 2, 4), (3, 2)), ((3, 2, 4), (1, 3))]
)
def test_logarithms_of_other_rows_are_refused(out: tuple[int, ...], lse: tuple[int, ...]) -> None:
    """Also those that could be broadcast, and those of packed outputs that do not lie by heads."""
    with pytest.raises(ValueError, match=r"outs\[1\] has shape .* and lses\[1\] .*; expected"):
        merge_states([torch.zeros(out)] * 2, [torch.zeros(*([2, 3] if len(out) == 3 else out[:3])), torch.zeros(lse)])
