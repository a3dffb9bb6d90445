"""The formula for one sequence of a batch, in which it may make a difference which one of how many that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flashgen.lang.traversal import variables
from flashgen.spec.variant import Variant


def reads_batch(variant: Variant) -> bool:
    """Whether it makes a difference which sequence of how many one is."""
    read = variables(variant.score, variant.mask, *(dim.size for tensor in variant.inputs for dim in tensor.dims))
    return bool(read & {"b", "batch"})


def of_sequence(reference: Callable[..., Any], b: int, batch: int) -> Callable[..., Any]:
    """The reference of a call for one sequence, q, k and v of batch 1, whose inputs are those of the whole batch."""

    def of_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, **keywords: Any) -> Any:
        found = reference(*(each.expand(batch, -1, -1, -1) for each in (q, k, v)), **keywords)
        return tuple(each[b : b + 1] for each in found) if isinstance(found, tuple) else found[b : b + 1]

    return of_one
