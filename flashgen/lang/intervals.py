"""Numeric intervals: what range an expression's value has, whatever the caller passes.

They decide how the kernel computes, never what: where 32-bit integers could overflow, where a float holds an integer
exactly, where an index needs no guard, where a floor division is a plain one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flashgen.lang.extrema import without_negated_operands
from flashgen.lang.float_intervals import FLOAT_RULES, constant, truncated, whole
from flashgen.lang.fold import simplify
from flashgen.lang.interval import ANYTHING, BOOLEAN, INT32, INT64, Interval, corners
from flashgen.lang.linear import linear
from flashgen.lang.nodes import Const, Expr, Gather, Index, Op, Reduction, Type, Var, const, op
from flashgen.lang.short_floors import with_short_floors
from flashgen.lang.traversal import bottom_up, variables
from flashgen.lang.variables import KV_LEN, Q_LEN, TOTAL_K, TOTAL_Q, Q

# The longest sequence that attention() accepts: the integers that float32 holds exactly.
MAX_LENGTH = 2**24 - 1
MAX_HEADS = 2**20


_KNOWN = {
    **dict.fromkeys(("q", "q_first", "q_last", "q_start", "q_end"), Interval(-MAX_LENGTH, MAX_LENGTH)),
    **dict.fromkeys(("k", "k_first", "k_last"), Interval(0, MAX_LENGTH)),
    "q_len": Interval(1, MAX_LENGTH),
    "kv_len": Interval(1, MAX_LENGTH),
    "b": Interval(0, MAX_LENGTH),
    "batch": Interval(1, MAX_LENGTH),
    **dict.fromkeys(("h", "row_h", "kv_h"), Interval(0, MAX_HEADS - 1)),
    **dict.fromkeys(("heads", "kv_heads"), Interval(1, MAX_HEADS)),
    "head_dim": Interval(1, 512),
    **dict.fromkeys(("begin_q", "begin_k"), Interval(0, MAX_LENGTH)),
    **dict.fromkeys(("total_q", "total_k"), Interval(1, MAX_LENGTH)),
}
# What packed sequences are long together: the index of a token is kept inside its own sequence.
_TOTALS = frozenset({TOTAL_Q, TOTAL_K})

_INTEGER_RANGES = {
    "bool": BOOLEAN,
    "int8": Interval(-(2**7), 2**7 - 1),
    "uint8": Interval(0, 2**8 - 1),
    "int16": Interval(-(2**15), 2**15 - 1),
    "int32": INT32,
    "int64": INT64,
}


@dataclass
class Ranges:
    """Computes intervals, each node once.

    `dtypes` names the dtype of each input, `sizes` the named dimensions. `bottom_right`: the last query stands at the
    last key, so that no position passes kv_len.
    """

    dtypes: Mapping[str, str] = field(default_factory=dict)
    sizes: frozenset[str] = frozenset()
    bottom_right: bool = True
    _known: dict[Expr, Interval] = field(default_factory=dict)
    _plain: dict[Expr, Expr] = field(default_factory=dict)

    def of(self, expr: Expr) -> Interval:
        return bottom_up(expr, self._known, self._compute)

    def assume(self, expr: Expr, interval: Interval) -> None:
        """Take this for the interval of an expression, for all of which it is part and nobody has asked yet."""
        self._known[expr] = interval

    def may_wrap(self, expr: Expr) -> bool:
        """Whether an INT expression may pass 64 bits, so that its value is what they hold of it."""
        if not isinstance(expr, Op | Reduction) or expr.type is not Type.INT:
            return False
        return not self._exact(expr).within(INT64.low, INT64.high)

    @property
    def _row(self) -> Expr:
        """The number of a query's row, counted from 0."""
        return op("sub", Q, op("sub", KV_LEN, Q_LEN)) if self.bottom_right else Q

    def fits_int32(self, expr: Expr) -> bool:
        return self.of(expr).within(INT32.low, INT32.high)

    def plain(self, expr: Expr) -> Expr:
        """The expression as kernels compute it, without what an assembler gets wrong; asked once for all kernels."""
        if expr not in self._plain:
            short = with_short_floors(expr, self.fits_int32)
            self._plain[expr] = without_negated_operands(short, self.fits_int32, self.may_wrap)
        return self._plain[expr]

    def exact_in_float32(self, expr: Expr) -> bool:
        return self.of(expr).within(-(2**24), 2**24)

    def guard(self, gather: Gather, axis: int, size: Expr) -> tuple[bool, bool]:
        """Whether an index may fall below 0, and whether it may pass the end of a dimension of this size.

        Positions count as inside the sequences that they run over: the kernel and the reference see to that.
        """
        index = gather.indices[axis]
        low_unsafe = self.of(index).low < 0
        if size in _TOTALS:
            return False, False
        if size is Q_LEN and linear(index) == linear(self._row):
            return False, False
        if isinstance(index, Index) and index.length is size:
            return False, False
        if isinstance(index, Var) and isinstance(size, Var):
            runs_over = {"b": "batch", "h": "heads", "row_h": "heads", "kv_h": "kv_heads", "k": "kv_len"}
            if self.bottom_right:
                runs_over["q"] = "kv_len"
            if runs_over.get(index.name) == size.name:
                return low_unsafe, False
        return low_unsafe, self.of(index).high > self.of(size).low - 1

    def kept_inside(self, gather: Gather, axis: int, size: Expr) -> Expr:
        """An index, or the nearest one inside its dimension of this size."""
        index = gather.indices[axis]
        below, beyond = self.guard(gather, axis, size)
        if beyond:
            # Of a packed sequence that is too short for one element the tensor, which suits the longest, has the first.
            below = below or (bool(variables(size) & {"q_len", "kv_len"}) and self.of(size).low < 1)
            index = simplify(op("min", index, simplify(op("sub", size, const(1)))))
        return simplify(op("max", index, const(0))) if below else index

    def _compute(self, expr: Expr) -> Interval:
        if isinstance(expr, Const):
            return constant(expr.value) if expr.type is Type.FLOAT else Interval(expr.value, expr.value)
        if isinstance(expr, Var):
            if expr.type is Type.BOOL:
                return BOOLEAN
            if expr.name in self.sizes:
                return Interval(1, INT32.high)
            return _KNOWN.get(expr.name, INT32 if expr.type is Type.INT else ANYTHING)
        if isinstance(expr, Gather):
            return _INTEGER_RANGES.get(self.dtypes[expr.input], ANYTHING)
        if isinstance(expr, Index):
            return Interval(0, max(self.of(expr.length).high - 1, 0))
        assert isinstance(expr, Op | Reduction)
        if expr.type is Type.BOOL:
            return BOOLEAN
        if expr.type is Type.FLOAT:
            return self._rounded(expr)
        found = self._exact(expr)
        # What may pass 64 bits wraps, to any value.
        return found if found.within(INT64.low, INT64.high) else INT64

    def _rounded(self, expr: Op | Reduction) -> Interval:
        """The interval of a FLOAT operation as kernels compute it, in float32."""
        rule = FLOAT_RULES.get(expr.name) if isinstance(expr, Op) else None
        return rule(*(self.of(part) for part in expr.children)) if rule else ANYTHING

    def _exact(self, expr: Op | Reduction) -> Interval:
        """The interval of an INT operation, or of a sum and all that it comes to on the way, if integers had no end."""
        if isinstance(expr, Reduction):
            most, term = max(self.of(expr.index.length).high, 0), self.of(expr.term)
            return Interval(min(term.low * most, 0), max(term.high * most, 0))
        rule = _RULES.get(expr.name)
        found = rule(*(self.of(arg) for arg in expr.args)) if rule else INT64
        if expr.name == "sub" and _are_remainders_of_one_divisor(*expr.args):
            return _between_remainders(found, self.of(expr.args[0].children[1]))
        return found


