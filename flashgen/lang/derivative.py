"""Derivatives of expressions, by one sweep from the result down to what it is made of.

Where a function has no derivative at a point, the convention is that of PyTorch's autograd on what `emit.torch`
writes: abs gives 0 at 0; min and max of two equal tensors give half to each; clamp, and min or max with a bound that
is the same for all pairs, passes the gradient at the bound. floor, `//`, comparisons, masks and indices give none.

A branch of `where` that is not taken gets exactly 0, also where the branch is infinite or NaN there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashgen.lang.fold import fold, simplify
from flashgen.lang.nodes import (
    FALSE,
    TRUE,
    Expr,
    Gather,
    Index,
    Op,
    Reduction,
    Type,
    const,
    indices,
    inputs,
    op,
    reduction,
    variables,
    walk,
)
from flashgen.lang.products import ONE, Product, in_common, product, total
from flashgen.lang.variables import SCORE
from flashgen.lang.vocabulary import VARYING

ZERO = const(0.0)


@dataclass(frozen=True)
class LoadSite:
    """One place where a learned input is read: the gradient at `gather`'s indices gains dS_out * `derivative`."""

    gather: Gather
    derivative: Expr


@dataclass(frozen=True)
class Gradients:
    """How a variant's score depends on the scaled dot product, and on each learned input at each place it is read.

    `score` is d score_out / d score. `sites` holds for each learned input, in the order asked for, its places with a
    derivative that is not zero throughout.
    """

    score: Expr
    sites: tuple[tuple[str, tuple[LoadSite, ...]], ...]


def gradients(score: Expr, learned: Sequence[str]) -> Gradients:
    """The derivatives of a score expression by `score` and by the elements of the inputs named in `learned`."""
    reads = [node for node in walk(score) if isinstance(node, Gather) and node.input in learned]
    by_score, *by_read = derivatives(score, [SCORE, *reads])
    sites = [LoadSite(read, found) for read, found in zip(reads, by_read, strict=True) if found is not ZERO]
    return Gradients(by_score, tuple((name, tuple(s for s in sites if s.gather.input == name)) for name in learned))


def derivatives(expr: Expr, wrt: Sequence[Expr]) -> tuple[Expr, ...]:
    """d expr / d node for each FLOAT node of `wrt`: variables or gathers of float inputs, usually.

    One sweep finds them all. They are folded, and read what `expr` computes: that of softcap(x) is 1 - t * t
    of the same node t. 0.0 where `expr` does not depend on the node, or nowhere smoothly. None of the nodes has another
    value for each term of a reduction.
    """
    active: set[Expr] = set()
    order: list[Expr] = []
    for node in walk(expr):
        if node in wrt or (node.type is Type.FLOAT and any(child in active for child in node.children)):
            active.add(node)
            order.append(node)
    shares: dict[Expr, list[_Share]] = {node: [] for node in order}
    shares.setdefault(expr, []).append(_Share(ONE))
    found = dict.fromkeys(wrt, ZERO)
    for node in reversed(order):
        if node in found:
            found[node] = fold(_value(shares[node]).expression())
        if not shares[node]:
            # What is read inside a reduction alone has its share from there.
            continue
        share = _as_one(shares[node])
        for part in _of_sum(node, wrt) if isinstance(node, Reduction) else _parts(node):
            further = share.through(part)
            if part.operand in active and further is not None:
                shares[part.operand].append(further)
    return tuple(found[node] for node in wrt)


@dataclass(frozen=True)
class _Part:
    """d node / d operand: `factor` where all the conditions hold, 0 elsewhere."""

    operand: Expr
    factor: Product = ONE
    conditions: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class _Share:
    """One way in which the result depends on a node: by `factor` where all conditions hold, by exactly 0 elsewhere.

    Conditions are kept apart from the factor to the very end, so that 0 is selected and never 0 times infinity.
    """

    factor: Product
    conditions: tuple[Expr, ...] = ()

    def through(self, part: _Part) -> _Share | None:
        """The share of an operand; None where its conditions exclude each other."""
        conditions = list(self.conditions)
        for condition in part.conditions:
            if condition is FALSE or any(_opposite(condition, known) for known in conditions):
                return None
            if condition is not TRUE and condition not in conditions:
                conditions.append(condition)
        factor = self.factor * part.factor
        return None if factor.is_zero else _Share(factor, tuple(conditions))

    def inside(self, depth: int = 1) -> _Share:
        """The same where the first conditions are known to hold."""
        return _Share(self.factor, self.conditions[depth:])


