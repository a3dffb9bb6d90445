"""Operators of tensors in Triton's interpreter: of numbers, tests and pointers, a call of numpy.

Triton asks of both operands of each operation what they are computed in, casts them, spreads them to one shape, and
hands them through five functions to numpy, which spreads them by itself: most of the time that kernels take. Here what
follows from the types of two operands is found once. All else is left to Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.language import core

from flashgen.runtime.interpreter_pairs import POINTER, TEST, UNKNOWN, Pairs
from flashgen.runtime.interpreter_tiles import Tiles
from flashgen.runtime.interpreter_types import FLOATS, INTEGERS, NUMBERS

Compute = Callable[[Any, Any], Any]
# Types that all numbers have beside tensors of them.
_WIDE = ("int32", "int64")
# Of what a load may have for what is hidden.
_ZEROS = (type(None), int, float)


class Operators:
    """What Triton's `interpreter` gets for members of `core.tensor` and functions of `tl`, by name."""

    def __init__(self, interpreter: Any) -> None:
        import numpy as np

        self._np, self._semantic = np, interpreter.interpreter_semantic
        self._pairs = Pairs(interpreter.TensorHandle)
        tiles = Tiles(interpreter, self._pairs)
        self._module, self._dtype_of = interpreter, interpreter._get_np_dtype
        self.members = {**self._arithmetic(), **self._comparisons(), "__getitem__": self._getitem(), "to": self._to()}
        self.functions = {
            "minimum": self._extremum("minimum", np.minimum), "maximum": self._extremum("maximum", np.maximum),
            "where": self._where(), "load": self._load(), **tiles.functions,
        }  # fmt: skip
        self.of_descriptors = tiles.of_descriptors

    def _arithmetic(self) -> dict[str, Callable]:
        np, tests = self._np, {*INTEGERS, TEST}
        table: dict[str, tuple[Compute, set[str]]] = {
            "add": (np.add, {*NUMBERS, POINTER}), "sub": (np.subtract, {*NUMBERS}), "mul": (np.multiply, {*NUMBERS}),
            "truediv": (np.divide, {*FLOATS}), "mod": (np.fmod, {*NUMBERS}),
            "floordiv": (lambda a, b: (a - np.fmod(a, b)) // b, {*INTEGERS}),
            "and": (np.bitwise_and, tests), "or": (np.bitwise_or, tests), "xor": (np.bitwise_xor, tests),
        }  # fmt: skip
        straight = {f"__{name}__": (compute, kinds) for name, (compute, kinds) in table.items()}
        turned = {f"__r{name}__": (_turned(compute), kinds - {POINTER}) for name, (compute, kinds) in table.items()}
        return {name: self._operator(name, compute, kinds) for name, (compute, kinds) in {**straight, **turned}.items()}

    def _comparisons(self) -> dict[str, Callable]:
        np = self._np
        table = {
            "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
            "eq": np.equal, "ne": np.not_equal,
        }  # fmt: skip
        return {f"__{name}__": self._operator(f"__{name}__", f, {*NUMBERS}, tests=True) for name, f in table.items()}

    def _operator(self, name: str, compute: Compute, kinds: set[str], tests: bool = False) -> Callable:
        """Of operands that are computed in one of the `kinds`; Triton's own of all others."""
        whole, semantic, ready = getattr(core.tensor, name), self._semantic, self._pairs.ready

        def operator(left: Any, right: Any, _semantic: Any = None) -> Any:
            pair, a, b = ready(left, right)
            if pair.kind in kinds:
                return (pair.test if tests else pair.make)(compute(a, b))
            return whole(left, right, _semantic=semantic)

        return operator

    def _extremum(self, name: str, compute: Compute) -> Callable:
        """Of wide integers: of others, versions differ in the types of numbers or in what they take beside NaN."""
        whole, semantic, ready, tensor = getattr(core, name), self._semantic, self._pairs.ready, core.tensor

        def extremum(x: Any, y: Any, *options: Any, **named: Any) -> Any:
            left, right = (x, y) if isinstance(x, tensor) else (y, x)
            if isinstance(left, tensor):
                pair, a, b = ready(left, right)
                if pair.kind in _WIDE:
                    return pair.make(compute(a, b))
            return whole(x, y, *options, **{**named, "_semantic": semantic})

        return extremum

    def _where(self) -> Callable:
        whole, semantic, pairs, tensor, choose = core.where, self._semantic, self._pairs, core.tensor, self._np.where
        kinds = {*NUMBERS, TEST}

        def where(condition: Any, x: Any, y: Any, _semantic: Any = None) -> Any:
            left, right = (x, y) if isinstance(x, tensor) else (y, x)
            if isinstance(condition, tensor) and isinstance(left, tensor) and condition.dtype.name == TEST:
                pair, a, b = pairs.ready(left, right)
                chosen = pairs.of(condition.type, pair.type) if pair.kind in kinds else UNKNOWN
                if chosen.kind:
                    return chosen.make(choose(condition.handle.data, *((a, b) if left is x else (b, a))))
            return whole(condition, x, y, _semantic=semantic)

        return where

    def _load(self) -> Callable:
        """Elements at pointers, or zeros where a mask of the same sizes hides them."""
        np, whole, semantic, tensor, module = self._np, core.load, self._semantic, core.tensor, self._module
        pairs, dtype_of = self._pairs, self._dtype_of

        def load(pointer: Any, mask: Any = None, other: Any = None, **options: Any) -> Any:
            zero = other.value if type(other) is core.constexpr else other
            if isinstance(pointer, tensor) and pointer.dtype.is_ptr() and type(zero) in _ZEROS and not zero:
                addresses, element = pointer.handle.data, pointer.dtype.element_ty
                shown = np.ones(addresses.shape, bool) if mask is None else pairs.tests(mask, pointer)
                known = not options and element.name != TEST and (mask is not None or other is None)
                if known and shown is not None:
                    dtype = dtype_of(element)
                    found = module._interpreter.load(addresses, shown, np.zeros(addresses.shape, dtype), dtype)
                    return pairs.maker(element, found.shape if pointer.type.is_block() else ())(found)
            return whole(pointer, mask, other, **{**options, "_semantic": semantic})

        return load

    def _getitem(self) -> Callable:
        """`x[:, None]` of a tile; a number has no dimension that numpy could add to."""
        whole, semantic, maker = core.tensor.__getitem__, self._semantic, self._pairs.maker
        whole_axis = slice(None)

        def getitem(self: Any, slices: Any, _semantic: Any = None) -> Any:
            axes = slices if type(slices) is tuple else (slices,)
            known = all(axis is None or axis == whole_axis for axis in axes) and self.type.is_block()
            if known and len(axes) - axes.count(None) <= self.handle.data.ndim:
                data = self.handle.data[axes]
                return maker(self.dtype, data.shape)(data)
            return whole(self, slices, _semantic=semantic)

        return getitem

    def _to(self) -> Callable:
        """Casts to numbers, of numbers and of tests, that do not ask for a rounding."""
        whole, semantic, pairs = core.tensor.to, self._semantic, self._pairs

        def to(self: Any, dtype: Any, *options: Any, **named: Any) -> Any:
            target = dtype.value if type(dtype) is core.constexpr else dtype
            cast = None if options or named else pairs.cast(self.type, target)
            if cast is not None:
                return cast(self.handle.data)
            return whole(self, dtype, *options, **{**named, "_semantic": semantic})

        return to


def _turned(compute: Compute) -> Compute:
    return lambda a, b: compute(b, a)
