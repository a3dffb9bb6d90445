"""What mods do with the scores of small grids, by torch and by their specs; no kernel is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention.flex_attention import _vmap_for_bhqkv

from flashgen.lang.evaluate import evaluate, evaluator
from flashgen.spec import load

Mod = Callable[..., Any] | None
Place = tuple[int, int, int, int]


def by_torch(score: Mod, mask: Mod, scores: torch.Tensor) -> torch.Tensor:
    """The scores [batch, heads, q_len, kv_len] as torch's FlexAttention modifies them; -inf where a pair is hidden."""
    positions = [torch.arange(length) for length in scores.shape]
    with torch.no_grad(), TransformGetItemToIndex():
        found = scores if score is None else _vmap_for_bhqkv(score, prefix=(0,))(scores, *positions)
        seen = torch.tensor(True) if mask is None else _vmap_for_bhqkv(mask, prefix=())(*positions).bool()
    return torch.where(seen, found.double(), -math.inf)


def by_spec(
    spec: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any],
    scores: torch.Tensor, places: Sequence[Place],
) -> torch.Tensor:  # fmt: skip
    """The same of a spec, at some places."""
    variant = load(dict(spec))
    sizes = dict(zip(("batch", "heads", "q_len", "kv_len"), scores.shape, strict=True))
    values: dict[str, Any] = {**sizes, **{each.name: each.value for each in variant.params}, **numbers}
    elements = {}
    for each in variant.inputs:
        tensor = tensors[each.name].detach()
        for axis, dim in enumerate(each.dims):
            if dim.binds:
                values[dim.binds] = tensor.shape[axis]
            else:
                tensor = tensor.narrow(axis, 0, int(evaluate(dim.size, values)))
        elements[each.name] = tensor.tolist()
    score, mask = evaluator(variant.score), evaluator(variant.mask)
    found = []
    for place in places:
        values.update(zip("bhqk", place, strict=True), score=float(scores[place]))
        found.append(score(values, elements) if mask(values, elements) else -math.inf)
    return torch.tensor(found, dtype=torch.float64)


def alike(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Where two results are the same but for rounding."""
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    return same | ((found - wanted).abs() <= 1e-4 * (1 + wanted.abs()))
