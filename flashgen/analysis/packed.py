"""Which inputs go along the sequences of a batch, so that they are packed as these are."""

from __future__ import annotations

from flashgen.lang.nodes import Expr, Type, Var, var
from flashgen.lang.traversal import variables
from flashgen.lang.variables import BATCH, BEGIN_K, BEGIN_Q, KV_LEN, Q_LEN
from flashgen.spec.variant import Input

_STRIDE = "stride_"
# What kernels count by along the batch of such an input: where the sequence begins among all queries, or keys.
BEGIN = {Q_LEN: BEGIN_Q, KV_LEN: BEGIN_K}


def length_along(tensor: Input) -> Expr | None:
    """The length that an input goes along in each sequence, which makes it a packed one; None for others.

    One that may be the same for all of the batch is for the places of each sequence, and none is packed. Nor is one of
    pairs, also where both of a pair are keys or sequences; nor one that is read across the batch: a program knows where
    its own sequence begins.
    """
    dims = [dim.size for dim in tensor.dims if not dim.may_be_one]
    lengths = [size for size in dims if size in BEGIN]
    return lengths[0] if dims.count(BATCH) == 1 and len(lengths) == 1 and not tensor.across else None


def is_packed(tensor: Input) -> bool:
    """Whether an input goes along the queries, or the keys, of each sequence, and so is packed with these."""
    return length_along(tensor) is not None


def is_along_queries(tensor: Input) -> bool:
    """Whether it goes along the queries of each sequence, and so is packed where only these are."""
    return length_along(tensor) is Q_LEN


def begin_of(tensor: Input) -> Expr | None:
    """What kernels that serve packed sequences count by along its batch; None for an input that is never packed."""
    length = length_along(tensor)
    return None if length is None else BEGIN[length]


def has_room(tensor: Input) -> bool:
    """Whether its strides do not follow from a sequence's own lengths: it has room for others, or is packed."""
    return is_packed(tensor) or any(variables(dim.size) & {"q_len", "kv_len"} for dim in tensor.dims[1:])


def stride_of_sums(tensor: Input, axis: int) -> Expr:
    """The argument of kernels that says how far apart the gradient's elements lie along an axis."""
    return var(f"{_STRIDE}{tensor.name}_{axis}_sums", Type.INT)


def is_stride(expr: Expr) -> bool:
    """Whether it is an argument of kernels that says how far apart elements lie."""
    return isinstance(expr, Var) and expr.name.startswith(_STRIDE)
