"""relative_bias: what several kernels compute of a pair of query and key: _score, _is_uniform, _uniform_score,
_score_of_rows.

Generated from variants/relative_bias.yaml by

    flashgen build variants/relative_bias.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl


@triton.jit
def _score(qk, q, k, rel_base, scale):
    """score + rel[h, clamp(q - k, -64, 64) + 64]."""
    return qk * scale + tl.load(rel_base + tl.minimum(tl.maximum(q - k, -64), 64) + 64)


@triton.jit
def _is_uniform(k_first, k_last, q_first, q_last):
    """Whether all pairs of a tile read at one place: rel[h, clamp(q - k, -64, 64) + 64]."""
    return tl.minimum(tl.maximum(q_first - k_last, -64), 64) == tl.minimum(tl.maximum(q_last - k_first, -64), 64)


@triton.jit
def _uniform_score(qk, k_first, q_first, rel_base, scale):
    """The same as _score for such a tile."""
    return qk * scale + tl.load(rel_base + tl.minimum(tl.maximum(q_first - k_first, -64), 64) + 64)


@triton.jit
def _score_of_rows(qk, q, k, rel_ptr, rel_row, scale):
    """score + rel[h, clamp(q - k, -64, 64) + 64]."""
    return qk * scale + tl.load(rel_ptr + rel_row + tl.minimum(tl.maximum(q - k, -64), 64) + 64)
