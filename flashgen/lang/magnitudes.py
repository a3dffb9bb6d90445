"""How large a float expression may become, as far as its text tells.

A score, positions and sizes count as moderate. What the caller gives does not, be it for each pair or one number for a
call: an additive mask holds -10000, -1e9 or the least float32 that there is, and so may the runtime param that it is
made of. Only as the factor or divisor of a distance or a score is one number moderate: there it is a slope or a cap,
and not what a test or an element of an input switches on and off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction

from flashgen.lang.elementary import DERIVED, ELEMENTARY
from flashgen.lang.interval import LARGEST_FLOAT32, LEAST_FLOAT32
from flashgen.lang.intervals import assumed
from flashgen.lang.nodes import Const, Expr, Gather, Index, Op, Reduction, Type, Var
from flashgen.lang.traversal import walk
from flashgen.lang.vocabulary import MEANINGS

_SCORE, _ONE_NUMBER, _INTEGER, _WIDE_INTEGER = 1e4, 1e3, 2.0**31, 2.0**63


class _Kind(IntEnum):
    """What a value is over the pairs of a tile; of what an operation keeps as it is, the highest of its operands."""

    NUMBER = 0  # one for all of them
    GRADED = 1  # a distance, a position or a score, stretched and shifted
    OTHER = 2


@dataclass(frozen=True)
class _Size:
    bound: float
    kind: _Kind


def magnitude(root: Expr) -> float:
    """A bound of the absolute value; infinite where nothing bounds it."""
    return _sizes(root)[root].bound


def _sizes(root: Expr) -> dict[Expr, _Size]:
    known: dict[Expr, _Size] = {}
    for node in walk(root):
        parts = [known[child] for child in node.children]
        known[node] = _Size(_bound(node, parts), _kind(node, parts))
    return known


def is_held(size: float | Fraction) -> bool:
    """Whether a number of this absolute value is a normal one of float32."""
    return LEAST_FLOAT32 <= size <= LARGEST_FLOAT32


def is_beyond(limit: float, node: Expr) -> bool:
    """Whether it is a constant, a finite one, larger than the limit."""
    return isinstance(node, Const) and limit < abs(node.value) < math.inf


def is_tame(expr: Expr) -> bool:
    """Whether it is a finite number for whatever numbers it is made of, but for overflow."""
    return all(not isinstance(node, Op) or node.type is not Type.FLOAT or keeps_finite(node) for node in walk(expr))


def keeps_finite(node: Op) -> bool:
    """Whether an operation makes finite numbers of finite ones, but for overflow."""
    if node.name == "truediv":
        divisor = node.args[1]
        return isinstance(divisor, Const) and divisor.value != 0
    return node.name in _TAME


def is_finite(expr: Expr) -> bool:
    """Whether it is finite in float32: no operation makes it infinite, and nothing that the caller gives may be.

    Nor may what the caller gives for each pair below a function that has bounds: of NaN a tanh is NaN. One number that
    is no number leaves no pair with a score, hidden or not.
    """
    operations = all(not isinstance(node, Op) or node.name in _TAME for node in walk(expr))
    steps = {node for node in walk(expr) if node.type is not Type.FLOAT}
    sizes = _sizes(expr)
    within = (sizes[node] for node in walk(expr, to=steps) if node not in steps)
    held = all(size.bound <= LARGEST_FLOAT32 or size.kind is _Kind.NUMBER for size in within)
    return operations and held and sizes[expr].bound <= LARGEST_FLOAT32


def is_surely_finite(root: Expr) -> bool:
    """`is_finite`, whatever numbers a caller gives: a slope may be infinite, and a mask then compares NaN."""
    known: dict[Expr, float] = {}
    for node in walk(root):
        known[node] = _sure_bound(node, [known[child] for child in node.children])
    return known[root] <= LARGEST_FLOAT32


def may_pass_64_bits(root: Expr) -> bool:
    """Whether integers of 64 bits may not hold it, for whatever floats a caller gives beside scores."""
    floats = (node for node in walk(root) if node.type is Type.FLOAT)
    given = any(isinstance(node, Gather) or (isinstance(node, Var) and node.name not in MEANINGS) for node in floats)
    return given or magnitude(root) >= 2.0**63


def _sure_bound(node: Expr, bounds: list[float]) -> float:
    if node.type is not Type.FLOAT:
        return _WIDE_INTEGER
    if isinstance(node, Const):
        return abs(float(node.value)) if math.isfinite(node.value) else math.inf
    # The cosine of what is infinite in float32 is NaN, though cosines are small.
    if not isinstance(node, Op) or node.name not in _TAME or max(bounds) > LARGEST_FLOAT32:
        return math.inf
    return math.prod(bounds) if node.name == "mul" else _RULES.get(node.name, _unbounded)(*bounds)


def _kind(node: Expr, parts: list[_Size]) -> _Kind:
    highest = max((part.kind for part in parts), default=_Kind.NUMBER)
    if isinstance(node, Var):
        return _Kind.GRADED if node.name in ("q", "k", "qk", "score") else _Kind.NUMBER
    if isinstance(node, Op) and node.name in _KEEPING:
        return highest
    return _Kind.OTHER if highest else _Kind.NUMBER


def _bound(node: Expr, parts: list[_Size]) -> float:
    if isinstance(node, Const):
        return math.inf if math.isnan(node.value) else abs(float(node.value))
    if node.type is Type.BOOL:
        return 1.0
    if isinstance(node, Var):
        return _OF_NAMES.get(node.name, math.inf)
    if isinstance(node, Index):
        return _INTEGER
    if isinstance(node, Gather) or (isinstance(node, Reduction) and node.type is Type.FLOAT):
        return math.inf
    if isinstance(node, Reduction):
        return _INTEGER if parts[1].bound < math.inf else math.inf
    assert isinstance(node, Op)
    bounds = [part.bound for part in parts]
    if node.type is Type.INT:
        within = _product(*parts) if node.name == "mul" else max(bounds)
        return _INTEGER if within < math.inf else _narrowed(node)
    if node.name == "mul":
        return _product(*parts)
    if node.name == "truediv":
        # One number is as far from zero as from infinity.
        number = _Size(_ONE_NUMBER if parts[1].bound < math.inf else math.inf, _Kind.NUMBER)
        return math.inf if parts[1].kind else _product(parts[0], number)
    return _RULES.get(node.name, _unbounded)(*bounds)


def _narrowed(node: Expr) -> float:
    """The bound of an integer that the caller's go into: of one that is clamped, or the remainder of a division."""
    found = assumed().of(node)
    bound = max(abs(found.low), abs(found.high))
    return bound if bound <= _SCORE else math.inf


