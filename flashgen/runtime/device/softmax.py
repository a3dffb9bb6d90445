"""One step of the online softmax (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1), portable.

m [BM] is the running maximum of the logits, l [BM] the running sum of exp2(logit - m), acc [BM, V_HEAD_DIM] the running
sum of exp2(logit - m) * v, all float32. Logits are in units of log2. TF32: so are products of float32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def online_softmax(x, v_tile, acc, m, l, TF32: tl.constexpr = False):
    """The step for logits x [BM, BN] and values v_tile [BN, V_HEAD_DIM]. Returns acc, m and l."""
    m_new = tl.maximum(m, tl.max(x, 1))
    p = tl.exp2(x - m_new[:, None])
    alpha = tl.exp2(m - m_new)
    l = l * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="tf32" if TF32 else "ieee")
    return acc, m_new, l


@triton.jit
def online_softmax_scaled(qk, qk_scale, v_tile, acc, m, l, TF32: tl.constexpr = False):
    """The same for logits qk * qk_scale."""
    # qk_scale >= 0, so that the maximum may be taken before the multiplication: one FMA a score.
    m_new = tl.maximum(m, tl.max(qk, 1) * qk_scale)
    p = tl.exp2(qk * qk_scale - m_new[:, None])
    alpha = tl.exp2(m - m_new)
    l = l * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="tf32" if TF32 else "ieee")
    return acc, m_new, l


@triton.jit
def online_softmax_natural(x, v_tile, acc, m, l, TF32: tl.constexpr = False):
    """The same for logits in units of their own, which may be huge; l and acc are sums of exp(logit - m)."""
    m_new = tl.maximum(m, tl.max(x, 1))
    p = tl.exp2((x - m_new[:, None]) * 1.4426950408889634)
    alpha = tl.exp2((m - m_new) * 1.4426950408889634)
    l = l * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="tf32" if TF32 else "ieee")
    return acc, m_new, l
