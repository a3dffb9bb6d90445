"""gemma2: what several kernels compute of a pair of query and key: _score, _visible, _score_and_slope,
_score_and_slope_by_key.

Generated from variants/gemma2.yaml by

    flashgen build variants/gemma2.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.arithmetic import tanh, tanh_approx


@triton.jit
def _score(qk, PRECISE: tl.constexpr, qk_scale):
    """50.0 * tanh(score / 50.0), in units of log2."""
    return tanh(qk * qk_scale, PRECISE) * 72.13475204444816


@triton.jit
def _visible(q, k, r):
    """k >= q - 4095 and k <= q."""
    return (k >= r) & (k <= q)


@triton.jit
def _score_and_slope(qk, PRECISE: tl.constexpr, qk_scale):
    """50.0 * tanh(score / 50.0), in units of log2, and its derivative by score."""
    t = tanh(qk * qk_scale, PRECISE)
    return t * 72.13475204444816, 1.0 - t * t


@triton.jit
def _score_and_slope_by_key(qk, qk_scale):
    """50.0 * tanh(score / 50.0), in units of log2, and its derivative by score."""
    t = tanh_approx(qk * qk_scale)
    return t * 72.13475204444816, 1.0 - t * t
