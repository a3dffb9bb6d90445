"""What an expression means: direct evaluation of one (query, key) pair, and of operators on constants.

Every other reader is tested against this one. Integers have 64 bits and wrap; floats are double precision and
follow IEEE 754, so that a division by zero or an overflow gives an infinity or NaN and never a Python exception.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flashgen.lang.elementary import DERIVED, ELEMENTARY
from flashgen.lang.nodes import Const, Expr, Gather, Index, Op, Reduction, Type, Var
from flashgen.lang.traversal import indices, walk

Value = bool | int | float
_MASK, _SIGN = 2**64 - 1, 2**63


def evaluate(expr: Expr, variables: Mapping[str, Value], tensors: Mapping[str, Sequence] | None = None) -> Value:
    """The value of `expr` where its variables and input tensors (nested sequences) have these values.

    An index outside a tensor is taken as the nearest one inside. Raises KeyError for a name without a value.
    """
    return evaluator(expr)(variables, tensors or {})


def evaluator(expr: Expr) -> Callable[[Mapping[str, Value], Mapping[str, Any]], Value]:
    """`evaluate` of one expression, for many places. What stands for a tensor may be anything that is indexed so."""
    return _evaluator(expr, frozenset())


def _evaluator(expr: Expr, given: frozenset[Index]) -> Callable[[Mapping, Mapping[str, Sequence]], Value]:
    """`evaluator` inside reductions, whose indices are `given` among the variables."""
    if not indices(expr) <= given:
        raise KeyError("an index outside of its reduction")
    place = {node: number for number, node in enumerate(node for node in walk(expr) if indices(node) <= given)}
    steps = [(_CASTS[node.type], _step(node, place, given)) for node in place]

    def at(variables: Mapping, tensors: Mapping[str, Sequence]) -> Value:
        values: list[Value] = []
        with np.errstate(all="ignore"):
            for cast, step in steps:
                values.append(cast(step(values, variables, tensors)))
        return values[-1]

    return at


def _step(node: Expr, place: Mapping[Expr, int], given: frozenset[Index]) -> Callable[..., Any]:
    """A node's value from those of the nodes before it, of variables and of tensors."""
    if isinstance(node, Reduction):
        return _reduction(node, _evaluator(node.index.length, given), _evaluator(node.term, given | {node.index}))
    operands = [place[child] for child in node.children]
    if isinstance(node, Const):
        return lambda values, variables, tensors: node.value
    if isinstance(node, Index):
        return lambda values, variables, tensors: variables[node]
    if isinstance(node, Var):
        return lambda values, variables, tensors: variables[node.name]
    if isinstance(node, Gather):
        return lambda values, variables, tensors: _element(tensors[node.input], [values[i] for i in operands])
    assert isinstance(node, Op)
    meaning = _SEMANTICS[node.name]
    return lambda values, variables, tensors: meaning(*[values[i] for i in operands])


def _reduction(node: Reduction, length: Callable[..., Any], term: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(values: Sequence[Value], variables: Mapping, tensors: Mapping[str, Sequence]) -> Any:
        count = range(length(variables, tensors))
        terms = (term({**variables, node.index: i}, tensors) for i in count)
        if node.name == "sum":
            return sum(terms, 0.0 if node.type is Type.FLOAT else 0)
        return any(terms) if node.name == "any" else all(terms)

    return reduced


def apply(name: str, *operands: Value) -> Value:
    """An operator of `nodes.OPERATORS` on values that already have the operand types it takes.

    An integer result is exact here: it may pass 64 bits.
    """
    with np.errstate(all="ignore"):
        result = _SEMANTICS[name](*operands)
    return result.item() if isinstance(result, np.generic) else result


def _element(tensor: Any, indices: Sequence[int]) -> Value:
    for index in indices:
        tensor = tensor[min(max(index, 0), len(tensor) - 1)]
    return tensor


def _wrap(value: Value) -> int:
    return ((int(value) + _SIGN) & _MASK) - _SIGN


_CASTS: dict[Type, Callable[[Any], Value]] = {Type.BOOL: bool, Type.INT: _wrap, Type.FLOAT: float}


def _is_float(x: Value) -> bool:
    return isinstance(x, float)


def _floordiv(x: Any, y: Any) -> Any:
    if _is_float(x):
        return np.floor_divide(x, y)
    return x // y if y else 0


def _mod(x: Any, y: Any) -> Any:
    if _is_float(x):
        return np.remainder(x, y)
    return x % y if y else 0


def _pow(x: Any, y: Any) -> Any:
    return np.power(np.float64(x), y) if _is_float(x) else x**y


def _not(x: Any) -> Any:
    return not x if isinstance(x, bool) else ~x


def _count(n: int) -> int:
    return min(max(n, 0), 63)


def _floor(x: float) -> int:
    # Beyond 64 bits the nearest integer that they hold; NaN has no nearest, and GPUs take the least.
    if abs(x) < 2.0**63:
        return math.floor(x)
    return _SIGN - 1 if x > 0 else -_SIGN


_SEMANTICS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "truediv": lambda x, y: np.divide(np.float64(x), y),
    "floordiv": _floordiv,
    "mod": _mod,
    "pow": _pow,
    "neg": lambda x: -x,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "not": _not,
    "shl": lambda x, n: x << _count(n),
    "shr": lambda x, n: x >> _count(n),
    "abs": abs,
    "min": lambda x, y: np.minimum(x, y) if _is_float(x) else min(x, y),  # NaN wins, as in torch
    "max": lambda x, y: np.maximum(x, y) if _is_float(x) else max(x, y),
    "where": lambda test, x, y: x if test else y,
    **{name: function.value for name, function in {**ELEMENTARY, **DERIVED}.items()},
    "floor": _floor,
    "to_int": int,
    "to_float": float,
    "tile_min": lambda x: x,  # a pair is a tile of one
    "tile_max": lambda x: x,
}
