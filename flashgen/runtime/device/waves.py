"""Sines, cosines, tangents and the error function, without a branch for each element as Triton's own have."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def less_turns(x, n):
    """x - n * pi, as if x were exact, for a multiple n of 1/2 up to 1e5; NaN for an infinite x."""
    # In three parts (Cody and Waite), so that the larger products are exact.
    r = x - n * 3.140625 - n * 9.67502593994140625e-4 - n * 1.509957990978376432e-7
    # Beyond 2e7 x has too few digits for n.
    return tl.where(tl.abs(r) < 3.0, r, x - x)


@triton.jit
def sin(x):
    """The sine, within 5e-7 for numbers up to 2e4, within 3e-6 up to 2e5."""
    n = tl.floor(x * 0.3183098861837907 + 0.5)
    r = less_turns(x, n)
    s = r * r
    p = (((-2.50521084e-8 * s + 2.75573192e-6) * s - 1.98412698e-4) * s + 8.33333333e-3) * s - 1.66666667e-1
    sine = p * s * r + r
    return tl.where(tl.floor(n * 0.5) * 2.0 == n, sine, -sine)


@triton.jit
def cos(x):
    """The cosine, within 5e-7 for numbers up to 2e4, within 3e-6 up to 2e5."""
    n = tl.floor(x * 0.3183098861837907) + 0.5
    r = less_turns(x, n)
    s = r * r
    p = (((-2.50521084e-8 * s + 2.75573192e-6) * s - 1.98412698e-4) * s + 8.33333333e-3) * s - 1.66666667e-1
    sine = p * s * r + r
    return tl.where(tl.floor(n * 0.5) * 2.0 + 0.5 == n, -sine, sine)


@triton.jit
def tan(x):
    """The tangent, within a relative error of 1e-6 but next to its zeros and poles beyond the first."""
    n = tl.floor(x * 0.6366197723675814 + 0.5) * 0.5
    r = less_turns(x, n)
    s = r * r
    # Cephes, tanf.
    p = (9.38540185543e-3 * s + 3.11992232697e-3) * s + 2.44301354525e-2
    p = ((p * s + 5.34112807005e-2) * s + 1.33387994085e-1) * s + 3.33331568548e-1
    tangent = p * s * r + r
    return tl.where(tl.floor(n) == n, tangent, -1.0 / tangent)


@triton.jit
def erf(x):
    """The error function, within a relative error of 5e-7."""
    # Its series next to 0; elsewhere Abramowitz and Stegun, 7.1.26.
    s = x * x
    series = (-8.5483270e-4 * s + 5.2239776e-3) * s - 2.6866171e-2
    series = ((series * s + 1.1283792e-1) * s - 3.7612639e-1) * s + 1.1283791671
    size = tl.abs(x)
    t = 1.0 / (1.0 + 0.3275911 * size)
    p = (((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592
    far = 1.0 - p * t * tl.exp2(s * -1.4426950408889634)
    return tl.where(size < 0.5, series * x, tl.where(x < 0, -far, far))
