"""Types of tensors in Triton's interpreter, made once each.

For each operation it makes block types anew, and shapes of a constant for each dimension, which it compares as it
compares tuples of tensors, and makes a tile of each number: half of the time that kernels take. Here a type is made
once for its elements and sizes, tensors of one type share what follows from it, operands of one type stay as they are,
and a number beside a tile is one element that stands at each place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from triton.language import core
from triton.language.semantic import TritonSemantic

from flashgen.runtime.interpreter_places import tile_places

INTEGERS = ("int8", "int16", "int32", "int64")
FLOATS = ("fp32", "fp64")
# What two operands of one of these types are computed in, whatever the operation: that type. Of two, the later one.
NUMBERS = (*INTEGERS, *FLOATS)
# Integers that have a type: floats are compared with each, and added to it.
RANGE = (-(2**63), 2**64 - 1)
# What is no constant, and has none in it.
_PLAIN = (core.tensor, int, str, float, bool, type(None))
# What types keep of what follows from them, and what their class keeps once they are shared.
_BLOCKS, _FACTS, _SIZES = "_flashgen_blocks", "_flashgen_facts", "_flashgen_sizes"
_SHARED = "_flashgen_shared"


def share_types(interpreter: Any) -> None:
    """From here on; `interpreter` is Triton's module of that name. Once for all copies of this module."""
    if core.block_type.__dict__.get(_SHARED):
        return
    setattr(core.block_type, _SHARED, True)
    _share_blocks(interpreter.interpreter_builder)
    _share_facts()
    _spare_comparisons()
    _spare_conversions(interpreter.TensorHandle)
    _spare_checks(interpreter.TensorHandle)
    _spare_places(interpreter)


def share_dtypes(interpreter: Any) -> None:
    """From here on the dtypes that arrays have for elements of each type are looked up once."""
    np_dtype_of, np_dtypes = interpreter._get_np_dtype, dict[str, Any]()

    def np_dtype(dtype: Any) -> Any:
        scalar = dtype.scalar
        if scalar.name not in np_dtypes:
            np_dtypes[scalar.name] = np_dtype_of(scalar)
        return np_dtypes[scalar.name]

    interpreter._get_np_dtype = np_dtype


def _share_blocks(builder: Any) -> None:
    """Types of blocks lie at those of their elements: types of pointers live as long as a kernel runs."""
    block, make, to_ir = core.block_type, core.block_type.__init__, core.block_type.to_ir

    def new(cls: Any, element_ty: Any = None, shape: Any = ()) -> Any:
        if element_ty is None:  # A copy, which is filled by who makes it.
            return object.__new__(cls)
        blocks = element_ty.__dict__.setdefault(_BLOCKS, {})
        sizes = (*(size.value if isinstance(size, core.constexpr) else size for size in shape),)
        if sizes not in blocks:
            found = object.__new__(cls)
            make(found, element_ty, shape)
            setattr(found, _SIZES, sizes)
            blocks[sizes] = found
        return blocks[sizes]

    def nothing(self: Any, *_: Any, **__: Any) -> None:
        """It is made already."""

    def with_element_ty(self: Any, scalar: Any) -> Any:
        return scalar.__dict__.get(_BLOCKS, {}).get(self.__dict__[_SIZES]) or new(block, scalar, self.shape)

    block.__new__, block.__init__, block.with_element_ty = new, nothing, with_element_ty
    # The types of the interpreter's IR are those of the language.
    block.to_ir = lambda self, given: self if given is builder else to_ir(self, given)


