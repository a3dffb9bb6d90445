"""Descriptors made on the host are to Triton what its own are, and are told apart where Triton tells them apart."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashgen.runtime.descriptors import Tile, Tiled, rows_tiling
from flashgen.runtime.specialization import describe_arguments

BACKEND = type(make_backend(GPUTarget("cuda", 90, 32)))


def seen_by_triton(value: object) -> object:
    return native_specialize_impl(BACKEND, value, False, True, True)


def described(value: object) -> object:
    return describe_arguments(SimpleNamespace(), 0, (value,), ())[0][1:]


def tensor(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def by_tiles(tensor: torch.Tensor, rows: int, width: int) -> Tiled:
    kind = gl.float16 if tensor.dtype == torch.float16 else gl.bfloat16
    shape = (1, 1, rows, width)
    return tiled(tensor, Tile(shape, tensor.dtype, gl.NVMMASharedLayout.get_default_for(list(shape), kind)))


def tiled(tensor: torch.Tensor, tile: Tile) -> Tiled:
    return rows_tiling(tensor.shape, tensor.stride(), tile).of(tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_triton_sees_one_of_its_own(dtype: torch.dtype) -> None:
    q = tensor(2, 3, 40, 64, dtype=dtype)
    made = by_tiles(q, 64, 64)
    own = TensorDescriptor(q, list(q.shape), list(q.stride()), [1, 1, 64, 64], made.layout)
    assert seen_by_triton(made) == seen_by_triton(own)
    for name in ("base", "shape", "strides", "padding"):
        one, other = getattr(made, name), getattr(own, name)
        assert one is other or (list(one) == other if isinstance(other, list) else one == other), name
    TensorDescriptor.__post_init__(made)  # what Triton would have checked


def test_descriptors_are_told_apart_by_what_a_kernel_is_compiled_for_alone() -> None:
    q = tensor(2, 3, 40, 64)
    made = [by_tiles(q, 64, 64), by_tiles(q, 128, 64), by_tiles(q, 64, 128), by_tiles(q.bfloat16(), 64, 64)]
    assert len({described(each) for each in made}) == len({seen_by_triton(each) for each in made}) == 4
    assert described(tiled(tensor(1, 1, 7, 64), made[0].tile)) == described(made[0])


def test_dimensions_of_size_one_have_strides_that_tma_takes() -> None:
    one_head = tensor(2, 40, 64).as_strided((2, 1, 40, 64), (2560, 3, 64, 1))
    made = by_tiles(one_head, 64, 64)
    TensorDescriptor.__post_init__(made)
    assert made.base is one_head and made.strides == (2560, 64, 64, 1)


def test_what_is_repeated_is_copied() -> None:
    shared = tensor(2, 1, 40, 64).expand(2, 3, 40, 64)
    made = by_tiles(shared, 64, 64)
    TensorDescriptor.__post_init__(made)
    assert made.base is not shared and made.strides == (7680, 2560, 64, 1)


def test_a_copy_of_what_is_repeated_has_rows_that_tma_takes() -> None:
    narrow = torch.rand(2, 1, 40, 24).half()[..., :20]
    shared = narrow.expand(2, 3, 40, 20)
    made = by_tiles(shared, 64, 32)
    TensorDescriptor.__post_init__(made)
    assert made.strides == made.base.stride() == (2880, 960, 24, 1)
    assert torch.equal(made.base, shared)
