"""Eager arithmetic that rounds as a kernel may: `reference` itself computes in float32, or float64 if asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_PRODUCTS = frozenset({torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__})
_TANH = frozenset({torch.tanh, torch.Tensor.tanh})
_SIGMOID = frozenset({torch.sigmoid, torch.Tensor.sigmoid})
_POWERS = frozenset({torch.pow, torch.Tensor.pow, torch.Tensor.__pow__})
# A fast tanh is good to so much (PTX ISA, tanh); where it is a difference of 1, absolutely, to half of the second.
_RELATIVE = 2.0**-11
_STEP = 2.0**-21
# How often a formula is evaluated with random roundings.
DRAWS = 16


class Arithmetic(TorchFunctionMode):
    """Within it, each function of torch gives what `_result` does."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self._result(func, args, kwargs or {})

    def _result(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        raise NotImplementedError


class RoundedProducts(Arithmetic):
    """Within it, matrix products of float32 tensors run in another dtype, their gradients too."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def _result(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func not in _PRODUCTS or any(operand.dtype != torch.float32 for operand in args):
            return func(*args, **kwargs)
        left, right = (operand.to(self._dtype) for operand in args)
        return torch.matmul(left, right).to(torch.float32)


class FastFunctions(Arithmetic):
    """Within it, what a kernel on 16-bit inputs may take from a fast form is as good as that.

    tanh is right to 11 bits, as the GPU's instruction, and to 22 behind the point, as 1 - 2 / (exp(2 x) + 1). Gradients
    go through it as if it were exact.
    """

    def _result(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func not in _TANH:
            return result
        exact = result.detach()
        return result + ((exact.to(torch.float16).to(exact.dtype) / _STEP).round() * _STEP - exact)


class ExactSlopes(Arithmetic):
    """Within it the derivatives of tanh and sigmoid keep their digits where these are all but 1: autograd takes
    1 - tanh^2, which float64 has none of from 19 on.
    """

    def _result(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func in _TANH:
            # tanh x = 2 sigmoid(2 x) - 1.
            return _Sloped.apply(args[0], torch.tanh, 2.0)
        if func in _SIGMOID:
            return _Sloped.apply(args[0], torch.sigmoid, 1.0)
        return func(*args, **kwargs)


class _Sloped(torch.autograd.Function):
    """A function of x, tanh or sigmoid, with the derivative factor^2 sigmoid(factor x) sigmoid(-factor x)."""

    # FlexAttention maps its mods over batch, heads and pairs.
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor], factor: float) -> Any:
        return function(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, _, ctx.factor = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x = ctx.factor * ctx.saved_tensors[0]
        return gradient * ctx.factor**2 * torch.sigmoid(x) * torch.sigmoid(-x), None, None


def random_roundings(dtype: torch.dtype) -> Iterator[RandomRounding]:
    """Enough of them to meet what comes of one rounding in two; for 16-bit inputs every other has fast forms."""
    for seed in range(DRAWS):
        yield RandomRounding(seed, fast=dtype != torch.float32 and seed % 2 == 1)


class RandomRounding(Arithmetic):
    """Within it, float64 tensors are rounded to float32 after each function, up or down as it comes.

    What float32 holds stays as it is, so that integers, tests and views are what they are. A power is what a kernel
    makes of it, exp2(y * log2(x)); a product of matrices that adds up n terms is off by sqrt(n) roundoffs of what these
    come to in magnitude (Higham and Mary 2019; the worst of thousands loses half of that). `fast`: tanh is off by as
    much as a fast form may be (see `FastFunctions`). Gradients go through as if nothing were rounded.
    """

    def __init__(self, seed: int, fast: bool = False) -> None:
        super().__init__()
        self._seed, self._fast = seed, fast
        self._generators: dict[torch.device, torch.Generator] = {}

    def _result(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or result.dtype != torch.float64:
            return result
        exact = result.detach()
        if func in _POWERS:
            rounded = self._power(*args, result=exact)
        elif func in _PRODUCTS:
            rounded = self._product(*args, result=exact)
        elif func in _TANH and self._fast:
            rounded = self._fast_tanh(exact)
        else:
            rounded = self._rounded(exact)
        if rounded is exact:
            return result
        if not result.requires_grad:
            return rounded
        # What is infinite, or no number, is off by none.
        return result + (rounded - exact).nan_to_num_(0.0, torch.inf, -torch.inf)

    def _power(self, base: torch.Tensor, exponent: Any, *, result: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            exponents = self._rounded(self._rounded(torch.log2(base.double().abs())) * exponent)
            rounded = self._rounded(torch.exp2(exponents)).copysign(result)
        return torch.where(rounded.isfinite(), rounded, result)

    def _product(self, left: torch.Tensor, right: torch.Tensor, *, result: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            roundoff = torch.finfo(torch.float32).eps / 2
            off = (left.abs() @ right.abs()) * (roundoff * math.sqrt(left.shape[-1]))
            return self._rounded(result + torch.where(self._coins(result), off, -off))

    def _fast_tanh(self, exact: torch.Tensor) -> torch.Tensor:
        off = (exact.abs() * _RELATIVE).clamp_min(_STEP / 2)
        return self._rounded(exact + torch.where(self._coins(exact), off, -off))

    def _rounded(self, exact: torch.Tensor) -> torch.Tensor:
        """The nearest number of float32, or the next one on the other side, whose bits are those of the nearest one
        counted on or back: most of a proof's time passes here.
        """
        nearest = exact.to(torch.float32)
        wide = nearest.to(torch.float64)
        if torch.equal(wide, exact):
            return exact
        ahead = (exact.view(torch.int64) - wide.view(torch.int64)).clamp_(-1, 1).to(torch.int32)
        return (nearest.view(torch.int32) + ahead.mul_(self._coins(exact))).view(torch.float32).to(torch.float64)

    def _coins(self, like: torch.Tensor) -> torch.Tensor:
        """One for each element: the last bits of so many random bytes."""
        device, count = like.device, like.numel()
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        words = torch.empty(-(-count // 8), dtype=torch.int64, device=device).random_(
            generator=self._generators[device]
        )
        return words.view(torch.uint8)[:count].bitwise_and_(1).view(torch.bool).view(like.shape)
