"""The derivative of one operation by each of its operands.

Where a function has no derivative at a point, the convention is that of PyTorch's autograd on what `emit.torch`
writes: abs gives 0 at 0; min and max of two equal tensors give half to each; clamp, and min or max with a bound that
is the same for all pairs, passes the gradient at the bound. floor, `//`, comparisons, masks and indices give none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from flashgen.lang.fold import simplify
from flashgen.lang.nodes import FALSE, FLOAT_FUNCTIONS, Expr, Op, const, op
from flashgen.lang.products import ONE, Product, product
from flashgen.lang.shares import Partial
from flashgen.lang.traversal import inputs, variables
from flashgen.lang.vocabulary import VARYING

ZERO = const(0.0)


def partials(node: Expr) -> Sequence[Partial]:
    """How a node depends on each of its operands."""
    rule = _RULES.get(node.name) if isinstance(node, Op) else None
    return rule(node, *node.children) if rule else ()


def _by_factor(factor: Callable[[Expr, Expr], Product]) -> Callable[..., Sequence[Partial]]:
    """The rule of a function of one operand, from its value and the operand."""
    return lambda node, x: (Partial(x, factor(node, x)),)


def _sign(node: Expr, x: Expr) -> Product:
    return product(_where(_compare("gt", x, ZERO), 1.0, op("where", op("lt", x, ZERO), const(-1.0), ZERO)))


def _one_minus(x: Expr) -> Expr:
    return op("sub", const(1.0), x)


def _bell(x: Expr) -> Expr:
    """exp(-x ** 2)."""
    return simplify(op("exp", simplify(op("neg", simplify(op("mul", x, x))))))


def _truediv(node: Expr, x: Expr, y: Expr) -> Sequence[Partial]:
    return Partial(x, ONE / product(y)), Partial(y, -product(node) / product(y))


def _mod(node: Expr, x: Expr, y: Expr) -> Sequence[Partial]:
    return Partial(x), Partial(y, -product(simplify(op("floordiv", x, y))))


def _pow(node: Expr, x: Expr, y: Expr) -> Sequence[Partial]:
    """y * x ** (y - 1), 0 where y is 0; x ** y * log(x), 0 where that is a power of 0 that is finite."""
    lower = simplify(op("pow", x, simplify(op("sub", y, const(1.0)))))
    by_exponent = product(node, simplify(op("log", x)))
    vanishes = simplify(op("and", _compare("eq", x, ZERO), _compare("ge", y, ZERO)))
    return (
        Partial(x, product(y, lower), (_compare("ne", y, ZERO),)),
        Partial(y, by_exponent, () if vanishes is FALSE else (op("not", vanishes),)),
    )


def _where_rule(node: Expr, test: Expr, x: Expr, y: Expr) -> Sequence[Partial]:
    return Partial(x, ONE, (test,)), Partial(y, ONE, (op("not", test),))


def _extremum(node: Op, x: Expr, y: Expr) -> Sequence[Partial]:
    loses, wins = {"min": "gt", "max": "lt"}, {"min": "le", "max": "ge"}
    if is_tensor(x) and is_tensor(y):
        half = product(_where(_compare("eq", x, y), 0.5, const(1.0)))
        return tuple(
            Partial(mine, half, (op("not", _compare(loses[node.name], mine, other)),))
            for mine, other in ((x, y), (y, x))
        )
    x, bound = (x, y) if is_tensor(x) else (y, x)
    if isinstance(x, Op) and x.name in wins and x.name != node.name:
        # Between two bounds it is a clamp: what passes lies within both, whichever is applied first.
        inner, *other = sorted(x.args, key=is_tensor, reverse=True)
        if not is_tensor(other[0]):
            return (
                Partial(inner, ONE, (_compare(wins[x.name], inner, other[0]), _compare(wins[node.name], inner, bound))),
            )
    return (Partial(x, ONE, (_compare(wins[node.name], x, bound),)),)


def is_tensor(node: Expr) -> bool:
    """Whether PyTorch sees a tensor: min and max treat a Python scalar as a bound."""
    return bool(variables(node) & VARYING or inputs(node))


def _compare(name: str, x: Expr, y: Expr) -> Expr:
    return simplify(op(name, x, y))


def _where(test: Expr, then: float, otherwise: Expr) -> Expr:
    return simplify(op("where", test, const(then), otherwise))


_RULES: dict[str, Callable[..., Sequence[Partial]]] = {
    "add": lambda node, x, y: (Partial(x), Partial(y)),
    "sub": lambda node, x, y: (Partial(x), Partial(y, -ONE)),
    "neg": lambda node, x: (Partial(x, -ONE),),
    "mul": lambda node, x, y: (Partial(x, product(y)), Partial(y, product(x))),
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
# What has no rule passes no gradient, which of a function would be wrong without a word.
_UNKNOWN = FLOAT_FUNCTIONS - _RULES.keys()
assert not _UNKNOWN, f"no derivative is known for {', '.join(sorted(_UNKNOWN))}"
