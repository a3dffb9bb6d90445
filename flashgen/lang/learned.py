"""Where the gradient of a learned input goes: how the pairs that read it share addresses.

Each pair (q, k) adds to the element that its load read. What the index depends on decides how much of a tile may be
summed before anything is added in memory: a whole tile, a row, a column, a diagonal, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from flashgen.lang.derivative import LoadSite
from flashgen.lang.fold import fold
from flashgen.lang.intervals import Ranges
from flashgen.lang.linear import Linear, expression, linear
from flashgen.lang.nodes import COMPARISONS, FALSE, TRUE, Expr, Gather, Op, Type, const, op, var
from flashgen.lang.places import one_place
from flashgen.lang.traversal import inputs, substitute, transform, variables
from flashgen.lang.variables import K_FIRST, KV_LEN, Q_FIRST, Q_LEN, B, H, K, Q

_DISTANCE = var("q - k", Type.INT)  # no name of the language, so that it meets none


class Sharing(Enum):
    """Which pairs of one head share an element, by what its index depends on."""

    ALL = "neither q nor k"
    ROW = "q alone"
    COLUMN = "k alone"
    DIAGONAL = "q - k alone"
    ANY = "q and k"


@dataclass(frozen=True)
class Own:
    """Each pair of a head has an element to itself, so that a plain store will do.

    That holds where `when` does, a bool of sizes and runtime params: otherwise indices may leave the tensor, and share
    its edge. `told_apart` are those of "b" and "h" whose pairs never share one either.
    """

    when: Expr
    told_apart: frozenset[str]

    @property
    def shared_by(self) -> str:
        """Which programs meet at an element all the same: "" none, "batch" those of the other batch elements, "heads"
        also those of other heads."""
        if self.told_apart >= {"b", "h"}:
            return ""
        return "batch" if "h" in self.told_apart else "heads"


@dataclass(frozen=True)
class Placement:
    """Where a load site's gradient goes: `offset` numbers the elements of a contiguous tensor of the input's shape.

    `by_distance` is, for DIAGONAL, the offset of distance q_first - k. `uniform`, for DIAGONAL and ANY, is a bool of a
    tile's corners q_first, q_last, k_first, k_last: where it holds, all pairs of the tile share the element at
    `corner`; None where interval arithmetic does not know. `own` is None where pairs may share elements. `strides`:
    those by which the elements are numbered, where these do not follow from the sizes of a sequence.
    """

    site: LoadSite
    sharing: Sharing
    offset: Expr
    by_distance: Expr | None = None
    uniform: Expr | None = None
    own: Own | None = None
    strides: tuple[Expr, ...] = ()

    @property
    def corner(self) -> Expr:
        return fold(substitute(self.offset, {Q: Q_FIRST, K: K_FIRST}))


def placement(
    site: LoadSite, sizes: Sequence[Expr], ranges: Ranges, strides: Sequence[Expr] = (), places: Sequence[Expr] = ()
) -> Placement:
    """How to add up the gradient of a load site, for an input whose dimensions have these sizes.

    `strides` are those of the tensor itself, where it has room for more than is read, and `places` what they count.
    """
    indices = [ranges.kept_inside(site.gather, axis, size) for axis, size in enumerate(sizes)]
    offset = _offset(places or indices, sizes, strides)
    return replace(_placement(site, sizes, ranges, indices, offset), strides=tuple(strides))


def _placement(
    site: LoadSite, sizes: Sequence[Expr], ranges: Ranges, indices: Sequence[Expr], offset: Expr
) -> Placement:  # fmt: skip
    axes = variables(offset) & {"q", "k", "score"}
    if axes < {"q", "k"}:
        return Placement(site, {"": Sharing.ALL, "q": Sharing.ROW, "k": Sharing.COLUMN}["".join(axes)], offset)
    by_distance = _by_distance(offset)
    if by_distance is not None:
        return Placement(site, Sharing.DIAGONAL, offset, by_distance, uniform=one_place(indices))
    own = _own(site.gather, sizes, ranges)
    return Placement(site, Sharing.ANY, offset, uniform=None if own else one_place(indices), own=own)


def _offset(indices: Sequence[Expr], sizes: Sequence[Expr], strides: Sequence[Expr]) -> Expr:
    """The number of an element of a contiguous tensor, by its strides or by Horner's rule."""
    whole: Expr = const(0)
    if strides:
        for index, stride in zip(indices, strides, strict=True):
            whole = op("add", whole, op("mul", index, stride))
        return fold(whole)
    for index, size in zip(indices, sizes, strict=True):
        whole = op("add", op("mul", whole, size), index)
    return fold(whole)