def _product(x: _Size, y: _Size) -> float:
    if 0.0 in (x.bound, y.bound):
        return 0.0
    for number, other in ((x, y), (y, x)):
        if number.kind is _Kind.NUMBER and number.bound == math.inf and other.kind is _Kind.GRADED:
            return _ONE_NUMBER * other.bound
    return x.bound * y.bound


def _unbounded(*bounds: float) -> float:
    return math.inf


_BOUNDED = {name: function.most for name, function in {**ELEMENTARY, **DERIVED}.items() if function.most < math.inf}
# Functions of finite numbers that are finite, but for overflow.
_TAME = frozenset({
    "add", "sub", "mul", "neg", "abs", "min", "max", "where", "to_float", "to_int", "floor", "not", "and", "or", "xor",
    "lt", "le", "gt", "ge", "eq", "ne", "shl", "shr", *_BOUNDED,
})  # fmt: skip
_OF_NAMES = dict.fromkeys(MEANINGS, _INTEGER) | dict.fromkeys(("qk", "score"), _SCORE) | {"scale": _ONE_NUMBER}
_KEEPING = frozenset({"add", "sub", "neg", "abs", "mul", "truediv", "to_float", "tanh", "softcap", "sigmoid", "sqrt"})
_RULES: dict[str, Callable[..., float]] = {
    **dict.fromkeys(("add", "sub"), lambda x, y: x + y),
    **dict.fromkeys(("neg", "abs", "to_float"), lambda x: x),
    **dict.fromkeys(("min", "max"), max),
    "where": lambda test, x, y: max(x, y),
    **{name: lambda x, most=most: most for name, most in _BOUNDED.items()},
    "sqrt": lambda x: max(1.0, x),
    "mod": lambda x, y: y,
}
