"""A kernel found before is launched again only where Triton itself would take the same one."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.experimental.gluon import language as gl

from flashgen.runtime import launching
from flashgen.runtime.descriptors import Tile, Tiled, rows_tiling
from flashgen.runtime.memory import MOST, remember

MEMORY = torch.zeros(64, dtype=torch.uint8)
VALUES = [
    None, True, False, 0.0, 1.0, 0.5, 0, 1, 2, 15, 16, 17, 32, 48, 63, 64, 65, 80, 128, 127, 129, 1024, 1040, -1, -16,
    2**31 - 1, 2**31, 2**31 + 16, 2**32, -(2**31) - 1, 2**63, 2**63 + 16,
    *(MEMORY[offset : offset + 4].view(dtype) for offset in (0, 4, 16) for dtype in (torch.float32, torch.int32)),
    *(MEMORY[offset : offset + 4].view(torch.bfloat16) for offset in (0, 2, 8, 32)),
]  # fmt: skip


def seen_by_triton(value: object) -> object:
    """What Triton compiles a kernel for, and what it caches it under."""
    backend = type(make_backend(GPUTarget("cuda", 90, 32)))
    return native_specialize_impl(backend, value, False, True, True)


def described(value: object) -> object:
    return launching._describe(SimpleNamespace(), 0, (value,), ())[0][1:]


def test_what_triton_tells_apart_is_told_apart() -> None:
    for one, other in itertools.combinations(VALUES, 2):
        if seen_by_triton(one) != seen_by_triton(other):
            assert described(one) != described(other), (one, other)


@given(st.integers(-(2**40), 2**40), st.integers(-(2**40), 2**40))
def test_so_are_integers(one: int, other: int) -> None:
    if seen_by_triton(one) != seen_by_triton(other):
        assert described(one) != described(other)


@given(st.lists(st.integers(-(2**40), 2**40)), st.lists(st.integers(-(2**40), 2**40)))
def test_so_are_tuples_of_them(one: list[int], other: list[int]) -> None:
    if [seen_by_triton(value) for value in one] != [seen_by_triton(value) for value in other]:
        assert described(tuple(one)) != described(tuple(other))


def test_lengths_that_grow_need_few_kernels_to_be_found() -> None:
    assert len({described(length) for length in range(100000)}) == 128


def test_kernels_are_told_apart_by_constants_and_by_what_they_are() -> None:
    one, other = SimpleNamespace(), SimpleNamespace()
    seen = {launching._describe(kernel, gpu, (), constants)[0] for kernel in (one, other) for gpu in (0, 1)
            for constants in (("BM", 64), ("BM", 32), ("BN", 64))}  # fmt: skip
    assert len(seen) == 12


def test_an_argument_of_no_known_kind_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^an argument of a kernel is str; expected a tensor, a number"):
        described("text")


def test_a_memory_that_is_full_starts_again() -> None:
    memory: dict[object, int] = {}
    for number in range(MOST + 1):
        remember(memory, number, number)
    assert memory == {MOST: MOST}


@triton.jit
def _add(x_ptr, value, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < size, other=0)
    tl.store(x_ptr + at, x + value, mask=at < size)


def test_a_launch_runs_the_kernel() -> None:
    x = torch.zeros(40, device="cuda" if torch.cuda.is_available() else "cpu")
    for value in (1, 16, 1.5, 3):
        launching.launch(_add, 3, x, value, 40, BLOCK=16, num_warps=1)
    assert x.tolist() == [21.5] * 40


def test_a_tuple_of_integers_stands_for_its_elements() -> None:
    passed = launching._describe(SimpleNamespace(), 0, (MEMORY, (3, 5), 7, ()), ())[1]
    assert passed == [MEMORY.data_ptr(), *launching.flat_arguments(((3, 5), 7, ()))] == [MEMORY.data_ptr(), 3, 5, 7]
    x = torch.zeros(40, device="cuda" if torch.cuda.is_available() else "cpu")
    for value in (1, 16, 3):
        launching.launch(_add, 3, x, (value, 40), BLOCK=16, num_warps=1)
    assert x.tolist() == [20.0] * 40


def test_a_repeated_launch_asks_for_the_rest_once() -> None:
    on_gpu = torch.cuda.is_available()
    x = torch.zeros(40, device="cuda" if on_gpu else "cpu")
    asked = []

    def rest() -> launching.Rest:
        asked.append(True)
        return launching.Rest(3, (2, 40), BLOCK=16, num_warps=1)

    for _ in range(3):
        launching.relaunch(_add, ("twos",), x, rest=rest)
    assert x.tolist() == [6.0] * 40
    assert len(asked) == (1 if on_gpu else 3)


def test_the_rest_of_a_launch_puts_descriptors_in_the_place_of_tensors() -> None:
    tile = Tile((1, 1, 16, 16), torch.float16, gl.NVMMASharedLayout.get_default_for([1, 1, 16, 16], gl.float16))
    q = torch.zeros(1, 2, 16, 16, dtype=torch.float16)
    rest = launching.Rest(3, (2, 40), 7, tilings=(rows_tiling(q.shape, q.stride(), tile), None), BLOCK=16)
    tiled, *others = rest.arguments((q, None, 5))
    assert isinstance(tiled, Tiled) and tiled.base is q
    assert others == [None, 5, 2, 40, 7] and rest.constants == {"BLOCK": 16} and rest.programs == 3
