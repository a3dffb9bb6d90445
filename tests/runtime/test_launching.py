"""A kernel found before is launched again only where Triton itself would take the same one."""

from __future__ import annotations

import gc
import itertools
from types import SimpleNamespace
from typing import Any

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
from flashgen.runtime.bounded_cache import MOST, remember
from flashgen.runtime.descriptors import Tile, Tiled, rows_tiling
from flashgen.runtime.specialization import describe_arguments, flat_arguments

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
    return describe_arguments(SimpleNamespace(), 0, (value,), ())[0][1:]


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
    seen = {describe_arguments(kernel, gpu, (), constants)[0] for kernel in (one, other) for gpu in (0, 1)
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
    passed = describe_arguments(SimpleNamespace(), 0, (MEMORY, (3, 5), 7, ()), ())[1]
    assert passed == [MEMORY.data_ptr(), *flat_arguments(((3, 5), 7, ()))] == [MEMORY.data_ptr(), 3, 5, 7]
    x = torch.zeros(40, device="cuda" if torch.cuda.is_available() else "cpu")
    for value in (1, 16, 3):
        launching.launch(_add, 3, x, (value, 40), BLOCK=16, num_warps=1)
    assert x.tolist() == [20.0] * 40


@triton.jit
def _add_scaled(x_ptr, scale, y_ptr, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(y_ptr + at, mask=at < size, other=0)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < size, other=0) + scale * y, mask=at < size)


def test_a_repeated_launch_asks_for_the_rest_once() -> None:
    on_gpu = torch.cuda.is_available()
    x, y = (torch.full((40,), value, device="cuda" if on_gpu else "cpu") for value in (0.0, 2.0))
    asked = []

    def setup() -> launching.Setup:
        asked.append(True)
        return launching.Setup(3, {"size": 40, "scale": 3, "heads": 7}, {"BLOCK": 16, "TILE": 5}, {"num_warps": 1})

    for _ in range(3):
        # By name, whatever their order, and of those names that the kernel has.
        launching.relaunch(_add_scaled, ("twos",), {"y_ptr": y, "z_ptr": None, "x_ptr": x}, setup)
    assert x.tolist() == [18.0] * 40
    assert len(asked) == (1 if on_gpu else 3)


def test_a_first_launch_is_not_interrupted_by_collections() -> None:
    found = []

    class Kernel:
        pre_run_hooks = ()

        def __getitem__(self, grid: tuple[int]) -> Any:
            return lambda *arguments, **constants: found.append((grid, constants, gc.isenabled()))

    launching._launch_here(Kernel(), 3, 0, (MEMORY,), {"BLOCK": 16})
    assert found == [((3,), {"BLOCK": 16}, False)]
    assert gc.isenabled()


def _takes(*names: str) -> SimpleNamespace:
    return SimpleNamespace(arg_names=names, __name__="_kernel")


def test_the_rest_of_a_launch_puts_descriptors_in_the_place_of_tensors() -> None:
    tile = Tile((1, 1, 16, 16), torch.float16, gl.NVMMASharedLayout.get_default_for([1, 1, 16, 16], gl.float16))
    q = torch.zeros(1, 2, 16, 16, dtype=torch.float16)
    tilings = {"q_desc": rows_tiling(q.shape, q.stride(), tile)}
    setup = launching.Setup(3, {"heads": 2, "q_len": 40}, {"BLOCK": 16}, {}, tilings)
    kernel = _takes("q_desc", "q_len", "sums", "heads", "BLOCK")
    (tiled, *others), constants = setup.arguments(kernel, {"sums": None, "q_desc": q})
    assert isinstance(tiled, Tiled) and tiled.base is q
    assert others == [40, None, 2] and constants == {"BLOCK": 16}


def test_a_parameter_that_no_launch_gives_is_named() -> None:
    setup = launching.Setup(3, {"heads": 2}, {"BLOCK": 16}, {})
    with pytest.raises(
        TypeError, match=r"^_kernel takes 'q_len'; expected what its launch gives: q_ptr, heads, BLOCK$"
    ):
        setup.arguments(_takes("q_ptr", "q_len", "BLOCK"), {"q_ptr": MEMORY})


@pytest.mark.parametrize("given", [("a_ptr", "b_ptr"), ("b_ptr", "rate", "c_ptr"), ("c_ptr",)], ids=", ".join)
def test_what_is_known_of_a_launch_comes_in_the_order_of_the_kernel(given: tuple[str, ...]) -> None:
    kernel = _takes("a_ptr", "b_ptr", "heads", "rate", "c_ptr", "q_len", "BLOCK")
    values: dict[str, Any] = {name: torch.zeros(3) if name.endswith("ptr") else 0.5 for name in kernel.arg_names[:5]}
    now = {name: values[name] for name in reversed(given)}
    setup = launching.Setup(
        3, {**{n: v for n, v in values.items() if n not in now}, "heads": 2, "q_len": 40}, {"BLOCK": 16}, {}
    )
    order = launching._order(kernel, now)
    positional, constants = setup.arguments(kernel, now)
    run = SimpleNamespace(global_scratch_size=0, profile_scratch_size=0, launch=None)
    found = launching.Found(SimpleNamespace(run=run), tuple(constants.values()), kernel)  # type: ignore[arg-type]
    everything = (*positional, *found.values)
    passed = list(order.take(now))
    known = launching._know(order, found, setup, everything, passed)
    assert order.names == given
    assert [*known.arguments(passed, passed)] == [*everything]