@dataclass(frozen=True)
class _Branch:
    """Shares that depend on one test: those where it holds, and those where it does not."""

    test: Expr
    then: Sequence[_Share]
    otherwise: Sequence[_Share]


def _branches(shares: Sequence[_Share]) -> list[_Branch]:
    """The shares with conditions, by the first of these."""
    found = []
    rest = [share for share in shares if share.conditions]
    while rest:
        first = rest[0].conditions[0]
        same = [share for share in rest if share.conditions[0] is first]
        opposite = [share for share in rest if _opposite(share.conditions[0], first)]
        rest = [share for share in rest if share not in same and share not in opposite]
        depth = 1 if opposite else _common_depth(same)
        if depth > 1:
            found.append(_Branch(_all(same[0].conditions[:depth]), [share.inside(depth) for share in same], ()))
            continue
        then, otherwise = [share.inside() for share in same], [share.inside() for share in opposite]
        if isinstance(first, Op) and first.name == "not":
            first, then, otherwise = first.args[0], otherwise, then
        found.append(_Branch(first, then, otherwise))
    return found


def _common_depth(shares: Sequence[_Share]) -> int:
    """How many conditions all have in common from the first on."""
    levels = zip(*(share.conditions for share in shares), strict=False)
    return next((i for i, level in enumerate(levels) if len(set(level)) > 1), min(len(s.conditions) for s in shares))


def _opposite(a: Expr, b: Expr) -> bool:
    return simplify(op("not", a)) is simplify(b) or simplify(op("not", b)) is simplify(a)


def _value(shares: Sequence[_Share]) -> Product:
    """The sum of the shares."""
    terms = [share.factor for share in shares if not share.conditions]
    for branch in _branches(shares):
        then, otherwise = _value(branch.then), _value(branch.otherwise)
        shared = ONE
        if not then.is_zero and not otherwise.is_zero:
            shared, (then, otherwise) = in_common([then, otherwise])
        terms.append(shared * product(simplify(op("where", branch.test, then.expression(), otherwise.expression()))))
    return total(terms)


def _reached(shares: Sequence[_Share]) -> Expr:
    """Where any share has its conditions fulfilled."""
    if not all(share.conditions for share in shares):
        return TRUE
    whole = FALSE
    for branch in _branches(shares):
        then, otherwise = _reached(branch.then), _reached(branch.otherwise)
        reached = _all([branch.test, then])
        if otherwise is not FALSE:
            reached = simplify(op("or", reached, _all([simplify(op("not", branch.test)), otherwise])))
        whole = TRUE if then is TRUE and otherwise is TRUE else simplify(op("or", whole, reached))
    return whole


def _as_one(shares: Sequence[_Share]) -> _Share:
    """All shares in one. Where none is reached it is exactly 0, whatever it is multiplied by later."""
    if len(shares) == 1:
        return shares[0]
    reached = _reached(shares)
    return _Share(_value(shares), () if reached is TRUE else (reached,))


def _all(conditions: Sequence[Expr]) -> Expr:
    whole = TRUE
    for condition in conditions:
        whole = simplify(op("and", whole, simplify(condition)))
    return whole


def _parts(node: Expr) -> Sequence[_Part]:
    """How a node depends on each of its operands."""
    rule = _RULES.get(node.name) if isinstance(node, Op) else None
    return rule(node, *node.children) if rule else ()


def _of_sum(node: Reduction, wrt: Sequence[Expr]) -> Sequence[_Part]:
    """How a sum depends on what is asked for: by the sum of the derivatives of its term."""
    inside = set(walk(node.term))
    leaves = [leaf for leaf in wrt if leaf in inside]
    assert not any(node.index in indices(leaf) for leaf in leaves), "a derivative by what differs from term to term"
    slopes = zip(leaves, derivatives(node.term, leaves), strict=True)
    return [_Part(leaf, product(_added(node.index, slope))) for leaf, slope in slopes if slope is not ZERO]


def _added(index: Index, term: Expr) -> Expr:
    """The sum of a term, in any order."""
    if index in indices(term):
        return reduction("sum", index, term)
    count = simplify(op("to_float", simplify(op("max", index.length, const(0)))))
    return simplify(op("mul", term, count))


def _by_factor(factor: Callable[[Expr, Expr], Product]) -> Callable[..., Sequence[_Part]]:
    """The rule of a function of one operand, from its value and the operand."""
    return lambda node, x: (_Part(x, factor(node, x)),)


def _sign(node: Expr, x: Expr) -> Product:
    return product(_where(_compare("gt", x, ZERO), 1.0, op("where", op("lt", x, ZERO), const(-1.0), ZERO)))


