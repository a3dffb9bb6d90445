"""Random inputs of a picture. Of a large one nothing is drawn that the picture does not show."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch

from flashgen.lang.nodes import Expr, Gather, Var, const
from flashgen.lang.traversal import inputs, walk
from flashgen.problems.calls import make_inputs
from flashgen.problems.draws import drawn_as
from flashgen.problems.problem import Problem
from flashgen.problems.roles import Roles
from flashgen.problems.sizes import input_sizes, shape_of
from flashgen.problems.values import sample
from flashgen.spec.variant import Input, Variant


class Inputs:
    """What a variant takes beside q, k and v in one problem.

    Inputs with more elements than the picture has pairs are drawn apart, so that the others are the same in every
    picture of a seed: of one that is read by its head alone that head, of one that is not read nothing.
    """

    def __init__(self, variant: Variant, problem: Problem, seed: int) -> None:
        self._variant, self._problem, self._seed = variant, problem, seed
        self._sizes = input_sizes(variant, problem, seed)
        pairs = problem.q_len * problem.kv_len
        self._large = [t for t in variant.inputs if prod(shape_of(t, self._sizes)) > pairs]
        self._others = make_inputs(variant, problem, seed=seed, apart=[t.name for t in self._large]).keywords

    def of(self, shown: Expr, head: int) -> dict[str, Any]:
        """For a picture of one head that evaluates `shown`."""
        return self._others | {tensor.name: self._one(tensor, shown, head) for tensor in self._large}

    def _one(self, tensor: Input, shown: Expr, head: int) -> torch.Tensor:
        shape = shape_of(tensor, self._sizes)
        if tensor.name not in inputs(shown):
            return torch.zeros((), dtype=getattr(torch, tensor.dtype)).expand(shape)
        words = [_word(tensor, axis, shown) for axis in range(len(tensor.dims))]
        dims = [
            dim if word is None else replace(dim, size=const(1)) for dim, word in zip(tensor.dims, words, strict=True)
        ]
        of = {"h": head, "kv_h": head * self._problem.kv_heads // self._problem.heads}
        own = hash((self._seed, self._variant.inputs.index(tensor), *(of[word] for word in words if word)))
        generator = torch.Generator().manual_seed(own % 2**31)
        kind = drawn_as(self._variant).get(tensor.name, "")
        part = replace(tensor, dims=tuple(dims))
        return sample(part, Roles(self._variant), self._sizes, generator, kind).expand(shape)


def _word(tensor: Input, axis: int, shown: Expr) -> str | None:
    """ "h" or "kv_h" where that is the only index of an axis, of which a picture of one head reads one element then."""
    indices = {node.indices[axis] for node in walk(shown) if isinstance(node, Gather) and node.input == tensor.name}
    names = {index.name if isinstance(index, Var) else None for index in indices}
    return next(iter(names)) if names in ({"h"}, {"kv_h"}) else None
