"""Arithmetic of expressions that Triton lacks or does differently from Python."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh(x, PRECISE: tl.constexpr):
    """tanh within an absolute error of 3e-7; where PRECISE, small arguments too within a relative one of 2e-7."""
    # 1 - 2 / (exp(2 x) + 1) is right at both ends, where exp2 overflows or vanishes.
    result = 1.0 - 2.0 / (tl.exp2(x * 2.8853900817779268) + 1.0)
    if PRECISE:
        # Near zero the difference cancels: an odd polynomial instead (Cephes, tanhf).
        s = x * x
        p = (-5.70498872745e-3 * s + 2.06390887954e-2) * s - 5.37397155531e-2
        p = (p * s + 1.33314422036e-1) * s - 3.33332819422e-1
        result = tl.where(tl.abs(x) < 0.625, p * s * x + x, result)
    return result


@triton.jit
def tanh_approx(x):
    """tanh by an instruction of the GPU, within a relative error of 2**-11 (PTX ISA, tanh.approx.f32)."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def sech2(x):
    """1 / cosh(x) ** 2, the derivative of tanh, within a relative error of 1e-5 while it is a normal number."""
    # 4 e / (1 + e) ** 2 with e = exp(-2 |x|) <= 1.
    e = tl.exp2(tl.abs(x) * -2.8853900817779268)
    return 4.0 * e / ((1.0 + e) * (1.0 + e))


@triton.jit
def clip(position):
    """A position as int32; beyond the longest sequence, 2**24 keys, they are all alike."""
    return tl.minimum(tl.maximum(position, -(1 << 24)), 1 << 24).to(tl.int32)


@triton.jit
def floor_div(x, y):
    """x // y rounded toward minus infinity, for integers and y != 0."""
    quotient = x // y
    remainder = x - quotient * y
    return tl.where((remainder != 0) & ((remainder < 0) != (y < 0)), quotient - 1, quotient)


@triton.jit
def floor_mod(x, y):
    """x % y with the sign of y, for integers and y != 0."""
    remainder = x - (x // y) * y
    return tl.where((remainder != 0) & ((remainder < 0) != (y < 0)), remainder + y, remainder)


@triton.jit
def floor_div_or_zero(x, y):
    """x // y rounded toward minus infinity, for integers; 0 where y is 0."""
    divisor = tl.where(y == 0, 1, y)
    quotient = x // divisor
    remainder = x - quotient * divisor
    rounded = tl.where((remainder != 0) & ((remainder < 0) != (y < 0)), quotient - 1, quotient)
    return tl.where(y == 0, 0, rounded)


@triton.jit
def floor_mod_or_zero(x, y):
    """x % y with the sign of y, for integers; 0 where y is 0."""
    divisor = tl.where(y == 0, 1, y)
    remainder = x - (x // divisor) * divisor
    signed = tl.where((remainder != 0) & ((remainder < 0) != (y < 0)), remainder + divisor, remainder)
    return tl.where(y == 0, 0, signed)


@triton.jit
def shift_left(x, count):
    """x << count in 64 bits; a count outside 0..63 is taken as the nearest inside."""
    return tl.cast(x, tl.int64) << tl.minimum(tl.maximum(count, 0), 63).to(tl.int64)


@triton.jit
def shift_right(x, count):
    """x >> count in 64 bits; a count outside 0..63 is taken as the nearest inside."""
    return tl.cast(x, tl.int64) >> tl.minimum(tl.maximum(count, 0), 63).to(tl.int64)


@triton.jit
def power(x, y):
    """x ** y for floats: a negative x needs an integer y."""
    magnitude = tl.exp2(y * tl.log2(tl.abs(x)))
    half = y * 0.5
    odd = (tl.floor(y) == y) & (tl.floor(half) != half)
    signed = tl.where(x < 0, tl.where(tl.floor(y) == y, tl.where(odd, -magnitude, magnitude), float("nan")), magnitude)
    return tl.where(y == 0, 1.0, signed)


@triton.jit
def integer_power(x, y: tl.constexpr):
    """x ** y for an integer x and a constant y >= 0."""
    result = x * 0 + 1
    for _ in tl.static_range(y):
        result *= x
    return result
