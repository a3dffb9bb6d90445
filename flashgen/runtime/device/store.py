"""The kernel that writes new keys and values into a paged cache."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_slots", "kv_heads", "least", "most"])
def store_tokens(
    source_ptr, cache_ptr, slot_ptr, scale_ptr,
    stride_t, stride_h, stride_page, stride_slot, stride_kh, stride_sp, stride_ss, stride_sh,
    block_size, num_slots, kv_heads, head_dim, least, most,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    # Grid: one program for each new token, which owns all of its heads.
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token).to(tl.int64)
    # A slot of -1 is a token that is not kept; one beyond the cache is nobody's.
    kept = (slot >= 0) & (slot < num_slots)
    page = slot // block_size
    place = slot % block_size
    heads = tl.arange(0, HEADS)[:, None].to(tl.int64)
    cols = tl.arange(0, HEAD_DIM)[None, :]
    inside = (heads < kv_heads) & (cols < head_dim) & kept
    x = tl.load(source_ptr + token * stride_t + heads * stride_h + cols, mask=inside, other=0.0).to(tl.float32)
    if scale_ptr is not None:
        scales = scale_ptr + page * stride_sp + place * stride_ss + heads * stride_sh
        x = x / tl.load(scales, mask=(heads < kv_heads) & kept, other=1.0)
    # Values beyond the cache's range become its ends; a NaN stays one where the cache can hold it.
    x = tl.where(x != x, x, tl.minimum(tl.maximum(x, least), most))
    if ROUNDS:
        # To the nearest integer, ties to even: float32 has no fractions at 3 * 2**22.
        x = tl.where(x != x, 0.0, x + 12582912.0 - 12582912.0)
    to = cache_ptr + page * stride_page + place * stride_slot + heads * stride_kh + cols
    tl.store(to, x.to(cache_ptr.dtype.element_ty), mask=inside)
