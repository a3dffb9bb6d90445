"""Scalars, bfloat16 and float8 under Triton's interpreter are what they are on a GPU."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from flashgen.runtime.interpreter import interpreted
from flashgen.runtime.interpreter_language import Language

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="the interpreter is off")


@triton.jit
def _tests(out_ptr, number, flag, SIZE: tl.constexpr):
    keys = tl.arange(0, SIZE)
    # A comparison of floats, and the negation of a bool, spread over a tile.
    shown = (number > 1.5) & (keys < 3) | (~flag & (keys == 4))
    tl.store(out_ptr + keys, shown.to(tl.int32) + (number <= 1.5).to(tl.int32))


@triton.jit
def _integers(x_ptr, narrow_ptr, wide_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + at)
    tl.store(narrow_ptr + at, x.to(tl.int32))
    tl.store(wide_ptr + at, tl.cast(x, tl.int64))


@triton.jit
def _product(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


@pytest.mark.parametrize("flag", [True, False])
def test_floats_and_bools_are_scalars_of_the_kernel(flag: bool) -> None:
    assert interpreted()
    out = torch.zeros(8, dtype=torch.int32)
    _tests[(1,)](out, 2.0, flag, SIZE=8)
    assert out.tolist() == [1, 1, 1, 0, int(not flag), 0, 0, 0]


def test_what_no_integer_holds_of_a_float_is_the_nearest() -> None:
    assert interpreted()
    floats = [math.inf, -math.inf, 2.0**63, -(2.0**63), 3e9, -3e9, -2.75, math.nan]
    narrow, wide = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int64)
    _integers[(1,)](torch.tensor(floats), narrow, wide, SIZE=8)
    top, great = 2**31 - 1, 2**63 - 1
    assert narrow.tolist() == [top, -top - 1, top, -top - 1, top, -top - 1, -2, 0]
    assert wide.tolist() == [great, -great - 1, great, -great - 1, 3_000_000_000, -3_000_000_000, -2, -great - 1]


def test_products_of_bfloat16() -> None:
    assert interpreted()
    a, b = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    out = torch.zeros(16, 16)
    _product[(1,)](a, b, out, SIZE=16)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-5, atol=1e-5)


@triton.jit
def _rounded(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(tl.bfloat16))


@triton.jit
def _widened(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(tl.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_bfloat16_is_the_nearest(dtype: torch.dtype) -> None:
    """Ties go to even, as on a GPU; what is no number stays none, and what is beyond the largest is infinite."""
    assert interpreted()
    odd = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-10, 0.0, -0.0, float("inf"), float("nan"), torch.finfo(dtype).max]
    x = torch.cat(
        [torch.tensor(odd, dtype=dtype), torch.randn(56, generator=torch.Generator().manual_seed(0)).to(dtype)]
    )
    out = torch.zeros(64, dtype=torch.bfloat16)
    _rounded[(1,)](x, out, SIZE=64)
    torch.testing.assert_close(out, x.bfloat16(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out[:5].view(torch.int16), x[:5].bfloat16().view(torch.int16))


def test_no_bfloat16_is_too_small_for_a_float() -> None:
    assert interpreted()
    x = torch.arange(64, dtype=torch.int16).view(torch.bfloat16)
    out = torch.zeros(64)
    _widened[(1,)](x, out, SIZE=64)
    assert torch.equal(out, x.float()) and out[1:].all()


@triton.jit
def _converted(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(out_ptr.dtype.element_ty))


@pytest.mark.parametrize("wider", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("narrow", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_each_float8_is_read_as_what_it_is(narrow: torch.dtype, wider: torch.dtype) -> None:
    """What is no number, and what is infinite, among them."""
    assert interpreted()
    x = torch.arange(256, dtype=torch.uint8).view(narrow)
    out = torch.zeros(256, dtype=wider)
    _converted[(1,)](x, out, SIZE=256)
    torch.testing.assert_close(out, x.to(wider), rtol=0, atol=0, equal_nan=True)


@triton.jit
def _overflows(out_ptr, number, SIZE: tl.constexpr):
    keys = tl.arange(0, SIZE)
    large = tl.full([SIZE], 2**30, tl.int32) * (keys + 2)
    tl.store(out_ptr + keys, tl.log2(number + keys.to(tl.float32)) + large.to(tl.float32) * number)


@pytest.mark.filterwarnings("error")
def test_nothing_warns_of_numbers_that_a_gpu_takes() -> None:
    assert interpreted()
    out = torch.zeros(4)
    _overflows[(1,)](out, 0.0, SIZE=4)
    assert out[:3].tolist() == [-math.inf, 0.0, 1.0]


@triton.jit
def _extremes(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + at[:, None] * SIZE + at[None, :])
    tl.store(out_ptr + at, tl.max(x, 1))
    tl.store(out_ptr + SIZE + at, tl.min(x, 1))
    tl.store(out_ptr + 2 * SIZE, tl.max(x))


@pytest.mark.filterwarnings("error")
def test_a_row_without_numbers_has_no_extremes() -> None:
    """Beside numbers what is none counts for nothing, as on a GPU."""
    assert interpreted()
    x = torch.tensor([[math.nan] * 4, [1.0, math.nan, -2.0, 0.0], [-math.inf] * 4, [3.0, 2.0, 1.0, 0.0]])
    out = torch.zeros(9)
    _extremes[(1,)](x, out, SIZE=4)
    wanted = torch.tensor([math.nan, 1.0, -math.inf, 3.0, math.nan, -2.0, -math.inf, 0.0, 3.0])
    torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)


@triton.jit
def _doubled(x):
    return x + x


@triton.jit
def _power(out_ptr, SIZE: tl.constexpr, TIMES: tl.constexpr):
    x = tl.full([SIZE], 1.0, tl.float32)
    for _ in range(TIMES):
        x = _doubled(x)
    tl.store(out_ptr + tl.arange(0, SIZE), x)


def test_the_language_is_made_once_for_all_kernels_and_what_they_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interpreted()
    from triton.runtime import interpreter

    _power[(2,)](torch.zeros(4), SIZE=4, TIMES=1)
    made, patch = [], interpreter._patch_builtin
    monkeypatch.setattr(interpreter, "_patch_builtin", lambda *given: made.append(given[0]) or patch(*given))
    for times in (1, 7):
        out = torch.zeros(4)
        _power[(2,)](out, SIZE=4, TIMES=times)
        assert out.tolist() == [2.0**times] * 4
        assert tl.core.is_builtin(tl.load) and tl.core.is_builtin(tl.tensor.__add__)
    assert not made


def test_a_kernel_that_runs_while_a_copy_mends_the_interpreter_goes_on_as_it_began() -> None:
    """An exported file has its own: what it sees of a language that is patched already is not all."""
    from triton.runtime import interpreter

    given: list[Any] = []
    first = SimpleNamespace(
        _patch_lang=lambda function: given.append(function) or interpreter._LangPatchScope(),
        _LangPatchScope=interpreter._LangPatchScope,
    )
    language = Language(first, {}, {"load": print}, {})
    assert not language.patch(_power)._changes and given == [_power]
    language.begin()
    scope = language.patch(_power)
    assert tl.load is print and not language.patch(_doubled)._changes and len(given) == 2
    scope.restore()
    assert tl.core.is_builtin(tl.load)
