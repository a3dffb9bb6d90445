"""What an expression of a spec means: its text read by Python's own parser, evaluated by torch.

Nothing of flashgen.lang is used. Values are tensors that broadcast: bool, int64, or float in the dtype asked for;
what is the same for all pairs (constants, sizes, params) has no dimension.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

Tensor = torch.Tensor
Kind = type
_CPU = torch.device("cpu")

# For 16-bit inputs a spec may have tanh from an instruction of the GPU: relative error 2**-11.
TANH_BITS = 11
# ex2.approx and lg2.approx: relative error.
APPROXIMATE = 2.0**-22
_LOG2E = math.log2(math.e)


@dataclass
class Formula:
    """Evaluates expressions where `names` have these values, in floats of `dtype`.

    `lets` are texts that may name each other; each is evaluated once. `rough`: tanh is that of the GPU's instruction.
    Constants are made on `device`, where names and inputs are. `fast`: exp, log and powers are as good as those that a
    GPU makes of its approximate exp2 and log2.
    """

    names: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]
    lets: Mapping[str, str]
    dtype: torch.dtype
    rough: bool = False
    device: torch.device = _CPU
    fast: bool = False
    _known: dict[str, Tensor] = field(default_factory=dict)

    def evaluate(self, text: str) -> Tensor:
        return self._value(parsed(text))

    def floating(self, text: str) -> Tensor:
        return self._as_float(self.evaluate(text))

    def _value(self, node: ast.expr) -> Tensor:
        match node:
            case ast.Constant(value=value):
                return self._constant(value)
            case ast.Name(id=name):
                return self._name(name)
            case ast.Subscript(value=ast.Name(id=name), slice=index):
                return self._element(self.inputs[name], index.elts if isinstance(index, ast.Tuple) else [index])
            case ast.Call(func=ast.Name(id="any" | "all" | "sum" as name), args=[ast.Name(id=index), length, term]):
                return self._reduction(name, index, int(self._value(length)), term)
            case ast.Call(func=ast.Name(id=name), args=args):
                return self._call(name, [self._value(arg) for arg in args])
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(op, self._value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self._value(left), self._value(right), right)
            case ast.BoolOp(op=op, values=values):
                join = torch.logical_and if isinstance(op, ast.And) else torch.logical_or
                return _chained(join, [self._value(value) for value in values])
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compare(ops, [self._value(each) for each in (left, *others)])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._where(self._value(test), self._value(body), self._value(orelse))
        raise NotImplementedError(f"the soak has no {type(node).__name__}")

    def _constant(self, value: object) -> Tensor:
        if isinstance(value, bool):
            return torch.tensor(value, device=self.device)
        dtype = torch.int64 if isinstance(value, int) else self.dtype
        return torch.tensor(value, dtype=dtype, device=self.device)

    def _name(self, name: str) -> Tensor:
        if name in ("true", "false"):
            return torch.tensor(name == "true", device=self.device)
        if name == "inf":
            return torch.tensor(math.inf, dtype=self.dtype, device=self.device)
        if name in self.lets:
            if name not in self._known:
                self._known[name] = self.evaluate(self.lets[name])
            return self._known[name]
        if name in self.inputs and name not in self.names:
            return self._element(self.inputs[name], [])
        value = self.names[name]
        return value.to(self.dtype) if value.is_floating_point() else value

    def _element(self, tensor: Tensor, indices: list[ast.expr]) -> Tensor:
        """An index outside its axis reads the nearest element."""
        places = [_as_int(self._value(index)) for index in indices]
        places = [place.clamp(0, size - 1) for place, size in zip(places, tensor.shape, strict=True)]
        found = tensor[tuple(torch.broadcast_tensors(*places))] if places else tensor
        # Never without a dimension: an element is no bound that is the same for all pairs.
        found = found.reshape(1) if found.ndim == 0 else found
        if found.is_floating_point():
            return found.to(self.dtype)
        return found if found.dtype == torch.bool else found.to(torch.int64)

    def _as_float(self, value: Tensor) -> Tensor:
        return value.to(self.dtype)

    def _common(self, *values: Tensor, least: int = 0) -> list[Tensor]:
        """The values in the highest of their types; `least` 1: an int at least."""
        if any(value.is_floating_point() for value in values):
            return [self._as_float(value) for value in values]
        if least or any(value.dtype == torch.int64 for value in values):
            return [_as_int(value) for value in values]
        return list(values)

    def _call(self, name: str, values: list[Tensor]) -> Tensor:
        if name == "where":
            return self._where(*values)
        if name in _REAL:
            return self._real(name, self._as_float(values[0]))
        values = self._common(*values, least=1)
        if name in ("floor", "ceil"):
            return (torch.floor if name == "floor" else torch.ceil)(values[0]).to(torch.int64)
        if name == "sign":
            return torch.sign(values[0])
        if name == "abs":
            return values[0].abs()
        if name == "clamp":
            return _least(_greatest(values[0], values[1]), values[2])
        return _chained(_greatest if name == "max" else _least, values)

    def _reduction(self, name: str, index: str, length: int, term: ast.expr) -> Tensor:
        """Over the values of an index from 0 on; lets do not read it."""
        terms = []
        for i in range(length):
            names = {**self.names, index: torch.tensor(i, device=self.device)}
            terms.append(replace(self, names=names)._value(term))
        if name == "sum":
            return _chained(torch.add, self._common(*terms, least=1)) if terms else self._constant(0)
        join = torch.logical_or if name == "any" else torch.logical_and
        return _chained(join, terms) if terms else self._constant(name == "all")

    def _real(self, name: str, value: Tensor) -> Tensor:
        found = _REAL[name](value)
        if self.fast and name in ("exp", "exp2"):
            return _unsettled(found, value * (_LOG2E if name == "exp" else 1.0))
        if self.fast and name in ("log", "log2", "log1p"):
            # Near 1, where the logarithm is near 0, the error is absolute.
            return found + (_unsettled(1 + found.detach().abs(), 0.0) - (1 + found.detach().abs()))
        if name != "tanh" or not self.rough:
            return found
        # Rounded so, and with the slope that goes with it.
        unit = torch.exp2(torch.floor(torch.log2(found.detach().abs().clamp_min(1e-30))) - TANH_BITS)
        return found + (torch.round(found.detach() / unit) * unit - found.detach())

    def _where(self, test: Tensor, then: Tensor, otherwise: Tensor) -> Tensor:
        then, otherwise = self._common(then, otherwise)
        if test.ndim == 0:
            return then if bool(test) else otherwise
        return torch.where(test, then, otherwise)

    def _unary(self, op: ast.unaryop, value: Tensor) -> Tensor:
        if isinstance(op, ast.Not):
            return torch.logical_not(value)
        if isinstance(op, ast.Invert):
            return torch.bitwise_not(value)
        (value,) = self._common(value, least=1)
        return -value if isinstance(op, ast.USub) else value

    def _binary(self, op: ast.operator, left: Tensor, right: Tensor, exponent: ast.expr) -> Tensor:
        if isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor):
            return _BITWISE[type(op)](*self._common(left, right))
        if isinstance(op, ast.LShift | ast.RShift):
            shift = torch.bitwise_left_shift if isinstance(op, ast.LShift) else torch.bitwise_right_shift
            return shift(_as_int(left), _as_int(right).clamp(0, 63))
        if isinstance(op, ast.Div):
            return self._as_float(left) / self._as_float(right)
        if isinstance(op, ast.Pow):
            return self._power(left, right, exponent)
        left, right = self._common(left, right, least=1)
        if isinstance(op, ast.FloorDiv | ast.Mod):
            return _divided(left, right, isinstance(op, ast.FloorDiv))
        return _ARITHMETIC[type(op)](left, right)

    def _power(self, base: Tensor, exponent: Tensor, written: ast.expr) -> Tensor:
        """An int to the power of a constant that is no negative int is an int; every other power is a float."""
        whole = not base.is_floating_point() and not exponent.is_floating_point() and exponent.ndim == 0
        if whole and _is_fixed(written) and int(exponent) >= 0:
            return torch.pow(_as_int(base), int(exponent))
        base, exponent = self._as_float(base), self._as_float(exponent)
        found = torch.pow(base, exponent)
        # It is exp2(y * log2 x).
        return (
            _unsettled(found, 1 + exponent.abs() * base.detach().abs().clamp_min(1e-30).log2().abs())
            if self.fast
            else found
        )

    def _compare(self, ops: list[ast.cmpop], values: list[Tensor]) -> Tensor:
        links = []
        for op, left, right in zip(ops, values, values[1:], strict=False):
            least = 0 if isinstance(op, ast.Eq | ast.NotEq) else 1
            links.append(_COMPARISONS[type(op)](*self._common(left, right, least=least)))
        return _chained(torch.logical_and, links)


def _unsettled(value: Tensor, argument: Tensor | float) -> Tensor:
    """Off by 2**-22 times 1 + |argument| of itself, up or down as its last bit has it: the same every time."""
    if value.dtype != torch.float32:
        return value
    sign = 1 - 2 * (value.detach().contiguous().view(torch.int32) & 1)
    size = argument.detach().abs() if isinstance(argument, Tensor) else argument
    error = sign * APPROXIMATE * (1 + size)
    return value * (1 + torch.where(value.detach().isfinite(), error, 0.0))


def parsed(text: str) -> ast.expr:
    """The syntax of an expression; text may go over several lines."""
    return ast.parse(f"({text})", mode="eval").body


def size(text: str | int, sizes: Mapping[str, int]) -> int:
    """The value of an extent: a number or an integer expression of sizes and params."""
    names = {name: torch.tensor(value, device=_CPU) for name, value in sizes.items()}
    return int(Formula(names, {}, {}, torch.float64).evaluate(str(text)))


def _is_fixed(node: ast.expr) -> bool:
    """Whether it is made of literals alone. (What params make of it the soak leaves to literals.)"""
    return not any(isinstance(each, ast.Name | ast.Subscript) for each in ast.walk(node))


def _as_int(value: Tensor) -> Tensor:
    return value.to(torch.int64)


def _chained(join: Callable[..., Tensor], values: list[Tensor]) -> Tensor:
    whole = values[0]
    for value in values[1:]:
        whole = join(whole, value)
    return whole


def _greatest(left: Tensor, right: Tensor) -> Tensor:
    """A bound that is the same for all pairs passes the gradient where it is met; of two equals each gets half."""
    if left.ndim and right.ndim:
        return torch.maximum(left, right)
    value, bound = (left, right) if left.ndim else (right, left)
    return value.clamp(min=bound)


def _least(left: Tensor, right: Tensor) -> Tensor:
    """`_greatest` for the least: of the least integer there is no negative to take the greatest of."""
    if left.ndim and right.ndim:
        return torch.minimum(left, right)
    value, bound = (left, right) if left.ndim else (right, left)
    return value.clamp(max=bound)


def _divided(left: Tensor, right: Tensor, quotient: bool) -> Tensor:
    """Rounded toward minus infinity; an int divided by zero gives 0. Of floats it is the quotient that is rounded, not
    what is left of it once it was rounded to a float: 1.0 // 0.1 is 9."""
    if left.is_floating_point():
        if quotient:
            return torch.div(left.detach(), right.detach(), rounding_mode="floor")
        return torch.remainder(left, right)
    none = right == 0
    divisor = torch.where(none, 1, right)
    found = torch.div(left, divisor, rounding_mode="floor") if quotient else torch.remainder(left, divisor)
    return torch.where(none, 0, found)


_REAL: Mapping[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "log2": torch.log2, "tanh": torch.tanh,
    "sqrt": torch.sqrt, "sigmoid": torch.sigmoid, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan,
    "erf": torch.erf, "log1p": torch.log1p,
}  # fmt: skip
_BITWISE: Mapping[Kind, Callable[..., Tensor]] = {
    ast.BitAnd: torch.bitwise_and, ast.BitOr: torch.bitwise_or, ast.BitXor: torch.bitwise_xor,
}  # fmt: skip
_ARITHMETIC: Mapping[Kind, Callable[..., Tensor]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
}  # fmt: skip
_COMPARISONS: Mapping[Kind, Callable[..., Tensor]] = {
    ast.Lt: torch.lt, ast.LtE: torch.le, ast.Gt: torch.gt, ast.GtE: torch.ge, ast.Eq: torch.eq, ast.NotEq: torch.ne,
}  # fmt: skip
