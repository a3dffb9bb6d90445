"""The interpreter makes each type once, and what it spares changes no outcome."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from flashgen.runtime.interpreter import interpreted

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="the interpreter is off")


@pytest.fixture(autouse=True)
def _mended() -> None:
    assert interpreted()


def _seen(operation: Any, *operands: Any) -> torch.Tensor:
    """What `operation` of tiles and numbers is, as a kernel sees it: its dtype, sizes and elements."""
    from triton.runtime.interpreter import TensorHandle, interpreter_semantic

    def tensor(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        scalar = {torch.float32: tl.float32, torch.float16: tl.float16, torch.int32: tl.int32, torch.uint8: tl.uint8}
        dtype = scalar[value.dtype]
        return tl.tensor(TensorHandle(value.numpy(), dtype), tl.block_type(dtype, [*value.shape]))

    found = operation(interpreter_semantic, *map(tensor, operands))
    assert [size.value for size in found.shape] == [*found.handle.data.shape] == [*found.type.shape]
    return torch.from_numpy(found.handle.data.copy())


def _add(semantic: Any, lhs: Any, rhs: Any) -> Any:
    return semantic.add(lhs, rhs, False)


COLUMN, ROW = torch.arange(4).view(4, 1), torch.arange(2).view(1, 2) - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize("lhs", [COLUMN, COLUMN + 2 * ROW], ids=["column", "tile"])
@pytest.mark.parametrize("rhs", [ROW, COLUMN, COLUMN * ROW, 3], ids=["row", "column", "tile", "number"])
def test_operands_have_the_sizes_that_torch_gives_them(lhs: torch.Tensor, rhs: Any, dtype: torch.dtype) -> None:
    left, right = lhs.to(dtype), rhs.to(dtype) if isinstance(rhs, torch.Tensor) else rhs
    found, turned = _seen(_add, left, right), _seen(_add, right, left)
    assert torch.equal(found, left + right)
    assert torch.equal(turned, found)
    assert found.dtype == turned.dtype == dtype


@pytest.mark.parametrize(
    ("tile", "number", "dtype"),
    [
        (torch.float32, 2, torch.float32),
        (torch.float32, 2.5, torch.float32),
        (torch.int32, 2.5, torch.float32),
        (torch.int32, True, torch.int32),
        (torch.uint8, 2, torch.uint8),
    ],
)
def test_a_number_takes_the_type_of_its_tile_where_that_holds_it(
    tile: torch.dtype, number: float, dtype: torch.dtype
) -> None:
    found = _seen(_add, COLUMN.to(tile), number)
    assert (found.dtype, found.flatten().tolist()) == (dtype, [each + number for each in range(4)])


@pytest.mark.parametrize(("tile", "number"), [(torch.int32, 2**31), (torch.uint8, -1), (torch.uint8, 256)])
def test_a_number_that_the_type_of_its_tile_does_not_hold_is_refused(tile: torch.dtype, number: int) -> None:
    with pytest.raises(ValueError, match=r"out of range|negative scalar"):
        _seen(_add, COLUMN.to(tile), number)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="incompatible dimensions at index 1: 2 and 4"):
        _seen(_add, (COLUMN + ROW).int(), (COLUMN + COLUMN.T).int())


def test_tiles_of_fewer_dimensions_are_spread_over_the_last() -> None:
    assert torch.equal(_seen(_add, (COLUMN + ROW).int(), ROW[0].int()), (COLUMN + 2 * ROW).int())


def test_a_type_is_one_object_for_its_elements_and_sizes() -> None:
    tile = tl.block_type(tl.int32, [4, 2])
    assert tl.block_type(tl.int32, [tl.constexpr(4), tl.constexpr(2)]) is tile
    assert tl.block_type(tl.int32, tile.shape) is tile
    assert tl.block_type(tl.float32, [4, 2]).with_element_ty(tl.int32) is tile
    assert str(tile) == "<['4', '2'], int32>"
    assert tl.block_type(tl.int32, [2, 4]) != tile != tl.block_type(tl.int8, [4, 2])
    assert copy.copy(tile) == tile


def test_types_that_cannot_be_are_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="power of 2"):
            tl.block_type(tl.int32, [3])


def test_pointers_that_differ_have_blocks_of_their_own() -> None:
    plain, const = tl.pointer_type(tl.int32), tl.pointer_type(tl.int32, const=True)
    blocks = [tl.block_type(pointer, [4]) for pointer in (plain, const)]
    assert [block.element_ty for block in blocks] == [plain, const]


@triton.jit
def _constants(out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    # Nothing of what is written here is written into the number, which stands at each place.
    tile = tl.zeros((SIZE,), tl.float32) + 0.5
    tl.store(out_ptr + at, tile)
    tl.store(out_ptr + SIZE + at, tl.where(at < 2, tile + 1, tile))


def test_a_kernel_stores_tiles_of_one_number() -> None:
    out = torch.zeros(8)
    _constants[(1,)](out, SIZE=4)
    assert out.tolist() == [0.5, 0.5, 0.5, 0.5, 1.5, 1.5, 0.5, 0.5]
