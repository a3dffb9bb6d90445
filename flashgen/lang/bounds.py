"""What a mask says about the range of keys that one query sees, in closed form.

`key_range(mask)` reads comparisons that isolate k (`k <= f`, `k >= f`, f free of k) off the mask. For each query the
keys that satisfy them are one interval [max(lower), min(upper)]; what they leave unsaid stays in `residual`.
No rule is written for any one mask: conjunctions intersect, disjunctions of bounds on the same side take the wider,
a condition free of k opens or closes the whole row, and everything else is residual.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import reduce

from flashgen.lang.fold import fold
from flashgen.lang.intervals import Ranges, assumed
from flashgen.lang.linear import difference, expression, linear
from flashgen.lang.nodes import FLIPPED, NEGATED, TRUE, Expr, Op, Type, const, op
from flashgen.lang.recursion import Recursion
from flashgen.lang.traversal import substitute, variables, walk
from flashgen.lang.variables import KV_LEN, LAST_KEY, Q_LEN, K, Q

# Comparisons are solved where all that they add up stays below this.
_ROOM = 2**62
# No multiple of a position that a mask could mean reaches this far.
_FAR = 2**40


@dataclass(frozen=True)
class KeyRange:
    """Key k is visible iff k >= each of `lower`, k <= each of `upper` (INT, free of k) and `residual` holds."""

    lower: tuple[Expr, ...] = ()
    upper: tuple[Expr, ...] = ()
    residual: Expr = TRUE

    @property
    def closed(self) -> bool:
        return self.residual is TRUE

    @property
    def lower_bound(self) -> Expr | None:
        return _fold_with("max", self.lower)

    @property
    def upper_bound(self) -> Expr | None:
        return _fold_with("min", self.upper)


# The rule of a recursion that asks for the ranges of other masks.
Step = Generator[Expr, KeyRange, KeyRange]


def key_range(mask: Expr, ranges: Ranges | None = None) -> KeyRange:
    """The closed-form range of visible keys of a bool expression, and what remains to be checked pair by pair.

    `ranges` tells where integers may pass 64 bits; without it those of inputs are taken to have 32 bits.
    """
    found = _Solver(ranges or assumed()).range_of(mask)
    # No bound: the mask may hold for every key, and not ask for one that there is.
    upper = tuple(bound for bound in map(fold, found.upper) if bound != fold(LAST_KEY))
    return KeyRange(tuple(map(fold, found.lower)), upper, fold(found.residual))


def row_range(mask: Expr, bottom_right: bool, ranges: Ranges | None = None) -> KeyRange:
    """The range of the rows that see one key: bounds, free of q, of the row's number from 0, and what remains.

    Where `bottom_right`, row i stands at position i + kv_len - q_len, else at i. What the mask is joined of by "and" is
    either wholly in the bounds or wholly in the residual.
    """
    # Rows and keys trade places, and with them the lengths: then the bounds are those of a key range.
    row = op("add", K, op("sub", Q_LEN, KV_LEN)) if bottom_right else K

    def turned(expr: Expr) -> KeyRange:
        return key_range(substitute(expr, {Q: row, K: Q, KV_LEN: Q_LEN, Q_LEN: KV_LEN}), ranges)

    def back(expr: Expr) -> Expr:
        return fold(substitute(expr, {Q: K, KV_LEN: Q_LEN, Q_LEN: KV_LEN}))

    parts = conjuncts(mask)
    closed = [part for part in parts if turned(part).closed]
    found = turned(_all(closed))
    return KeyRange(
        tuple(map(back, found.lower)), tuple(map(back, found.upper)), _all(part for part in parts if part not in closed)
    )


def conjuncts(mask: Expr) -> list[Expr]:
    """What a mask is joined of by "and", each once."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    stack = [mask]
    while stack:
        node = stack.pop()
        if isinstance(node, Op) and node.name == "and":
            stack += [] if node in seen else node.args[::-1]
            seen.add(node)
        elif node is not TRUE:
            found[node] = None
    return list(found)


def _all(parts: Iterable[Expr]) -> Expr:
    return reduce(lambda left, right: right if left is TRUE else op("and", left, right), parts, TRUE)


