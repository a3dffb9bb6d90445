"""softcap: what several kernels compute of a pair of query and key: _tanh, _tanh_approx, _visible, _score_and_slope,
_score_and_slope_by_key.

Generated from variants/softcap.yaml by

    flashgen build variants/softcap.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl


@triton.jit
def _tanh(x, PRECISE: tl.constexpr):
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
def _tanh_approx(x):
    """tanh by an instruction of the GPU, within a relative error of 2**-11 (PTX ISA, tanh.approx.f32)."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def _visible(q, k):
    """k <= q."""
    return k <= q


@triton.jit
def _score_and_slope(qk, PRECISE: tl.constexpr, qk_scale):
    """30.0 * tanh(score / 30.0), in units of log2, and its derivative by score."""
    t = _tanh(qk * qk_scale, PRECISE)
    return t * 43.2808512266689, 1.0 - t * t


@triton.jit
def _score_and_slope_by_key(qk, qk_scale):
    """30.0 * tanh(score / 30.0), in units of log2, and its derivative by score."""
    t = _tanh_approx(qk * qk_scale)
    return t * 43.2808512266689, 1.0 - t * t
