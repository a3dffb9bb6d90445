"""The intervals of floats, as kernels compute them in float32.

Whatever the caller passes may be infinite or no number, and of such operands nothing is said: a float that has an
interval with ends is finite. Ends are moved outwards by more than an operation's rounding, or the GPU's approximation
of a function, comes to.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable

from flashgen.lang.elementary import DERIVED, ELEMENTARY, Elementary
from flashgen.lang.interval import ANYTHING, INT64, LARGEST_FLOAT32, LEAST_FLOAT32, Interval, corners

# More than what float32 rounds by; than what functions that GPUs approximate are wrong by, beside that.
_RELATIVE, _OF_FUNCTIONS = 2.0**-18, 2.0**-18

Rule = Callable[..., Interval]


def constant(value: float) -> Interval:
    """A number and what float32 has in its place."""
    if not abs(value) <= LARGEST_FLOAT32:
        return ANYTHING
    (held,) = struct.unpack("f", struct.pack("f", value))
    return Interval(min(value, held), max(value, held))


def whole(a: Interval) -> Interval:
    """The floor of a float, an integer of 64 bits."""
    return Interval(math.floor(a.low), math.floor(a.high)) if a.has_ends else INT64


def truncated(a: Interval) -> Interval:
    """A float rounded toward zero, an integer of 64 bits."""
    return Interval(math.trunc(a.low), math.trunc(a.high)) if a.has_ends else INT64


def _have_ends(operands: Iterable[Interval]) -> bool:
    return all(operand.has_ends for operand in operands)


def _widened(found: Interval, absolute: float) -> Interval:
    """What is rounded keeps its sign, unless a function is wrong by so much beside its result, or becomes zero."""
    low = found.low - abs(found.low) * _RELATIVE - absolute
    high = found.high + abs(found.high) * _RELATIVE + absolute
    low, high = 0.0 if 0 < low < LEAST_FLOAT32 else low, 0.0 if -LEAST_FLOAT32 < high < 0 else high
    found = Interval(low, high)
    return found if found.within(-LARGEST_FLOAT32, LARGEST_FLOAT32) else ANYTHING


def _rounded(rule: Rule, absolute: float = 0.0) -> Rule:
    """A rule for operands that have ends, whose result is rounded."""
    return lambda *operands: _widened(rule(*operands), absolute) if _have_ends(operands) else ANYTHING


def _exact(rule: Rule) -> Rule:
    """A rule for operands that have ends, whose result is one of them."""
    return lambda *operands: rule(*operands) if _have_ends(operands) else ANYTHING


def _elementary(function: Elementary) -> Rule:
    """Of one that is bounded all its values; of one that rises those at the ends."""

    def rule(a: Interval) -> Interval:
        if function.within.has_ends:
            return function.within
        if not function.rises or not a.within(function.domain.low, function.domain.high):
            return ANYTHING
        return Interval(float(function.value(a.low)), float(function.value(a.high)))

    return _rounded(rule, _OF_FUNCTIONS)


def _quotient(a: Interval, b: Interval) -> Interval:
    if b.low < LEAST_FLOAT32 and b.high > -LEAST_FLOAT32:
        return ANYTHING
    return corners(lambda x, y: x / y)(a, b)


def _absolute(a: Interval) -> Interval:
    return Interval(max(a.low, -a.high, 0.0), max(-a.low, a.high))


FLOAT_RULES: dict[str, Rule] = {
    "add": _rounded(lambda a, b: Interval(a.low + b.low, a.high + b.high)),
    "sub": _rounded(lambda a, b: Interval(a.low - b.high, a.high - b.low)),
    "mul": _rounded(corners(lambda x, y: x * y)),
    **dict.fromkeys(("truediv", "quotient"), _rounded(_quotient)),
    "neg": _exact(lambda a: Interval(-a.high, -a.low)),
    "abs": _exact(_absolute),
    "min": _exact(lambda a, b: Interval(min(a.low, b.low), min(a.high, b.high))),
    "max": _exact(lambda a, b: Interval(max(a.low, b.low), max(a.high, b.high))),
    "where": _exact(lambda test, a, b: Interval(min(a.low, b.low), max(a.high, b.high))),
    "to_float": _rounded(lambda a: a),
    **{name: _elementary(function) for name, function in {**ELEMENTARY, **DERIVED}.items()},
}