def _fold_with(name: str, exprs: tuple[Expr, ...]) -> Expr | None:
    result: Expr | None = None
    for expr in exprs:
        result = expr if result is None else op(name, result, expr)
    return result


def _tightest(exprs: tuple[Expr, ...], name: str) -> tuple[Expr, ...]:
    """Drop a bound that another one, a constant away, makes superfluous."""
    # By what they have but for a constant: of many bounds no two are compared that differ in more.
    kept: dict[frozenset[tuple[Expr, int]], Expr] = {}
    for expr in exprs:
        terms = frozenset(linear(expr).terms.items())
        gap = difference(expr, kept.setdefault(terms, expr))
        if gap is not None and (gap < 0) == (name == "min"):
            kept[terms] = expr
    return tuple(kept.values())


def _intersect(a: KeyRange, b: KeyRange) -> KeyRange:
    residual = b.residual if a.residual is TRUE else a.residual if b.residual is TRUE else None
    return KeyRange(
        _tightest(a.lower + b.lower, "max"),
        _tightest(a.upper + b.upper, "min"),
        op("and", a.residual, b.residual) if residual is None else residual,
    )


class _Solver:
    """Reads the keys that a mask shows off its comparisons, as far as no integer of them may pass 64 bits."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self.range_of = Recursion(self._range)

    def _range(self, mask: Expr) -> Step:
        if mask is TRUE:
            return KeyRange()
        if "k" not in variables(mask):
            return KeyRange(upper=(op("where", mask, LAST_KEY, const(-1)),))
        if not isinstance(mask, Op):
            return KeyRange(residual=mask)
        if mask.name == "not":
            inside = _push_negation(mask.args[0])
            return KeyRange(residual=mask) if inside is None else (yield inside)
        if mask.name == "and":
            return _intersect((yield mask.args[0]), (yield mask.args[1]))
        if mask.name == "or":
            return (yield from self._unite(mask))
        if mask.name == "where":
            return (yield from self._choose(mask))
        return (yield from self._comparison(mask)) or KeyRange(residual=mask)

    def _unite(self, mask: Op) -> Step:
        left, right = mask.args
        for condition, rest in ((left, right), (right, left)):
            if "k" not in variables(condition):
                return (yield from self._choose(op("where", condition, TRUE, rest)))
        a, b = (yield left), (yield right)
        if a.closed and b.closed and not a.lower and not b.lower and a.upper_bound and b.upper_bound:
            return KeyRange(upper=(op("max", a.upper_bound, b.upper_bound),))
        if a.closed and b.closed and not a.upper and not b.upper and a.lower_bound and b.lower_bound:
            return KeyRange(lower=(op("min", a.lower_bound, b.lower_bound),))
        return KeyRange(residual=mask)

    def _choose(self, mask: Expr) -> Step:
        """where(condition, then, otherwise): closed if the condition is free of k and both branches are closed."""
        condition, then, otherwise = mask.children
        a, b = (yield then), (yield otherwise)
        if "k" in variables(condition) or not (a.closed and b.closed):
            return KeyRange(residual=_spelled_out(condition, then, otherwise))
        lower: tuple[Expr, ...] = ()
        upper: tuple[Expr, ...] = ()
        if a.lower or b.lower:
            lower = (op("where", condition, a.lower_bound or const(0), b.lower_bound or const(0)),)
        if a.upper or b.upper:
            upper = (op("where", condition, a.upper_bound or LAST_KEY, b.upper_bound or LAST_KEY),)
        return KeyRange(lower, upper)

    def _comparison(self, mask: Op) -> Generator[Expr, KeyRange, KeyRange | None]:
        if mask.name not in ("lt", "le", "gt", "ge", "eq") or mask.args[0].type is not Type.INT:
            return None
        left, right = mask.args
        split = _split_extremum(mask.name, left, right)
        if split is not None:
            found = yield split
            return None if found.residual is split else found
        if not self._moves(left, right):
            left, right = self._within_reach(left), self._within_reach(right)
            if not self._moves(left, right):
                return None
        form = linear(left) - linear(right)
        slope = form.terms.get(K, 0)
        rest = form.without(K)
        if slope == 0 or any("k" in variables(atom) for atom in rest.terms):
            return None
        return _solve(mask.name, slope, expression(rest))

    def _moves(self, left: Expr, right: Expr) -> bool:
        """Whether neither side wraps, nor does their difference when terms move from one to the other."""
        # Sums of sums are one form: what it adds up, in magnitude, bounds every way of adding it up.
        forms = linear(left), linear(right)
        atoms = [(atom, coefficient) for form in forms for atom, coefficient in form.terms.items()]
        reach: float = sum(abs(form.constant) for form in forms)
        for atom, coefficient in atoms:
            found = self._ranges.of(atom)
            reach += abs(coefficient) * max(abs(found.low), abs(found.high))
        sums = (node for node in walk(left, right, to=[atom for atom, _ in atoms]) if node.type is Type.INT)
        return reach < _ROOM and not any(self._ranges.may_wrap(node) for node in sums)

    def _within_reach(self, side: Expr) -> Expr:
        """A side free of k, or the nearest value to it that no sum of few keys passes: it compares alike."""
        if "k" in variables(side) or self._ranges.of(side).within(-_FAR, _FAR):
            return side
        return op("min", op("max", side, const(-_FAR)), const(_FAR))


def _spelled_out(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    return op("or", condition, otherwise) if then is TRUE else op("where", condition, then, otherwise)


def _push_negation(expr: Expr) -> Expr | None:
    """not expr with the `not` further inside, or None where it cannot go."""
    if not isinstance(expr, Op):
        return None
    if expr.name in NEGATED and expr.args[0].type is Type.INT:
        return op(NEGATED[expr.name], *expr.args)
    if expr.name in ("and", "or"):
        return op("or" if expr.name == "and" else "and", *(op("not", arg) for arg in expr.args))
    return expr.args[0] if expr.name == "not" else None


def _solve(name: str, slope: int, rest: Expr) -> KeyRange:
    """slope * k + rest `name` 0, for k."""
    if slope < 0:
        return _solve(FLIPPED[name], -slope, expression(linear(rest) * -1))
    # k <= floor(-rest / slope), and k >= ceil(-rest / slope) = -floor(rest / slope).
    limit = expression(linear(rest) * -1)
    at_most = _shifted_floor(limit, slope, 0)
    below = _shifted_floor(limit, slope, -1)
    at_least = expression(linear(_shifted_floor(rest, slope, 0)) * -1)
    above = expression(linear(_shifted_floor(rest, slope, -1)) * -1)
    if name == "eq":
        return KeyRange(lower=(at_least,), upper=(at_most,))
    sides = {"le": ("upper", at_most), "lt": ("upper", below), "ge": ("lower", at_least), "gt": ("lower", above)}
    side, bound = sides[name]
    return KeyRange(upper=(bound,)) if side == "upper" else KeyRange(lower=(bound,))


def _shifted_floor(expr: Expr, divisor: int, shift: int) -> Expr:
    shifted = expression(linear(op("add", expr, const(shift))))
    return shifted if divisor == 1 else op("floordiv", shifted, const(divisor))


def _split_extremum(name: str, left: Expr, right: Expr) -> Expr | None:
    """abs, min and max on one side of a comparison, spelled out as comparisons of their operands."""
    if name == "eq":
        return None
    for relation, side, other in ((name, left, right), (FLIPPED[name], right, left)):
        if isinstance(side, Op) and side.name in ("abs", "min", "max") and "k" in variables(side):
            args = (side.args[0], op("neg", side.args[0])) if side.name == "abs" else side.args
            is_upper_limit = relation in ("lt", "le")
            joined = "and" if is_upper_limit == (side.name != "min") else "or"
            return op(joined, *(op(relation, argument, other) for argument in args))
    return None


def always(mask: Expr, claim: Expr) -> bool:
    """Whether `claim`, an INT expression, is at least 0 for each pair that the mask shows. False when unknown."""
    wanted = linear(claim)
    bounds = key_range(mask)
    known = [op("sub", K, low) for low in bounds.lower] + [op("sub", high, K) for high in bounds.upper]
    return any(not (wanted - linear(fact)).terms and (wanted - linear(fact)).constant >= 0 for fact in known)
