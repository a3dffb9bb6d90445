"""global_window: what several kernels compute of a pair of query and key: _visible, _visible_by_key.

Generated from variants/global_window.yaml by

    flashgen build variants/global_window.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl


@triton.jit
def _visible(q, k, is_global_b_q, is_global_base):
    """abs(q - k) <= 256 or is_global[b, k] or is_global[b, q]."""
    return (tl.abs(q - k) <= 256) | tl.load(is_global_base + k) | is_global_b_q


@triton.jit
def _visible_by_key(q, k, is_global_b_k, is_global_base):
    """abs(q - k) <= 256 or is_global[b, k] or is_global[b, q]."""
    return (tl.abs(q - k) <= 256) | is_global_b_k | tl.load(is_global_base + tl.maximum(q, 0))
