"""dilated: what several kernels compute of a pair of query and key: _visible.

Generated from variants/dilated.yaml by

    flashgen build variants/dilated.yaml

Do not edit: change the spec and build again.
"""

import triton


@triton.jit
def _visible(q, k):
    """k <= q and (q - k < 2048 and (q - k) % 4 == 0)."""
    t = q - k
    return (k <= q) & ((t < 2048) & (t & 3 == 0))