def assumed() -> Ranges:
    """Where dtypes are not known: integers of inputs have 32 bits."""
    return Ranges(defaultdict(lambda: "int32"))


def _floordiv(a: Interval, b: Interval) -> Interval:
    """Quotients are largest at the divisors nearest to zero, and 0 where the divisor is."""
    divisors = [d for d in (b.low, b.high, 1, -1) if b.low <= d <= b.high and d != 0]
    values = [x // d for x in (a.low, a.high) for d in divisors]
    values += [0] if b.low <= 0 <= b.high else []
    return Interval(min(values), max(values))


def _mod(a: Interval, b: Interval) -> Interval:
    if b.low > 0:
        return Interval(0, min(b.high - 1, a.high) if a.low >= 0 else b.high - 1)
    return Interval(min(b.low + 1, 0), max(b.high - 1, 0))


def _are_remainders_of_one_divisor(a: Expr, b: Expr) -> bool:
    both = all(isinstance(x, Op) and x.name in ("mod", "remainder_of") for x in (a, b))
    return both and a.children[1] is b.children[1]


def _between_remainders(found: Interval, divisor: Interval) -> Interval:
    """Remainders have the sign of their divisor: one less another is nearer to 0 than that is."""
    most = max(abs(divisor.low), abs(divisor.high), 1) - 1
    return Interval(max(found.low, -most), min(found.high, most))


def _absolute(a: Interval) -> Interval:
    if a.low >= 0:
        return a
    return Interval(0 if a.high >= 0 else -a.high, max(-a.low, a.high))


def _bits(a: Interval, b: Interval) -> Interval:
    """and, or, xor of integers stay within the power of two that holds both, and keep the sign of two naturals."""
    widest = max(abs(v) for v in (a.low, a.high, b.low, b.high))
    top = (1 << int(widest).bit_length()) - 1
    return Interval(0 if a.low >= 0 and b.low >= 0 else -top - 1, top)


def _pow(a: Interval, b: Interval) -> Interval:
    """The exponent of an integer is a constant."""
    ends = [a.low**b.low, a.high**b.low]
    is_even = b.low % 2 == 0
    return Interval(0 if is_even and a.low <= 0 <= a.high else min(ends), max(ends))


# On integers alone.
_RULES: dict[str, Callable[..., Interval]] = {
    "add": lambda a, b: Interval(a.low + b.low, a.high + b.high),
    "sub": lambda a, b: Interval(a.low - b.high, a.high - b.low),
    "neg": lambda a: Interval(-a.high, -a.low),
    "mul": corners(lambda x, y: x * y),
    "floordiv": _floordiv,
    "mod": _mod,
    "floor": whole,
    "trunc": truncated,
    "pow": _pow,
    "abs": _absolute,
    "min": lambda a, b: Interval(min(a.low, b.low), min(a.high, b.high)),
    "max": lambda a, b: Interval(max(a.low, b.low), max(a.high, b.high)),
    "where": lambda c, a, b: Interval(min(a.low, b.low), max(a.high, b.high)),
    **dict.fromkeys(("and", "or", "xor"), _bits),
    "not": lambda a: Interval(-a.high - 1, -a.low - 1),
    "shl": corners(lambda x, n: x << min(max(n, 0), 63)),
    "shr": lambda a, b: Interval(min(a.low, 0), max(a.high, 0)),
    # Of a reciprocal, what it is of is known.
    **dict.fromkeys(("to_int", "tile_min", "tile_max", "reciprocal_of"), lambda a: a),
    "floordiv_by": _floordiv,
    "remainder_of": lambda a, b, quotient: _mod(a, b),
}