def _share_facts() -> None:
    """Tensors of one type have one shape, which nobody changes."""

    def init(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type = handle, type
        self.shape, self.numel, self.dtype = type.__dict__.get(_FACTS) or facts_of(type)

    core.tensor.__init__ = init


def _spare_comparisons() -> None:
    """A type is itself, and a tensor is no constant, nor a list of some."""
    equal, unwrap = core.dtype.__eq__, core._unwrap_if_constexpr

    def same(self: Any, other: Any) -> bool:
        return self is other or equal(self, other)

    def unwrapped(value: Any) -> Any:
        return value if type(value) in _PLAIN else unwrap(value)

    core.dtype.__eq__, core._unwrap_if_constexpr = same, unwrapped


def tile_sizes(type: Any) -> list[int]:
    """The sizes of a tile; a number has none."""
    return [*type.shape] if type.is_block() else []


def facts_of(type: Any) -> tuple[Any, Any, Any]:
    """The shape, the number of elements and the dtype of tensors of a type."""
    sizes = tile_sizes(type)
    shape = core.tuple([core.constexpr(size) for size in sizes])
    facts = (shape, core.constexpr(math.prod(sizes)), type.scalar)
    setattr(type, _FACTS, facts)
    return facts


def _spare_conversions(handle: Any) -> None:
    import numpy as np

    check, broadcast = TritonSemantic.binary_op_type_checking_impl, TritonSemantic.broadcast_impl_value
    dtypes = {name: np.dtype(name.replace("fp", "float")) for name in NUMBERS}

    def spread(data: Any, scalar: Any, sizes: Sequence[int]) -> Any:
        return core.tensor(handle(np.broadcast_to(data, sizes), scalar), core.block_type(scalar, sizes))

    def broadcast_blocks(self: Any, lhs: Any, rhs: Any) -> Any:
        """What is none, or does not fit, is left to Triton."""
        if not lhs.type.is_block() or not rhs.type.is_block():
            return broadcast(self, lhs, rhs)
        left, right = lhs.type.shape.values, rhs.type.shape.values
        if left == right:
            return lhs, rhs
        sizes = [b if a == 1 else a for a, b in zip(left, right, strict=False)]
        if len(left) != len(right) or any(b not in (1, size) for b, size in zip(right, sizes, strict=True)):
            return broadcast(self, lhs, rhs)
        lhs = lhs if left == sizes else spread(lhs.handle.data, lhs.dtype, sizes)
        return lhs, rhs if right == sizes else spread(rhs.handle.data, rhs.dtype, sizes)

    def beside(tensor: Any, number: Any) -> Any:
        """A Python number as a tensor like this one; None where it is not of the tensor's type."""
        scalar = tensor.dtype
        dtype = dtypes.get(scalar.name)
        if dtype is None or (type(number) is not int and (type(number) is not float or scalar.is_int())):
            return None
        least, most = RANGE if scalar.is_floating() else (scalar.get_int_min_value(), scalar.get_int_max_value())
        if type(number) is int and not least <= number <= most:
            return None
        data = np.array([number], dtype)
        if not tensor.type.is_block():
            return core.tensor(handle(data, scalar), scalar)
        return spread(data, scalar, tensor.type.shape.values)

    def checked(self: Any, lhs: Any, rhs: Any, *options: Any, **named: Any) -> Any:
        of_lhs, of_rhs = isinstance(lhs, core.tensor), isinstance(rhs, core.tensor)
        if of_lhs and of_rhs:
            if lhs.dtype.name == rhs.dtype.name and lhs.dtype.name in dtypes:
                return broadcast_blocks(self, lhs, rhs)
        elif of_lhs or of_rhs:
            alike = beside(lhs, rhs) if of_lhs else beside(rhs, lhs)
            if alike is not None:
                return (lhs, alike) if of_lhs else (alike, rhs)
        return check(self, lhs, rhs, *options, **named)

    TritonSemantic.broadcast_impl_value, TritonSemantic.binary_op_type_checking_impl = broadcast_blocks, checked


def _spare_checks(handle: Any) -> None:
    """An array whose elements have the bits of the type, or fewer, is right for it."""
    look = handle.__post_init__

    def init(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        if 1 < data.itemsize > dtype.__dict__.get("primitive_bitwidth", 0) // 8 and not dtype.is_ptr():
            look(self)

    handle.__init__ = init


def _spare_places(interpreter: Any) -> None:
    """Where a descriptor's tile lies."""
    handle, int1 = interpreter.TensorHandle, core.int1

    def places(self: Any, offsets: Sequence[Any]) -> tuple[Any, Any]:
        addresses, inside = tile_places(self, [offset.data.item() for offset in offsets])
        return handle(addresses, self.base.dtype.scalar), handle(inside, int1)

    interpreter.TensorDescHandle.materialize_pointers = places
