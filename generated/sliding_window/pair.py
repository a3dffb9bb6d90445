"""sliding_window: what several kernels compute of a pair of query and key: _visible.

Generated from variants/sliding_window.yaml by

    flashgen build variants/sliding_window.yaml

Do not edit: change the spec and build again.
"""

import triton


@triton.jit
def _visible(q, k, r):
    """k >= q - 1023 and k <= q."""
    return (k >= r) & (k <= q)
