"""prefix_lm: what several kernels compute of a pair of query and key: _clip, _visible.

Generated from variants/prefix_lm.yaml by

    flashgen build variants/prefix_lm.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl


@triton.jit
def _clip(position):
    """A position as int32; beyond the longest sequence, 2**24 keys, they are all alike."""
    return tl.minimum(tl.maximum(position, -(1 << 24)), 1 << 24).to(tl.int32)


@triton.jit
def _visible(q, k, prefix):
    """k <= q or k < prefix."""
    return (k <= q) | (k < prefix)
