"""alibi: what several kernels compute of a pair of query and key: _score, _visible.

Generated from variants/alibi.yaml by

    flashgen build variants/alibi.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl


@triton.jit
def _score(qk, k, q_first, qk_scale, slopes_h_scaled):
    """score - slopes[h] * abs(q - k), in units of log2, less what is constant along a row."""
    return qk * qk_scale - (q_first - k).to(tl.float32) * slopes_h_scaled


@triton.jit
def _visible(q, k):
    """k <= q."""
    return k <= q
