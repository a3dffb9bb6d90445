"""softcap: what several kernels compute of a pair of query and key: _score, _visible, _score_and_slope,
_score_and_slope_by_key.

Generated from variants/softcap.yaml by

    flashgen build variants/softcap.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.arithmetic import tanh, tanh_approx


@triton.jit
def _score(qk, PRECISE: tl.constexpr, qk_scale):
    """30.0 * tanh(score / 30.0), in units of log2."""
    return tanh(qk * qk_scale, PRECISE) * 43.2808512266689


@triton.jit
def _visible(q, k):
    """k <= q."""
    return k <= q


@triton.jit
def _score_and_slope(qk, PRECISE: tl.constexpr, qk_scale):
    """30.0 * tanh(score / 30.0), in units of log2, and its derivative by score."""
    t = tanh(qk * qk_scale, PRECISE)
    return t * 43.2808512266689, 1.0 - t * t


@triton.jit
def _score_and_slope_by_key(qk, qk_scale):
    """30.0 * tanh(score / 30.0), in units of log2, and its derivative by score."""
    t = tanh_approx(qk * qk_scale)
    return t * 43.2808512266689, 1.0 - t * t
