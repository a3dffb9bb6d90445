"""Scores as large as a proof wants them, as far as a formula bears it."""

from __future__ import annotations

from dataclasses import replace

import torch

from flashgen.problems.calls import Call
from flashgen.verify.budget import Reference
from flashgen.verify.eager_gradients import Loss, eager_gradients, evaluate

# A row that ends beyond this has scores whose float32 neighbours are far apart: of a score of 1e5, 1 part in 128. What
# the forward pass takes the maximum of, the backward pass computes anew, and exp makes a factor of such a difference.
HUGE = 1e5
# What a gain is divided by until the scores are bearable.
_STEP = 4.0


def bearable(
    call: Call, reference: Reference, gain: float, scale: float | None = None, loss: Loss | None = None
) -> Call:
    """The call, whose q was multiplied by `gain`, with as much of it as leaves scores ordinary, and float32 finite.

    A score may grow with a power of q k^T, or with its exponential, and a part of it overflow before it does. What is
    huge or infinite without any gain, as rows of padding are, may be so with it. With `loss` gradients count too.
    """
    if gain <= 1:
        return call

    def faults(less: float) -> torch.Tensor:
        return _faults(_times(call, less), reference, scale, loss)

    less = 1.0
    if bool((found := faults(less)).any()):
        spared = ~faults(1 / gain)
        while bool((found & spared).any()) and gain * less > 1:
            less = max(less / _STEP, 1 / gain)
            found = faults(less)
    return _times(call, less)


def _times(call: Call, factor: float) -> Call:
    return call if factor == 1 else replace(call, q=call.q * factor)


def _faults(call: Call, reference: Reference, scale: float | None, loss: Loss | None) -> torch.Tensor:
    """Which rows end beyond HUGE, or in float32 see nothing, and which elements of the results are not finite there;
    bool, one after another.

    Where nothing is finite in float64 either, a row counts as huge.
    """
    with torch.no_grad():
        _, lse = _evaluated(call, reference, scale, torch.float64)
        out, in_float32 = _evaluated(call, reference, scale, torch.float32)
    results = [out]
    if loss is not None:
        results += eager_gradients(call, loss, reference, scale, torch.float32).values()
    wrong = ~(lse.abs() <= HUGE) | (in_float32 == -torch.inf)
    return torch.cat([(wrong & (lse != -torch.inf)).flatten(), *(~each.isfinite().flatten() for each in results)])


def _evaluated(
    call: Call, reference: Reference, scale: float | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = {"q": call.q.to(dtype), "k": call.k.to(dtype), "v": call.v.to(dtype)}
    return evaluate(reference, call, tensors, scale)
