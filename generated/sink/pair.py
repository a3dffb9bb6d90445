"""sink: what several kernels compute of a pair of query and key: _visible.

Generated from variants/sink.yaml by

    flashgen build variants/sink.yaml

Do not edit: change the spec and build again.
"""

import triton


@triton.jit
def _visible(q, k):
    """k <= q."""
    return k <= q
