"""Scores as large as a proof wants them, as far as a formula bears it."""

from __future__ import annotations

from dataclasses import replace

import torch

from flashgen.problems.calls import Call
from flashgen.verify.budget import Reference

# A row that ends beyond this has scores whose float32 neighbours are far apart: of a score of 1e5, 1 part in 128. What
# the forward pass takes the maximum of, the backward pass computes anew, and exp makes a factor of such a difference.
HUGE = 1e5
# What a gain is divided by until the scores are bearable.
_STEP = 4.0


def bearable(call: Call, reference: Reference, gain: float, scale: float | None = None) -> Call:
    """The call, whose q was multiplied by `gain`, with as much of it as leaves the rows of scores ordinary.

    A score may grow with a power of q k^T, or with its exponential. Rows that are huge without any gain, as those of
    padding are, may be so with it.
    """
    if gain <= 1:
        return call
    with torch.no_grad():
        found = _huge(call, reference, scale)
        if not bool(found.any()):
            return call
        spared = ~_huge(_times(call, 1 / gain), reference, scale)
        less = 1.0
        while bool((found & spared).any()) and gain * less > 1:
            less = max(less / _STEP, 1 / gain)
            found = _huge(_times(call, less), reference, scale)
    return _times(call, less)


def _times(call: Call, factor: float) -> Call:
    return replace(call, q=call.q * factor)


def _huge(call: Call, reference: Reference, scale: float | None) -> torch.Tensor:
    """Which rows end beyond HUGE, or where nothing is finite; bool [batch, heads, q_len]."""
    q, k, v = call.q.double(), call.k.double(), call.v.double()
    lse = reference(q, k, v, **call.keywords, scale=scale, return_lse=True)[1]
    return ~(lse.abs() <= HUGE) & (lse != -torch.inf)