def _one_minus(x: Expr) -> Expr:
    return op("sub", const(1.0), x)


def _bell(x: Expr) -> Expr:
    """exp(-x ** 2)."""
    return simplify(op("exp", simplify(op("neg", simplify(op("mul", x, x))))))


def _truediv(node: Expr, x: Expr, y: Expr) -> Sequence[_Part]:
    return _Part(x, ONE / product(y)), _Part(y, -product(node) / product(y))


def _mod(node: Expr, x: Expr, y: Expr) -> Sequence[_Part]:
    return _Part(x), _Part(y, -product(simplify(op("floordiv", x, y))))


def _pow(node: Expr, x: Expr, y: Expr) -> Sequence[_Part]:
    """y * x ** (y - 1), 0 where y is 0; x ** y * log(x), 0 where that is a power of 0 that is finite."""
    lower = simplify(op("pow", x, simplify(op("sub", y, const(1.0)))))
    by_exponent = product(node, simplify(op("log", x)))
    vanishes = simplify(op("and", _compare("eq", x, ZERO), _compare("ge", y, ZERO)))
    return (
        _Part(x, product(y, lower), (_compare("ne", y, ZERO),)),
        _Part(y, by_exponent, () if vanishes is FALSE else (op("not", vanishes),)),
    )


def _where_rule(node: Expr, test: Expr, x: Expr, y: Expr) -> Sequence[_Part]:
    return _Part(x, ONE, (test,)), _Part(y, ONE, (op("not", test),))


def _extremum(node: Op, x: Expr, y: Expr) -> Sequence[_Part]:
    loses, wins = {"min": "gt", "max": "lt"}, {"min": "le", "max": "ge"}
    if _is_tensor(x) and _is_tensor(y):
        half = product(_where(_compare("eq", x, y), 0.5, const(1.0)))
        return tuple(
            _Part(mine, half, (op("not", _compare(loses[node.name], mine, other)),)) for mine, other in ((x, y), (y, x))
        )
    x, bound = (x, y) if _is_tensor(x) else (y, x)
    if isinstance(x, Op) and x.name in wins and x.name != node.name:
        # Between two bounds it is a clamp: what passes lies within both, whichever is applied first.
        inner, *other = sorted(x.args, key=_is_tensor, reverse=True)
        if not _is_tensor(other[0]):
            return (
                _Part(inner, ONE, (_compare(wins[x.name], inner, other[0]), _compare(wins[node.name], inner, bound))),
            )
    return (_Part(x, ONE, (_compare(wins[node.name], x, bound),)),)


def _is_tensor(node: Expr) -> bool:
    """Whether PyTorch sees a tensor: min and max treat a Python scalar as a bound."""
    return bool(variables(node) & VARYING or inputs(node))


def _compare(name: str, x: Expr, y: Expr) -> Expr:
    return simplify(op(name, x, y))


def _where(test: Expr, then: float, otherwise: Expr) -> Expr:
    return simplify(op("where", test, const(then), otherwise))


_RULES: dict[str, Callable[..., Sequence[_Part]]] = {
    "add": lambda node, x, y: (_Part(x), _Part(y)),
    "sub": lambda node, x, y: (_Part(x), _Part(y, -ONE)),
    "neg": lambda node, x: (_Part(x, -ONE),),
    "mul": lambda node, x, y: (_Part(x, product(y)), _Part(y, product(x))),
    "truediv": _truediv,
    "mod": _mod,
    "pow": _pow,
    "abs": _by_factor(_sign),
    "min": _extremum,
    "max": _extremum,
    "where": _where_rule,
    "exp": _by_factor(lambda e, x: product(e)),
    "exp2": _by_factor(lambda e, x: product(e, const(math.log(2)))),
    "log": _by_factor(lambda node, x: ONE / product(x)),
    "log2": _by_factor(lambda node, x: product(const(1 / math.log(2))) / product(x)),
    "tanh": _by_factor(lambda t, x: product(op("sech2", x))),
    "softcap": _by_factor(lambda t, x: product(_one_minus(op("mul", t, t)))),
    "sin": _by_factor(lambda s, x: product(simplify(op("cos", x)))),
    "cos": _by_factor(lambda c, x: -product(simplify(op("sin", x)))),
    "tan": _by_factor(lambda t, x: product(op("add", const(1.0), op("mul", t, t)))),
    "erf": _by_factor(lambda e, x: product(const(2 / math.sqrt(math.pi)), _bell(x))),
    "sqrt": _by_factor(lambda root, x: product(const(0.5)) / product(root)),
    "sigmoid": _by_factor(lambda s, x: product(s, _one_minus(s))),
}
