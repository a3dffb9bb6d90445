"""What kernels take out of the scores of a row and count apart, in magnitude."""

from __future__ import annotations

import math

import torch

from flashgen.analysis.facts import facts_of
from flashgen.lang.evaluate import evaluator
from flashgen.lang.traversal import inputs, variables
from flashgen.problems.calls import Call
from flashgen.spec.variant import Variant

ROWS_OF_A_TILE = 256
# Of an input that the caller leaves to its default: the paper's slopes are less.
_DEFAULT_SLOPE = 1.0


def counted_apart(variant: Variant, call: Call, first: int = 0, batch: int | None = None) -> torch.Tensor:
    """What the terms of a row come to for each head, [batch, heads, 1]; 0 where there are none.

    The call is not packed. It has the batch elements from `first` on of a `batch`, whose inputs it has; None for all.
    A bias that is linear in the distance is counted from the first query of a tile, some rows away. Where there is a
    sink, what all scores of a row have in common counts too: its log-sum-exp may be the sink's, far from the scores'.
    """
    elements, heads = call.q.shape[:2]
    found = torch.zeros((elements, heads, 1), dtype=torch.float64, device=call.q.device)
    row = facts_of(variant).logits.row
    if row is None or not (variant.sink or "q_first" in variables(row)):
        return found
    if not inputs(row) <= call.inputs.keys():
        return found + ROWS_OF_A_TILE * _DEFAULT_SLOPE
    tensors = {name: call.inputs[name].tolist() for name in inputs(row)}
    at, sizes = evaluator(row), {**_sizes(variant, call), "batch": batch or elements, **call.params}
    for element in range(elements):
        for h in range(heads):
            place = {**sizes, "b": first + element, "h": h, "kv_h": h // (heads // call.k.shape[1]), "q": 0}
            ends = [float(at({**place, "q_first": first}, tensors)) for first in (0, ROWS_OF_A_TILE)]
            found[element, h] = abs(ends[1] - ends[0]) * math.log(2)
            if variant.sink:
                common = [float(at({**place, "q": q, "q_first": q}, tensors)) for q in (0, call.k.shape[2] - 1)]
                found[element, h] += max(map(abs, common)) * math.log(2)
    return found


def _sizes(variant: Variant, call: Call) -> dict[str, int]:
    """The sizes of the call by name, and the dimensions that inputs bind."""
    (_, heads, q_len, head_dim), (kv_heads, kv_len) = call.q.shape, call.k.shape[1:3]
    sizes = {"heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len}
    given = [(dim, call.inputs[t.name].shape[axis]) for t in variant.inputs if t.name in call.inputs
             for axis, dim in enumerate(t.dims)]  # fmt: skip
    return {**sizes, "head_dim": head_dim, **{dim.binds: size for dim, size in given if dim.binds is not None}}
