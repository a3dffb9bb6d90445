"""Operators under the interpreter give what Triton's own give: the same values of the same type, or the same error."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import pytest
import triton
import triton.language as tl

from flashgen.runtime.interpreter import interpreted

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="the interpreter is off")

SIZES = [(), (8,), (1, 8), (4, 1), (4, 8)]
NUMBERS = [0, 3, -2, 200, 2**40, 2**64, 1.5, True, tl.constexpr(2), tl.constexpr(0.5)]
PLAIN = ["add", "sub", "mul", "truediv", "mod", "floordiv", "and", "or", "xor"]
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]


def tensor(dtype: Any, sizes: tuple[int, ...], shift: int = 0) -> tl.tensor:
    """Numbers of either sign, none of them 0; of tests both."""
    import numpy as np
    from triton.runtime import interpreter

    count = max(1, int(np.prod(sizes)))
    values = (np.arange(count) * 7 + shift) % 11 - 5.5
    kind = interpreter._get_np_dtype(dtype)
    data = (values > 0) if dtype is tl.int1 else np.where(values < 0, values - 0.5, values + 0.5).astype(kind)
    handle = interpreter.TensorHandle(data.reshape(sizes or (1,)), dtype)
    return tl.tensor(handle, tl.block_type(dtype, [*sizes]) if sizes else dtype)


def tensors(shift: int = 0) -> list[tl.tensor]:
    """Each dtype as a number and as a tile, and the sizes of one."""
    dtypes = [tl.int1, tl.int8, tl.int16, tl.int32, tl.int64, tl.float16, tl.float32, tl.float64, tl.uint32]
    many = [tensor(dtype, sizes, shift) for dtype in dtypes for sizes in ((), (4, 8))]
    pointer = tensor(tl.int64, (4, 1), shift)
    address = tl.block_type(tl.pointer_type(tl.int16), [4, 1])
    pointer.handle.dtype = address.scalar
    pointer.handle.data = pointer.handle.data.astype("uint64")
    return [*many, *(tensor(tl.int32, sizes, shift) for sizes in SIZES), tl.tensor(pointer.handle, address)]


def outcome(function: Any, *operands: Any, **named: Any) -> Any:
    """What can be compared of a tensor, or of an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = function(*operands, **named)
        except Exception as error:  # noqa: BLE001 - whatever Triton raises
            return type(error), str(error)
    data = found.handle.data
    return found.type, [int(size) for size in found.shape], found.dtype, data.shape, data.dtype, data.tobytes()


@pytest.fixture(scope="module")
def quick() -> Any:
    from triton.runtime import interpreter

    from flashgen.runtime.interpreter_operators import Operators

    assert interpreted()
    return Operators(interpreter)


def compare(quick: Any, whole: Any, *operands: Any) -> None:
    from triton.runtime import interpreter

    expected = outcome(whole, *operands, _semantic=interpreter.interpreter_semantic)
    assert outcome(quick, *operands) == expected, [getattr(each, "type", each) for each in operands]


@pytest.mark.parametrize("name", [*(f"__{n}__" for n in [*PLAIN, *COMPARISONS]), *(f"__r{n}__" for n in PLAIN)])
def test_operators(quick: Any, name: str) -> None:
    others = NUMBERS if name.startswith("__r") else [*tensors(3), *NUMBERS]
    for left in tensors():
        for right in others:
            compare(quick.members[name], getattr(tl.tensor, name), left, right)


@pytest.mark.parametrize("name", ["minimum", "maximum"])
def test_extrema(quick: Any, name: str) -> None:
    for left in tensors():
        for right in [*tensors(3), *NUMBERS]:
            compare(quick.functions[name], getattr(tl, name), left, right)
            compare(quick.functions[name], getattr(tl, name), right, left)


def test_choices(quick: Any) -> None:
    for condition in (tensor(tl.int1, ()), tensor(tl.int1, (4, 1)), tensor(tl.int1, (4, 8)), tensor(tl.int32, (4, 8))):
        for left in tensors():
            for right in [*tensors(3), *NUMBERS]:
                compare(quick.functions["where"], tl.where, condition, left, right)
                compare(quick.functions["where"], tl.where, condition, right, left)