def _by_distance(offset: Expr) -> Expr | None:
    """The offset as a function of q_first - k, if of q and k it reads the difference alone."""
    shifted = transform(substitute(offset, {Q: op("add", _DISTANCE, K)}), _gathered)
    if variables(shifted) & {"k", "score"}:
        return None
    return fold(transform(substitute(shifted, {_DISTANCE: op("sub", Q_FIRST, K)}), _gathered))


def _gathered(node: Expr) -> Expr:
    """Sums with their terms gathered, so that what cancels is gone; a comparison of sums becomes one with a number."""
    if not isinstance(node, Op):
        return node
    if node.name in ("add", "sub", "neg", "mul") and node.type is Type.INT:
        return expression(linear(node))
    if node.name in COMPARISONS and node.args[0].type is Type.INT:
        gap = linear(node.args[0]) - linear(node.args[1])
        return fold(op(node.name, expression(Linear(gap.terms, 0)), const(-gap.constant)))
    return node


def steps_with_each(gather: Gather) -> bool:
    """Whether an index is another one for each query or each key, so that no tile reads at one place."""
    return any({Q, K} & linear(index).terms.keys() for index in gather.indices)


def _own(gather: Gather, sizes: Sequence[Expr], ranges: Ranges) -> Own | None:
    """Whether the indices tell all pairs of a head apart, and all heads and batch elements.

    That takes one index for each of q and k, a multiple of it plus sizes and runtime params.
    """
    positions = {
        Q: (op("sub", KV_LEN, Q_LEN), op("sub", KV_LEN, const(1))) if ranges.bottom_right else _below(Q_LEN),
        K: _below(KV_LEN),
    }
    when: Expr = TRUE
    told_apart: set[Expr] = set()
    for axis, (index, size) in enumerate(zip(gather.indices, sizes, strict=True)):
        form = linear(index)
        if set(form.terms) in ({B}, {H}) and not any(ranges.guard(gather, axis, size)):
            told_apart |= set(form.terms)
        for position, ends in positions.items():
            slope, rest = form.terms.get(position, 0), form.without(position)
            if slope and _is_scalar(expression(rest)):
                low, high = (rest + linear(end) * slope for end in (ends if slope > 0 else ends[::-1]))
                inside = op("and", _at_least_0(low), _at_least_0(linear(size) - high - Linear({}, 1)))
                when = fold(op("and", when, inside))
                told_apart.add(position)
    if not told_apart >= {Q, K} or when is FALSE:
        return None
    return Own(when, frozenset(variables(*(told_apart & {B, H}))))


def _below(length: Expr) -> tuple[Expr, Expr]:
    return const(0), op("sub", length, const(1))


def _is_scalar(expr: Expr) -> bool:
    """Whether the host knows the value: sizes and runtime params."""
    return not inputs(expr) and not variables(expr) & {"b", "h", "kv_h", "q", "k", "score"}


def _at_least_0(form: Linear) -> Expr:
    if not form.terms:
        return const(form.constant >= 0)
    positive = Linear({atom: c for atom, c in form.terms.items() if c > 0}, form.constant)
    negative = Linear({atom: -c for atom, c in form.terms.items() if c < 0}, 0)
    return op("ge", expression(positive), expression(negative))
