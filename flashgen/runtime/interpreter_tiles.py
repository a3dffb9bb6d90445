"""Tiles in Triton's interpreter: made, multiplied, stored, and loaded by descriptors.

Triton looks at shapes, types and constants anew for each call, and works out again where the elements of a tile lie:
a third of the time that kernels take. Here a call whose types and constants Triton has let pass is made at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from triton.language import core

from flashgen.runtime.interpreter_pairs import TEST, Pairs
from flashgen.runtime.interpreter_places import tile_places
from flashgen.runtime.interpreter_types import tile_sizes

# Of what a product may be made here; numbers of 8 bits have options of their own.
_FACTORS = ("fp16", "bf16", "fp32")


class Tiles:
    """What Triton's `interpreter` gets for functions of `tl`, and for members of descriptors, by name."""

    def __init__(self, interpreter: Any, pairs: Pairs) -> None:
        import numpy as np

        self._np, self._module, self._pairs = np, interpreter, pairs
        self._semantic, self._builder = interpreter.interpreter_semantic, interpreter.interpreter_builder
        self.functions = {
            "arange": self._constant("arange"), "full": self._constant("full"), "dot": self._dot(),
            "store": self._store(),
        }  # fmt: skip
        self.of_descriptors = {"load": self._descriptor_load()}

    def _constant(self, name: str) -> Callable:
        """Tiles that follow from numbers, which nothing writes to."""
        whole, semantic, maker, known = getattr(core, name), self._semantic, self._pairs.maker, dict[Any, Any]()

        def constant(*arguments: Any, **named: Any) -> Any:
            # A zero has a sign, which is no part of its value.
            key = repr([*map(_plain, arguments), *((key, _plain(value)) for key, value in named.items())])
            if key not in known:
                made = whole(*arguments, **{**named, "_semantic": semantic})
                if any(isinstance(each, core.tensor) for each in (*arguments, *named.values())):
                    return made
                made.handle.data.flags.writeable = False
                known[key] = (maker(made.dtype, tile_sizes(made.type)), made.handle.data)
            make, data = known[key]
            return make(data)

        return constant

    def _dot(self) -> Callable:
        """Products of two tiles, added to a third if there is one."""
        whole, semantic, builder, pairs, known = core.dot, self._semantic, self._builder, self._pairs, dict[Any, Any]()
        handle, zeros, dtype_of = self._module.TensorHandle, self._np.zeros, self._module._get_np_dtype

        def dot(left: Any, right: Any, acc: Any = None, input_precision: Any = None, **options: Any) -> Any:
            precision = _plain(input_precision)
            key = (left.type.name, right.type.name, None if acc is None else acc.type.name, precision)
            if options or key not in known:
                named = {**options, "input_precision": input_precision, "_semantic": semantic}
                made = whole(left, right, acc, **named)
                if not options and left.dtype.name in _FACTORS:
                    asked = builder.options.default_dot_input_precision if precision is None else precision
                    zero = handle(zeros(made.handle.data.shape, dtype_of(made.dtype)), made.dtype)
                    make = pairs.maker(made.dtype, made.handle.data.shape)
                    known[key] = (make, semantic._str_to_dot_input_precision(asked), zero)
                return made
            make, asked, zero = known[key]
            return make(
                builder.create_dot(left.handle, right.handle, zero if acc is None else acc.handle, asked, 0).data
            )

        return dot

    def _store(self) -> Callable:
        """A tile at as many pointers to elements of its type, but where a mask of the same sizes hides them."""
        np, whole, semantic, module, tests = self._np, core.store, self._semantic, self._module, self._pairs.tests

        def store(pointer: Any, value: Any, mask: Any = None, **options: Any) -> Any:
            if not options and _fit(pointer, value):
                addresses = pointer.handle.data
                shown = np.ones(addresses.shape, bool) if mask is None else tests(mask, pointer)
                if shown is not None:
                    return module._interpreter.store(addresses, value.handle.data, shown)
            return whole(pointer, value, mask, **{**options, "_semantic": semantic})

        return store

    def _descriptor_load(self) -> Callable:
        """A tile of a descriptor that has zeros beyond its tensor."""
        from triton._C.libtriton import ir

        np, module, maker, dtype_of = self._np, self._module, self._pairs.maker, self._module._get_np_dtype
        whole, semantic = core.tensor_descriptor_base.load, self._semantic
        zeros = ir.PADDING_OPTION.PAD_ZERO

        def load(self: Any, offsets: Sequence[Any], _semantic: Any = None) -> Any:
            held = self.handle
            known = held.padding == zeros and not getattr(held, "round_f32_to_tf32", False)
            begins = [begin for begin in map(_int32, offsets) if begin is not None]
            if not known or not len(begins) == len(offsets) == held.ndim:
                return whole(self, offsets, _semantic=semantic)
            addresses, shown = tile_places(held, begins)
            element = held.base.dtype.element_ty
            dtype = dtype_of(element)
            found = module._interpreter.load(addresses, shown, np.zeros(addresses.shape, dtype), dtype)
            return maker(element, found.shape)(found)

        return load


def _plain(value: Any) -> Any:
    """Constants, and lists of them, as what they hold."""
    if isinstance(value, (list, tuple, core.tuple)):
        return [*map(_plain, value)]
    return value.value if type(value) is core.constexpr else value


def _int32(offset: Any) -> int | None:
    """What a scalar of 32 bits or a constant holds; None where Triton is to say."""
    if isinstance(offset, core.tensor):
        return offset.handle.data.item() if offset.type.name == "int32" else None
    value = _plain(offset)
    return value if type(value) is int and -(2**31) <= value < 2**31 else None


def _fit(pointer: Any, value: Any) -> bool:
    """Whether a tile may be written at pointers as it is."""
    if not isinstance(pointer, core.tensor) or not isinstance(value, core.tensor) or not pointer.dtype.is_ptr():
        return False
    element = pointer.dtype.element_ty
    alike = element.name == value.dtype.name != TEST and pointer.handle.data.shape == value.handle.data.shape
    return alike and pointer.type.is_block() and value.type.is_block() and not pointer.dtype.is_const()