def test_axes_and_casts(quick: Any) -> None:
    for value in tensors():
        for axes in (None, slice(None), (None, slice(None)), (slice(None), None), (slice(None), None, slice(None)), 3):
            compare(quick.members["__getitem__"], tl.tensor.__getitem__, value, axes)
        for dtype in (tl.int1, tl.int8, tl.int32, tl.int64, tl.float16, tl.float32, tl.float64, tl.constexpr(tl.int64)):
            compare(quick.members["to"], tl.tensor.to, value, dtype)


def test_a_number_and_a_tile_are_what_numpy_makes_of_them(quick: Any) -> None:
    """Triton's own might share a fault of what both rest on."""
    tile, number = tensor(tl.int32, (4, 8)), tensor(tl.float32, ())
    for name in ("add", "sub", "mul"):
        found = quick.members[f"__{name}__"](tile, number).handle.data
        assert (found == getattr(operator, name)(tile.handle.data.astype("float32"), number.handle.data)).all()


def test_loads(quick: Any) -> None:
    import numpy as np
    from triton.runtime import interpreter

    held = np.arange(-16, 16, dtype=np.int32)
    for element in (tl.int8, tl.int16, tl.int32, tl.float32, tl.float16, tl.int1):
        kind = tl.pointer_type(element)
        for sizes in ((), (4,), (4, 1), (4, 2)):
            shape = sizes or (1,)
            steps = np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(shape)
            handle = interpreter.TensorHandle(steps * np.uint64(4) + np.uint64(held.ctypes.data), kind)
            pointer = tl.tensor(handle, tl.block_type(kind, [*sizes]) if sizes else kind)
            for mask in (None, tensor(tl.int1, sizes), tensor(tl.int1, (4, 2), 5), tensor(tl.int1, ())):
                for other in (None, 0, 0.0, 7, tl.constexpr(0), tensor(tl.int32, sizes)):
                    compare(quick.functions["load"], tl.load, pointer, mask, other)
    compare(quick.functions["load"], tl.load, tensor(tl.int32, (4,)))


