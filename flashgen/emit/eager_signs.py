"""What is sure of the signs of Python scalars, before a text of eager PyTorch computes with them."""

from __future__ import annotations

from flashgen.lang.nodes import Const, Expr, Op, Var

POSITIVE_SIZES = frozenset({"batch", "heads", "kv_heads", "head_dim"})


def is_nonzero(node: Expr) -> bool:
    """Whether an integer is surely not 0."""
    if isinstance(node, Const):
        return node.value != 0
    if isinstance(node, Op) and node.name == "max":
        return any(isinstance(x, Const) and x.value > 0 for x in node.args)
    return isinstance(node, Var) and node.name in POSITIVE_SIZES


def is_positive(node: Expr) -> bool:
    """Whether a scalar is surely above 0."""
    if isinstance(node, Const):
        return node.value > 0
    if isinstance(node, Op) and node.name in ("to_float", "sqrt"):
        return is_positive(node.args[0])
    return isinstance(node, Var) and node.name in POSITIVE_SIZES
