"""What a row of gradients is measured by where its d_out is rounded anew, and that it is no less than it must be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashgen.problems.calls import Call
from flashgen.problems.dropped import Dropping
from flashgen.verify.uncancelled import uncancelled

# One key is kept of each row: the one that has next to nothing of its weight.
KEYS, KEPT = 8, 3
P = 0.9


def formula(dropped: bool) -> Any:
    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, size: torch.Tensor, **_: Any) -> Any:
        score = -4.0 * (torch.arange(KEYS) == KEPT) + size[:, None]
        weights, lse = torch.softmax(score, -1).double(), torch.logsumexp(score, -1)
        kept = weights * (torch.arange(KEYS) == KEPT) / (1 - P) if dropped else weights
        return (kept @ v), lse.expand(v.shape[0], v.shape[1], -1)

    return reference


def rows_of(call: Call, d_out: torch.Tensor, rescaled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """w of each row, and lse."""
    reference = Dropping(formula(True), formula(False), rescaled)
    leaves = {"q": call.q.double(), "k": call.k.double(), "v": call.v.double()}
    lse = formula(True)(*leaves.values(), **call.keywords)[1]
    return uncancelled(call, leaves, d_out.double(), lse, torch.zeros_like(lse), reference, None)[1], lse


def a_call(dtype: torch.dtype) -> tuple[Call, torch.Tensor]:
    """Rows of which each ends twice as high as the one before, and gradients for them."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(1, 1, KEYS, 64, generator=generator).to(dtype)
    d_out = torch.randn(1, 1, 20, 64, generator=generator).to(dtype)
    q, k = torch.zeros(1, 1, 20, 16, dtype=dtype), torch.zeros(1, 1, KEYS, 16, dtype=dtype)
    return Call(q, k, v, {"size": 2.0 ** torch.arange(20).double()}, {}), d_out


def test_only_rows_whose_factor_may_change_d_out_have_more() -> None:
    call, d_out = a_call(torch.float16)
    plain, lse = rows_of(call, d_out, rescaled=False)
    found, _ = rows_of(call, d_out, rescaled=True)
    assert torch.equal(found != plain, lse > 1024)
    # The float below lse, and another rounding with dropout's share of it: d_out times such a factor.
    factor = torch.exp(-2 * (torch.nextafter(lse.float(), torch.tensor(torch.inf)) - lse.float()).double())
    rounded = (d_out.double() * factor[..., None]).to(torch.float16).double()
    assert torch.equal(rounded[lse <= 1024], d_out.double()[lse <= 1024])
    off = ((rounded / factor[..., None] - d_out.double()) @ call.v.double().mT)[..., KEPT].abs() / (1 - P)
    u = torch.finfo(torch.float16).eps / 2
    assert (off <= 4 * u * found)[lse > 1024].all()
    # Without what it has more it would be too little.
    assert (off > 4 * u * plain)[lse > 1024].any()


@pytest.mark.parametrize(("dtype", "more"), [(torch.float32, False), (torch.bfloat16, True)])
def test_float32_is_as_it_was_and_what_is_cut_off_is_so_everywhere(dtype: torch.dtype, more: bool) -> None:
    call, d_out = a_call(dtype)
    assert bool((rows_of(call, d_out, rescaled=True)[0] > rows_of(call, d_out, rescaled=False)[0]).all()) is more
    if not more:
        assert torch.equal(rows_of(call, d_out, rescaled=True)[0], rows_of(call, d_out, rescaled=False)[0])
