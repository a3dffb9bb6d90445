"""Whether two implementations computed the same attention, before either is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def disagreement(theirs: Tensor, ours: Tensor, v: Tensor, dtype: str) -> str | None:
    """None where the outputs agree within what rounding explains, else a sentence.

    An output row is a mean of rows of V with weights that sum to at most 1. Rounding the weights and the result to
    the dtype moves it by at most two machine epsilons of the largest value of V, in each of the two computations.
    A wrong mask or modifier moves rows with few visible keys much further. NaN agrees with nothing.
    """
    import torch

    limit = 4 * torch.finfo(getattr(torch, dtype)).eps * v.abs().max().item()
    difference = (theirs - ours).abs().max().item()
    if difference <= limit:
        return None
    return (
        f"not timed: its output differs from the generated kernel's by {difference:.3g}, rounding explains {limit:.3g}"
    )
