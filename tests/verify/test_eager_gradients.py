"""Autograd is started from gradients as they are given."""

import subprocess
import sys

import pytest
import torch

from flashgen.verify.eager_gradients import Loss, gradients_of

SHAPE = (2, 3, 5, 4)


class Seen(torch.autograd.Function):
    """Passes q on, and keeps what comes back."""

    @staticmethod
    def forward(ctx, q, kept):
        ctx.kept = kept
        return q * 1, q.sum(-1)

    @staticmethod
    def backward(ctx, d_out, d_lse):
        ctx.kept.append((d_out, d_lse))
        return d_out * 2 + d_lse[..., None], None


def gradients(kind):
    dense = torch.randn(SHAPE)
    expanded = torch.randn(()).expand(SHAPE)
    transposed = torch.randn(SHAPE).transpose(-1, -2).contiguous().transpose(-1, -2)
    return {"dense": dense, "expanded": expanded, "transposed": transposed}[kind]


@pytest.mark.parametrize("kind", ["dense", "expanded", "transposed"])
@pytest.mark.parametrize("with_lse", [True, False])
def test_a_backward_pass_is_given_the_gradients_with_their_strides(kind, with_lse):
    q, kept = torch.randn(SHAPE, requires_grad=True), []
    d_out, d_lse = gradients(kind), torch.randn(SHAPE[:-1]) if with_lse else None
    found = gradients_of(Seen.apply(q, kept), {"q": q}, Loss(d_out, d_lse))
    ((came, came_lse),) = kept
    assert torch.equal(came, d_out) and came.stride() == d_out.stride() and came.data_ptr() == d_out.data_ptr()
    assert torch.equal(came_lse, d_lse if with_lse else torch.zeros(SHAPE[:-1]))
    assert torch.equal(found["q"], d_out * 2 + came_lse[..., None])


def test_it_is_what_autograd_gives_and_twice_if_the_graph_is_kept():
    q, unused = (torch.randn(SHAPE, dtype=torch.float64, requires_grad=True) for _ in range(2))
    out, lse = (q * q).softmax(-1), (q * q).logsumexp(-1)
    loss = Loss(gradients("dense"), torch.randn(SHAPE[:-1]))
    expected = torch.autograd.grad([out, lse], q, [loss.d_out.double(), loss.d_lse.double()], retain_graph=True)[0]
    for keep in (True, False):
        found = gradients_of((out, lse), {"q": q, "unused": unused}, loss, keep)
        assert torch.equal(found["q"], expected) and not found["unused"].any()


def test_no_library_for_symbols_is_loaded():
    text = """
import sys, torch
from flashgen.verify.eager_gradients import Loss, gradients_of
q = torch.randn(1, 1, 2, 4, requires_grad=True)
gradients_of((q * 2, q.sum(-1)), {"q": q}, Loss(torch.ones_like(q), torch.ones(1, 1, 2)))
print("sympy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["False"]
