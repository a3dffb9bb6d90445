"""Whether the candidates computed the same attention, before any is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def disagreements(ready: dict[str, Callable[[], Tensor]], trusted: str, v: Tensor) -> dict[str, str]:
    """Remove from `ready` what does not compute what the candidate `trusted` does; return a note for each."""
    if trusted not in ready:
        return {}
    ours = fresh(ready[trusted])
    notes = {}
    for name in [name for name in ready if name != trusted]:
        difference = disagreement(fresh(ready[name]), ours, v)
        if difference is not None:
            notes[name] = difference
            del ready[name]
    return notes


def fresh(run: Callable[[], Tensor]) -> Tensor:
    """The output of a second run, in memory that held NaN before: what the kernel leaves unwritten shows."""
    import torch

    spoiled = [torch.full_like(run(), torch.nan) for _ in range(2)]
    # The allocator hands these blocks out again.
    del spoiled
    return run()


def disagreement(theirs: Tensor, ours: Tensor, v: Tensor) -> str | None:
    """None where the outputs agree within what rounding explains, else a sentence.

    An output row is a mean of rows of V with weights that sum to at most 1. Rounding the weights and the result to
    the dtype moves it by at most two machine epsilons of the largest value of V, in each of the two computations.
    A wrong mask or modifier moves rows with few visible keys much further. NaN agrees with nothing.
    """
    import torch

    limit = 4 * torch.finfo(v.dtype).eps * v.abs().max().item()
    difference = (theirs - ours).abs().max().item()
    if difference <= limit:
        return None
    return (
        f"not timed: its output differs from the generated kernel's by {difference:.3g}, rounding explains {limit:.3g}"
    )