def test_stores(quick: Any) -> None:
    """What lies in memory afterwards, or the same error."""
    import numpy as np
    from triton.runtime import interpreter

    def stored(store: Any, element: Any, *operands: Any, **named: Any) -> Any:
        held, kind = np.zeros(64, np.int32), tl.pointer_type(element)
        places = np.arange(32, dtype=np.uint64).reshape(4, 8) * np.uint64(4) + np.uint64(held.ctypes.data)
        pointer = tl.tensor(interpreter.TensorHandle(places, kind), tl.block_type(kind, [4, 8]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                store(pointer, *operands, **named)
            except Exception as error:  # noqa: BLE001 - whatever Triton raises
                return type(error), str(error)
        return held.tolist()

    for element in (tl.int1, tl.int16, tl.int32, tl.float16, tl.float32):
        for value in [*tensors(), 3, 1.5]:
            for mask in (None, tensor(tl.int1, (4, 8), 5), tensor(tl.int1, (4, 1)), tensor(tl.int1, ())):
                expected = stored(tl.store, element, value, mask, _semantic=interpreter.interpreter_semantic)
                assert stored(quick.functions["store"], element, value, mask) == expected


def test_products(quick: Any) -> None:
    """Each twice: the first time Triton has its say."""
    for dtype in (tl.int8, tl.float16, tl.bfloat16, tl.float32, tl.float64):
        left, right = tensor(dtype, (16, 32)), tensor(dtype, (32, 16), 3)
        for acc in (None, tensor(tl.float32, (16, 16)), tensor(tl.int32, (16, 16)), tensor(tl.float32, (16, 32))):
            for precision in (None, "ieee", tl.constexpr("tf32"), "none"):
                for _ in range(2):
                    compare(quick.functions["dot"], tl.dot, left, right, acc, precision)
        compare(quick.functions["dot"], tl.dot, left, left)


def test_tiles_of_constants(quick: Any) -> None:
    for end in (8, tl.constexpr(16), 7, 8.0):
        for _ in range(2):
            compare(quick.functions["arange"], tl.core.arange, 0, end)
    for sizes in ([4, 8], [tl.constexpr(4), 1], [3], []):
        for value in (0, 0.0, -0.0, True, float("-inf"), float("nan"), tl.constexpr(-0.0), tensor(tl.float32, ())):
            for dtype in (tl.int32, tl.float32, tl.constexpr(tl.float16), tl.int1):
                for _ in range(2):
                    compare(quick.functions["full"], tl.core.full, sizes, value, dtype)


def test_nothing_is_written_to_tiles_that_are_made_once(quick: Any) -> None:
    make = quick.functions["full"]
    for _ in range(2):
        tile = make([4, 8], 0, tl.int32)
        assert (quick.members["__add__"](tile, 10).handle.data == 10).all()
        with pytest.raises(ValueError, match="read-only"):
            tile.handle.data[0] = 1


@pytest.mark.parametrize("begins", [(0, 0), (2, 16), (-3, 8), (5, -8), (6, 24), (40, 0), (0, 64), (-40, 0), (3, 3)])
def test_loads_by_descriptors(quick: Any, begins: tuple[int, int]) -> None:
    """The tile that numpy cuts out of a tensor among zeros."""
    import numpy as np
    from triton.runtime import interpreter

    from flashgen.runtime.interpreter_places import tile_places

    (rows, columns), semantic = (7, 24), interpreter.interpreter_semantic
    around = np.zeros((128, 256), np.float32)
    held = np.frombuffer(bytearray(8 * 32 * 4 + 16), np.float32)
    held = held[(-held.ctypes.data // 4) % 4 :][: 8 * 32].reshape(8, 32)
    held[:] = np.arange(8 * 32).reshape(8, 32) + 1
    around[64 : 64 + rows, 64 : 64 + columns] = held[:rows, :columns]
    kind = tl.pointer_type(tl.float32)
    base = tl.tensor(interpreter.TensorHandle(np.array([held.ctypes.data], np.uint64), kind), kind)
    descriptor = semantic.make_tensor_descriptor(base, [rows, columns], [32, 1], [4, 16])
    for offsets in ([*begins], [*map(tl.constexpr, begins)], [*(semantic.to_tensor(begin) for begin in begins)]):
        if begins[1] % 4:
            with pytest.raises(AssertionError, match="16-byte aligned"):
                quick.of_descriptors["load"](descriptor, offsets)
            continue
        found = quick.of_descriptors["load"](descriptor, offsets)
        assert found.type == descriptor.block_type and [int(size) for size in found.shape] == [4, 16]
        row, column = 64 + begins[0], 64 + begins[1]
        assert (found.handle.data == around[row : row + 4, column : column + 16]).all()
        _, inside = tile_places(descriptor.handle, begins)
        assert (np.broadcast_to(inside, (4, 16)) == (found.handle.data != 0)).all()


@pytest.mark.parametrize("dtype", [tl.int8, tl.int32, tl.int64, tl.uint32])
@pytest.mark.parametrize("shift", ["rshift", "lshift"])
def test_a_shift_by_all_bits_is_wrong_as_on_a_gpu(dtype: Any, shift: str) -> None:
    from triton.runtime import interpreter

    assert interpreted()
    x, width = tensor(dtype, (4, 8)), dtype.primitive_bitwidth

    def shifted(count: int) -> Any:
        return getattr(x, f"__{shift}__")(count, _semantic=interpreter.interpreter_semantic).handle.data

    for count in (width, width + 9):
        assert not set(shifted(count).ravel().tolist()) & {0, -1}
    assert (shifted(width - 1) == getattr(operator, shift)(x.handle.data, width - 1)).all()
