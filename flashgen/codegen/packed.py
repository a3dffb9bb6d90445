"""A variant whose queries are packed: those of all sequences in one row, one sequence after the other."""

from __future__ import annotations

from dataclasses import replace

from flashgen.lang.nodes import Expr, Gather, Type, Var, const, gather, op, rebuild, var, walk
from flashgen.spec.variant import Dim, Input, Variant

BATCH, Q_LEN, KV_LEN = (var(name, Type.INT) for name in ("batch", "q_len", "kv_len"))
TOTAL_Q = var("total_q", Type.INT)
# Where the queries of a sequence begin, as kernels call it.
FIRST_QUERY = var("first_query", Type.INT)


def is_packed(tensor: Input) -> bool:
    """Whether an input goes along the queries of each sequence, and so is packed as they are."""
    sizes = [dim.size for dim in tensor.dims]
    return BATCH in sizes and Q_LEN in sizes and KV_LEN not in sizes


def with_packed_queries(variant: Variant) -> Variant:
    """The variant where inputs along queries have no batch, and total_q in place of q_len.

    A query's row in such an input is kept within its sequence, where an index outside reads the nearest element.
    """
    packed = {tensor.name: tensor for tensor in variant.inputs if is_packed(tensor)}
    if not packed:
        return variant
    lets = [expr for _, expr in variant.lets]
    done: dict[Expr, Expr] = {}
    for node in walk(variant.score, variant.mask, *lets):
        children = tuple(done[child] for child in node.children)
        if isinstance(node, Gather) and node.input in packed:
            done[node] = gather(node.input, _indices(packed[node.input], children), node.type)
        else:
            done[node] = node if isinstance(node, Var) else rebuild(node, children)
    return replace(
        variant,
        inputs=tuple(_packed(tensor) if tensor.name in packed else tensor for tensor in variant.inputs),
        score=done[variant.score],
        mask=done[variant.mask],
        lets=tuple((name, done[expr]) for name, expr in variant.lets),
    )


def _indices(tensor: Input, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    last = op("sub", Q_LEN, const(1))
    found = []
    for dim, index in zip(tensor.dims, indices, strict=True):
        if dim.size is Q_LEN:
            found.append(op("add", FIRST_QUERY, op("max", op("min", index, last), const(0))))
        elif dim.size is not BATCH:
            found.append(index)
    return tuple(found)


def _packed(tensor: Input) -> Input:
    dims = (Dim("total_q", TOTAL_Q) if dim.size is Q_LEN else dim for dim in tensor.dims if dim.size is not BATCH)
    return replace(tensor, dims=tuple(dims))
