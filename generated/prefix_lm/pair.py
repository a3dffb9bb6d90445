"""prefix_lm: what several kernels compute of a pair of query and key: _visible.

Generated from variants/prefix_lm.yaml by

    flashgen build variants/prefix_lm.yaml

Do not edit: change the spec and build again.
"""

import triton


@triton.jit
def _visible(q, k, prefix):
    """k <= q or k < prefix."""
    return (k <= q) | (k < prefix)
