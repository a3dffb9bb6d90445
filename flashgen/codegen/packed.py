"""A variant whose sequences are packed: the queries of all in one row, one sequence after the other, or their keys too.

An input that has the batch and one of the two lengths among its dimensions is packed as these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flashgen.analysis.facts import Facts, facts_of
from flashgen.analysis.packed import length_along
from flashgen.lang.nodes import Expr, Gather, Var, gather, op
from flashgen.lang.traversal import rebuild, walk
from flashgen.lang.variables import BATCH, BEGIN_K, BEGIN_Q, KV_LEN, Q_LEN, TOTAL_K, TOTAL_Q
from flashgen.spec.variant import Dim, Input, Variant


@dataclass(frozen=True)
class Packing:
    """What stands for a length: that of all sequences together, and where one begins, as kernels call it."""

    total: Expr
    first: Expr


_QUERIES = Packing(TOTAL_Q, BEGIN_Q)
_KEYS = Packing(TOTAL_K, BEGIN_K)
# By the length that gives way.
Packings = Mapping[Expr, Packing]
_BOTH: Packings = {Q_LEN: _QUERIES, KV_LEN: _KEYS}


def with_packed_queries(variant: Variant) -> Variant:
    """The variant where inputs along queries have no batch, and total_q in place of q_len.

    A query's row in such an input is kept within its sequence, where an index outside reads the nearest element.
    """
    return _with_packed(variant, {Q_LEN: _QUERIES})


def with_packed_sequences(variant: Variant) -> Variant:
    """`with_packed_queries`, where inputs along keys have total_k in place of kv_len too."""
    return _with_packed(variant, _BOTH)


def _with_packed(variant: Variant, packings: Packings) -> Variant:
    packed = {tensor.name: tensor for tensor in variant.inputs if length_along(tensor) in packings}
    if not packed:
        return variant
    facts = facts_of(variant)
    lets = [expr for _, expr in variant.lets]
    done: dict[Expr, Expr] = {}
    for node in walk(variant.score, variant.mask, *lets):
        children = tuple(done[child] for child in node.children)
        if isinstance(node, Gather) and node.input in packed:
            indices = _indices(facts, gather(node.input, children, node.type), packed[node.input], packings)
            done[node] = gather(node.input, indices, node.type)
        else:
            done[node] = node if isinstance(node, Var) else rebuild(node, children)
    return replace(
        variant,
        inputs=tuple(_packed(each, packings) if each.name in packed else each for each in variant.inputs),
        score=done[variant.score],
        mask=done[variant.mask],
        lets=tuple((name, done[expr]) for name, expr in variant.lets),
    )


def _indices(facts: Facts, read: Expr, tensor: Input, packings: Packings) -> tuple[Expr, ...]:
    assert isinstance(read, Gather)
    found = []
    for axis, dim in enumerate(tensor.dims):
        if dim.size in packings:
            found.append(op("add", packings[dim.size].first, facts.ranges.kept_inside(read, axis, dim.size)))
        elif dim.size is not BATCH:
            found.append(read.indices[axis])
    return tuple(found)


def _packed(tensor: Input, packings: Packings) -> Input:
    dims = []
    for dim in tensor.dims:
        if dim.size in packings:
            total = packings[dim.size].total
            assert isinstance(total, Var)
            dims.append(Dim(total.name, total))
        elif dim.size is not BATCH:
            dims.append(dim)
    return replace(tensor, dims=tuple(dims))
