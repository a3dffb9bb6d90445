"""Where the gradient of a learned input goes: how the pairs that read it share addresses.

Each pair (q, k) adds to the element that its load read. What the index depends on decides how much of a tile may be
summed before anything is added in memory: a whole tile, a row, a column, a diagonal, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial, reduce

from flashgen.lang.derivative import LoadSite
from flashgen.lang.fold import fold
from flashgen.lang.intervals import Ranges
from flashgen.lang.linear import Linear, expression, linear
from flashgen.lang.nodes import COMPARISONS, FALSE, TRUE, Expr, Gather, Op, Type, const, op, var
from flashgen.lang.places import one_place
from flashgen.lang.traversal import inputs, substitute, transform, variables
from flashgen.lang.variables import BATCH, HEADS, K_FIRST, KV_H, KV_HEADS, KV_LEN, Q_FIRST, Q_LEN, B, H, K, Q

_DISTANCE = var("q - k", Type.INT)  # no name of the language, so that it meets none


class Sharing(Enum):
    """Which pairs of one head share an element, by what its index depends on."""

    ALL = "neither q nor k"
    ROW = "q alone"
    COLUMN = "k alone"
    DIAGONAL = "q - k alone"
    ANY = "q and k"


@dataclass(frozen=True)
class Group:
    """Batch elements, or heads, that share elements with each other and with no others: those of one `number`, which is
    `axis // size`, or where they are `strided` `axis % size`; `axis` is B or H."""

    axis: Expr
    number: Expr
    size: Expr
    strided: bool = False


@dataclass(frozen=True)
class Own:
    """Each pair of a head has an element to itself, so that a plain store will do.

    That holds where `when` does, a bool of sizes and runtime params: otherwise indices may leave the tensor, and share
    its edge. `told_apart` are those of "b" and "h" whose pairs never share one either, `groups` is how the others are
    told apart, if they are.
    """

    when: Expr
    told_apart: frozenset[str]
    groups: tuple[Group, ...] = ()

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
    """Whether the indices tell all pairs of a head apart, and all heads and batch elements, or groups of them.

    That takes one index for each of q and k, a multiple of it plus sizes and runtime params.
    """
    ends = {
        Q: (op("sub", KV_LEN, Q_LEN), op("sub", KV_LEN, const(1))) if ranges.bottom_right else _below(Q_LEN),
        K: _below(KV_LEN),
        B: _below(BATCH),
        H: _below(HEADS),
    }
    conditions: dict[Expr, Expr] = {}
    groups: dict[Expr, Group] = {}
    for index, size in zip(gather.indices, sizes, strict=True):
        form = linear(index)
        for number in form.terms:
            if not _is_scalar(expression(form.without(number))):
                continue
            if number in ends:
                conditions[number] = _inside(form, number, ends[number], size)
            elif (group := _group(number)) is not None:
                groups[group.axis] = group
                conditions[number] = op("and", _exists(group), _inside(form, number, _numbers(group), size))
    if not {Q, K} <= conditions.keys():
        return None
    left = [group for axis, group in groups.items() if axis not in conditions]
    told_apart = [each for each in ends if each in conditions]
    when = fold(reduce(partial(op, "and"), (conditions[each] for each in (*told_apart, *(g.number for g in left)))))
    return None if when is FALSE else Own(when, frozenset(variables(*told_apart) & {"b", "h"}), tuple(left))


def _inside(form: Linear, position: Expr, ends: tuple[Expr, Expr], size: Expr) -> Expr:
    """Whether the index of this form is inside its dimension wherever the position lies between its ends."""
    slope, rest = form.terms[position], form.without(position)
    low, high = (rest + linear(end) * slope for end in (ends if slope > 0 else ends[::-1]))
    return op("and", _at_least_0(low), _at_least_0(linear(size) - high - Linear({}, 1)))


def _group(number: Expr) -> Group | None:
    """The groups that this value numbers, if it does."""
    if number is KV_H:
        return Group(H, number, op("floordiv", HEADS, KV_HEADS))
    if not isinstance(number, Op) or number.name not in ("floordiv", "mod"):
        return None
    axis, size = number.args
    return Group(axis, number, size, number.name == "mod") if axis in (B, H) and _is_scalar(size) else None


def _exists(group: Group) -> Expr:
    """Whether a group has anything: heads that share keys and values do."""
    return TRUE if group.number is KV_H else _at_least_0(linear(op("sub", group.size, const(1))))


def _numbers(group: Group) -> tuple[Expr, Expr]:
    """The first and the last number of a group."""
    if group.number is KV_H:
        return _below(KV_HEADS)
    many = {B: BATCH, H: HEADS}[group.axis]
    if group.strided:
        return _below(op("min", group.size, many))
    return const(0), op("floordiv", op("sub", many, const(1)), group.size)


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
