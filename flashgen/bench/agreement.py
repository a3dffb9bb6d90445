"""Whether the candidates computed the same attention, before any is timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flashgen.bench.passes import FORWARD, Run

if TYPE_CHECKING:
    from torch import Tensor


def disagreements(ready: dict[str, Run], trusted: str, step: str, v: Tensor, names: Sequence[str]) -> dict[str, str]:
    """Remove from `ready` what does not compute what the candidate `trusted` does; return a note for each.

    A forward pass is judged by its output, another by the gradients of the arguments `names`.
    """
    if trusted not in ready:
        return {}
    ours = fresh(ready[trusted])
    notes = {}
    for name in [name for name in ready if name != trusted]:
        theirs = fresh(ready[name])
        if step == FORWARD:
            difference = disagreement(theirs[0], ours[0], v)
        else:
            triples = zip(names, theirs, ours, strict=True)
            found = [gradient_disagreement(argument, a, b, v) for argument, a, b in triples]
            difference = next((text for text in found if text), None)
        if difference is not None:
            notes[name] = difference
            del ready[name]
    return notes


def fresh(run: Run) -> tuple[Tensor, ...]:
    """The results of a second run, in memory that held NaN before: what the kernel leaves unwritten shows."""
    import torch

    spoiled = [torch.full_like(tensor, torch.nan) for _ in range(2) for tensor in run()]
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


def gradient_disagreement(argument: str, theirs: Tensor, ours: Tensor, v: Tensor) -> str | None:
    """None where two gradients agree, else a sentence. A gradient is no mean: it is held to its own size.

    Each computation rounds the weights, the gradients of the scores, the output and the result, all at random: by
    about one machine epsilon of the whole in the Euclidean norm. Four are allowed for both together, and four times as
    much of the largest element in any one. A wrong mask or derivative moves the rows with the largest gradients, which
    see few keys, by far more. NaN agrees with nothing.
    """
    import torch

    eps = torch.finfo(v.dtype).eps
    difference = theirs.float() - ours.float()
    norm, largest = difference.norm().item(), difference.abs().max().item()
    norm_limit, largest_limit = 4 * eps * ours.float().norm().item(), 16 * eps * ours.abs().max().item()
    if norm <= norm_limit and largest <= largest_limit:
        return None
    return (
        f"not timed: its gradient of {argument} differs from the generated kernel's by {largest:.3g}, in norm "
        f"{norm:.3g}; rounding explains {largest_limit:.3g} and {norm_limit:.3g}"
    )
