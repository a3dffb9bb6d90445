"""relative_bias: dk and dv, and dq where a config fuses it, for Hopper.

Generated from variants/relative_bias.yaml by

    flashgen build variants/relative_bias.yaml

Do not edit: change the spec and build again.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)

from flashgen.runtime.device.sm90.barriers import barrier_arrive, barrier_sync, make_barriers
from flashgen.runtime.device.sm90.fragments import accumulate_threads, add_dq, start_dq, thread_sums
from flashgen.runtime.device.sm90.kv_tiles import slot_of
from flashgen.runtime.device.sm90.positions import opaque
from flashgen.runtime.device.sm90.sequences import delta_place, if_any, key_tile, other_side, tma_place
from flashgen.runtime.device.sm90.tiles import place_of
from flashgen.runtime.gluon import tma_load, tma_store

from .pair import _is_uniform, _score, _uniform_score


@gluon.jit
def _queries_of(col0, q_len, kv_len, BM: gl.constexpr, BN: gl.constexpr):
    """The tiles of queries for the tile of keys at col0: num_tiles, the first num_mixed of which need the mask."""

    # Rows below q_len see some key of the tile, those below full_end each of them.
    full_end = gl.where(col0 + BN > kv_len, 0, q_len)
    num_tiles = gl.cdiv(gl.maximum(q_len, 0), BM)
    num_mixed = num_tiles - gl.maximum(full_end, 0) // BM
    return num_tiles, num_mixed


@gluon.jit
def _query_tile(i, num_tiles, BM: gl.constexpr):
    """The first query of tile i, mixed tiles before full ones."""
    start = (num_tiles - 1 - i) * BM
    return start


@gluon.jit
def _is_uniform_query_tile(i, num_tiles, k_first, k_last, kv_len, q_len, BM: gl.constexpr):
    """Whether there is a tile i, all of whose pairs read at one place."""
    start = _query_tile(i, num_tiles, BM)
    q_first = start + (kv_len - q_len)
    q_last = gl.minimum(start + BM, q_len) - 1 + (kv_len - q_len)
    return (i < num_tiles) & _is_uniform(k_first, k_last, q_first, q_last)


@gluon.jit
def _backward_producer(
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, shared, barriers, sizes,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
):
    # One warp: brings the program's tile of K and V into shared memory by TMA, then the tiles of Q and dO that see it
    # and their rows' lse and delta as soon as the consumers make room.
    batch, heads, kv_heads, longest_q, longest_k, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s, lse_s, delta_s = shared
    kv_full, q_full, do_full, rows_full, empty = barriers
    b, kv_h, col0, begin_k, num_keys = key_tile(
        gl.program_id(0), cu_seqlens_k_ptr, num_seqs, total_k, longest_k, batch, kv_heads, head_group, BN
    )
    b, begin_q, q_len = other_side(cu_seqlens_q_ptr, b, num_seqs, total_q, longest_q)
    kv_len = if_any(cu_seqlens_q_ptr, q_len, num_keys, 1)
    seen = if_any(cu_seqlens_q_ptr, q_len, num_keys, 0)
    mbarrier.expect(kv_full, 2 * (k_desc.block_type.nbytes + v_desc.block_type.nbytes))
    for c in gl.static_range(2):
        k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, seen, col0 + 64 * c)
        tma_load(k_desc, place_of(k_desc, k_b, kv_h, k_row, 0), kv_full, k_s.index(c))
    for c in gl.static_range(2):
        k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, seen, col0 + 64 * c)
        tma_load(v_desc, place_of(v_desc, k_b, kv_h, k_row, 0), kv_full, v_s.index(c))
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    for h in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        num_tiles, _ = _queries_of(col0, q_len, kv_len, BM, BN)
        first_row = delta_place(cu_seqlens_q_ptr, b, h, heads, begin_q, num_rows)
        for i in range(num_tiles):
            start = _query_tile(i, num_tiles, BM)
            q_b, q_row = tma_place(cu_seqlens_q_ptr, begin_q, q_len, start)
            stage, phase = slot_of(n, STAGES)
            mbarrier.wait(empty.index(stage), phase ^ 1)
            mbarrier.expect(q_full.index(stage), q_desc.block_type.nbytes)
            tma_load(q_desc, place_of(q_desc, q_b, h, q_row, 0), q_full.index(stage), q_s.index(stage))
            mbarrier.expect(do_full.index(stage), do_desc.block_type.nbytes)
            tma_load(do_desc, place_of(do_desc, q_b, h, q_row, 0), do_full.index(stage), do_s.index(stage))
            mbarrier.expect(rows_full.index(stage), 8 * BM)
            tma_load(lse_desc, [first_row + start], rows_full.index(stage), lse_s.index(stage))
            tma_load(delta_desc, [first_row + start], rows_full.index(stage), delta_s.index(stage))
            n += 1


@gluon.jit
def _backward_consumer(
    CONSUMER: gl.constexpr, shared, barriers, dq_sums, dk_desc, dv_desc, d_rel_ptr, rel_ptr, stride_rel_0, sizes,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, FUSE_DQ: gl.constexpr, DELAY_DQ: gl.constexpr,
    LEARNED: gl.constexpr,
):
    # Four warps: 64 keys. Tiles of scores are transposed, [64, BM], so that P and dS enter the products for dV and dK
    # from registers; for dQ both consumers put dS into shared memory, and each makes one half of its columns or rows.
    # They meet at named barriers. 8: both have dS of a tile in shared memory. Where dQ is made one tile later, 8 + 2 *
    # consumer for its even tiles and the next one for its odd tiles. 12: both have read the keys.
    scale, batch, heads, kv_heads, longest_q, longest_k, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, dq_s = shared
    kv_full, q_full, do_full, rows_full, empty = barriers
    HEAD_DIM: gl.constexpr = k_s.type.shape[-1]
    V_HEAD_DIM: gl.constexpr = v_s.type.shape[-1]
    BUFFERS: gl.constexpr = ds_s.type.shape[0] // 2
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 16])
    row_layout: gl.constexpr = gl.SliceLayout(0, scores_layout)
    col_layout: gl.constexpr = gl.SliceLayout(1, scores_layout)
    dk_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    dv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_HEAD_DIM, 16])
    dk_operand: gl.constexpr = gl.DotOperandLayout(0, dk_layout, 2)
    dv_operand: gl.constexpr = gl.DotOperandLayout(0, dv_layout, 2)
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    zero = gl.zeros([64, BM], gl.float32, scores_layout)
    zero_dq = gl.zeros([64, 64], gl.float32, dq_layout)
    k_tile = k_s.index(CONSUMER).reshape([64, HEAD_DIM])
    v_tile = v_s.index(CONSUMER).reshape([64, V_HEAD_DIM])
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    dk = gl.zeros([64, HEAD_DIM], gl.float32, dk_layout)
    dv = gl.zeros([64, V_HEAD_DIM], gl.float32, dv_layout)
    b, kv_h, col0, begin_k, num_keys = key_tile(
        gl.program_id(0), cu_seqlens_k_ptr, num_seqs, total_k, longest_k, batch, kv_heads, head_group, BN
    )
    b, begin_q, q_len = other_side(cu_seqlens_q_ptr, b, num_seqs, total_q, longest_q)
    kv_len = if_any(cu_seqlens_q_ptr, q_len, num_keys, 1)
    cols = col0 + 64 * CONSUMER + gl.arange(0, 64, layout=col_layout)
    # Keys beyond the last are taken as the last: they read what exists.
    k = gl.minimum(cols, kv_len - 1)[:, None]
    k_first = col0 + 64 * CONSUMER
    k_last = gl.minimum(col0 + 64 * CONSUMER + 64, kv_len) - 1
    if FUSE_DQ > 0 and DELAY_DQ:
        # As if there had been a tile before the first, with dS = 0.
        last_at = delta_place(cu_seqlens_q_ptr, b, kv_h * (heads // kv_heads), heads, begin_q, num_rows)
        last_at = last_at * (HEAD_DIM // 64) + 64 * CONSUMER
        ds_s.index(2 * ((n - 1) & (BUFFERS - 1)) + CONSUMER).store(gl.zeros([64, BM], k_s.dtype, scores_layout))
        fence_async_shared()
        barrier_arrive(8 + 2 * CONSUMER + (n + 1 & 1))
    nothing = thread_sums(zero)
    d_rel_sums = nothing  # of the element d_rel_at
    d_rel_at = gl.to_tensor(0).to(gl.int64)
    mbarrier.wait(kv_full, 0)
    # At least one, or the compiler would keep for the epilogue what it computes for the loops.
    num_heads = gl.maximum(heads // kv_heads, 1)
    for each in range(num_heads):
        h = kv_h * num_heads + each
        rel_base = rel_ptr + h.to(gl.int64) * stride_rel_0
        num_tiles, num_mixed = _queries_of(col0, q_len, kv_len, BM, BN)
        first_row = delta_place(cu_seqlens_q_ptr, b, h, heads, begin_q, num_rows)
        h_scaled = h * 129

        # Mixed tiles.
        i = 0
        while i < num_mixed:
            start = _query_tile(i, num_tiles, BM)
            if LEARNED:
                q_first = start + (kv_len - q_len)
                q_last = gl.minimum(start + BM, q_len) - 1 + (kv_len - q_len)
                # d rel[h, clamp(q - k, -64, 64) + 64]
                d_rel_shared = gl.minimum(gl.maximum(q_first - k_last, -64), 64) == gl.minimum(
                    gl.maximum(q_last - k_first, -64), 64
                )
                element = gl.where(
                    d_rel_shared, h_scaled + (gl.minimum(gl.maximum(q_first - k_first, -64), 64) + 64), d_rel_at
                )
                if element != d_rel_at:
                    accumulate_threads(d_rel_ptr, d_rel_at, d_rel_sums)
                    d_rel_sums = nothing
                    d_rel_at = element
            stage, phase = slot_of(n, STAGES)
            q_tile = q_s.index(stage).reshape([BM, HEAD_DIM])
            do_tile = do_s.index(stage).reshape([BM, V_HEAD_DIM])
            mbarrier.wait(q_full.index(stage), phase)
            scores = warpgroup_mma(k_tile, q_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
            mbarrier.wait(do_full.index(stage), phase)
            products = warpgroup_mma(v_tile, do_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
            qk = warpgroup_mma_wait(1, deps=(scores,))
            mbarrier.wait(rows_full.index(stage), phase)
            rows = start + gl.arange(0, BM, layout=row_layout)
            # Rows beyond the last are taken as the last: they read what exists.
            q = (gl.minimum(rows, q_len - 1) + (kv_len - q_len))[None, :]
            lse = lse_s.index(stage).load(row_layout)[None, :]
            x = _score(qk, q, k, rel_base, scale)
            x = gl.where((cols < kv_len)[:, None] & (rows < q_len)[None, :], x, -float("inf"))
            p = gl.exp2((x - lse) * 1.4426950408889634)
            dp = warpgroup_mma_wait(0, deps=(products,))
            p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
            delta = delta_s.index(stage).load(row_layout)[None, :]
            ds_out = p * (dp - delta)
            if LEARNED:
                d_rel_sums += gl.where(d_rel_shared, thread_sums(ds_out), 0.0)
            ds = ds_out.to(k_s.dtype)
            if FUSE_DQ > 0:
                ds_s.index(2 * (n & (BUFFERS - 1)) + CONSUMER).store(ds)
            next_dv = warpgroup_mma(p_operand, do_tile, dv, is_async=True)
            if FUSE_DQ > 0:
                fence_async_shared()
                at = (first_row + start) * (HEAD_DIM // 64) + 64 * CONSUMER
                if DELAY_DQ:
                    # The other consumer is done with the tile before; its own part of dS came with it.
                    barrier_sync(8 + 2 * (1 - CONSUMER) + (n + 1 & 1))
                    next_dq = start_dq(ds_s, (n - 1) & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
                    at, last_at = last_at, at
                else:
                    barrier_sync(8)
                    next_dq = start_dq(ds_s, n & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
            next_dk = warpgroup_mma(gl.convert_layout(ds, dk_operand), q_tile, dk, is_async=True)
            if FUSE_DQ > 0:
                # dQ leaves while the last product runs.
                dv, dq = warpgroup_mma_wait(1, deps=(next_dv, next_dq))
                add_dq(dq_sums, dq_s.index(CONSUMER), at, dq, FUSE_DQ)
                dk = warpgroup_mma_wait(0, deps=(next_dk,))
            else:
                dv, dk = warpgroup_mma_wait(0, deps=(next_dv, next_dk))
            mbarrier.arrive(empty.index(stage))
            if FUSE_DQ > 0 and DELAY_DQ:
                barrier_arrive(8 + 2 * CONSUMER + (n & 1))
            n = opaque(n + 1)
            i = opaque(i + 1)

        # Full tiles: each row sees each key, no mask. Runs of uniform ones, which read at one place each, and of
        # others.
        while i < num_tiles:
            while _is_uniform_query_tile(i, num_tiles, k_first, k_last, kv_len, q_len, BM):
                start = _query_tile(i, num_tiles, BM)
                q_first = start + (kv_len - q_len)
                if LEARNED:
                    # d rel[h, clamp(q - k, -64, 64) + 64]
                    element = gl.cast(h_scaled + (gl.minimum(gl.maximum(q_first - k_first, -64), 64) + 64), gl.int64)
                    if element != d_rel_at:
                        accumulate_threads(d_rel_ptr, d_rel_at, d_rel_sums)
                        d_rel_sums = nothing
                        d_rel_at = element
                stage, phase = slot_of(n, STAGES)
                q_tile = q_s.index(stage).reshape([BM, HEAD_DIM])
                do_tile = do_s.index(stage).reshape([BM, V_HEAD_DIM])
                mbarrier.wait(q_full.index(stage), phase)
                scores = warpgroup_mma(k_tile, q_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
                mbarrier.wait(do_full.index(stage), phase)
                products = warpgroup_mma(v_tile, do_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
                qk = warpgroup_mma_wait(1, deps=(scores,))
                mbarrier.wait(rows_full.index(stage), phase)
                lse = lse_s.index(stage).load(row_layout)[None, :]
                x = _uniform_score(qk, k_first, q_first, rel_base, scale)
                p = gl.exp2((x - lse) * 1.4426950408889634)
                if DELAY_DQ:
                    # There already: nothing moves across a wait, so that all exponentials run beside dP^T.
                    mbarrier.wait(rows_full.index(stage), phase)
                dp = warpgroup_mma_wait(0, deps=(products,))
                p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
                delta = delta_s.index(stage).load(row_layout)[None, :]
                ds_out = p * (dp - delta)
                if LEARNED:
                    d_rel_sums += thread_sums(ds_out)
                ds = ds_out.to(k_s.dtype)
                if FUSE_DQ > 0:
                    ds_s.index(2 * (n & (BUFFERS - 1)) + CONSUMER).store(ds)
                next_dv = warpgroup_mma(p_operand, do_tile, dv, is_async=True)
                if FUSE_DQ > 0:
                    fence_async_shared()
                    at = (first_row + start) * (HEAD_DIM // 64) + 64 * CONSUMER
                    if DELAY_DQ:
                        # The other consumer is done with the tile before; its own part of dS came with it.
                        barrier_sync(8 + 2 * (1 - CONSUMER) + (n + 1 & 1))
                        next_dq = start_dq(ds_s, (n - 1) & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
                        at, last_at = last_at, at
                    else:
                        barrier_sync(8)
                        next_dq = start_dq(ds_s, n & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
                next_dk = warpgroup_mma(gl.convert_layout(ds, dk_operand), q_tile, dk, is_async=True)
                if FUSE_DQ > 0:
                    # dQ leaves while the last product runs.
                    dv, dq = warpgroup_mma_wait(1, deps=(next_dv, next_dq))
                    add_dq(dq_sums, dq_s.index(CONSUMER), at, dq, FUSE_DQ)
                    dk = warpgroup_mma_wait(0, deps=(next_dk,))
                else:
                    dv, dk = warpgroup_mma_wait(0, deps=(next_dv, next_dk))
                mbarrier.arrive(empty.index(stage))
                if FUSE_DQ > 0 and DELAY_DQ:
                    barrier_arrive(8 + 2 * CONSUMER + (n & 1))
                n = opaque(n + 1)
                i = opaque(i + 1)

            while (i < num_tiles) & ~_is_uniform_query_tile(i, num_tiles, k_first, k_last, kv_len, q_len, BM):
                start = _query_tile(i, num_tiles, BM)
                stage, phase = slot_of(n, STAGES)
                q_tile = q_s.index(stage).reshape([BM, HEAD_DIM])
                do_tile = do_s.index(stage).reshape([BM, V_HEAD_DIM])
                mbarrier.wait(q_full.index(stage), phase)
                scores = warpgroup_mma(k_tile, q_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
                mbarrier.wait(do_full.index(stage), phase)
                products = warpgroup_mma(v_tile, do_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
                qk = warpgroup_mma_wait(1, deps=(scores,))
                mbarrier.wait(rows_full.index(stage), phase)
                rows = start + gl.arange(0, BM, layout=row_layout)
                # Rows beyond the last are taken as the last: they read what exists.
                q = (gl.minimum(rows, q_len - 1) + (kv_len - q_len))[None, :]
                lse = lse_s.index(stage).load(row_layout)[None, :]
                x = _score(qk, q, k, rel_base, scale)
                p = gl.exp2((x - lse) * 1.4426950408889634)
                if DELAY_DQ:
                    # There already: nothing moves across a wait, so that all exponentials run beside dP^T.
                    mbarrier.wait(rows_full.index(stage), phase)
                dp = warpgroup_mma_wait(0, deps=(products,))
                p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
                delta = delta_s.index(stage).load(row_layout)[None, :]
                ds_out = p * (dp - delta)
                ds = ds_out.to(k_s.dtype)
                if FUSE_DQ > 0:
                    ds_s.index(2 * (n & (BUFFERS - 1)) + CONSUMER).store(ds)
                next_dv = warpgroup_mma(p_operand, do_tile, dv, is_async=True)
                if FUSE_DQ > 0:
                    fence_async_shared()
                    at = (first_row + start) * (HEAD_DIM // 64) + 64 * CONSUMER
                    if DELAY_DQ:
                        # The other consumer is done with the tile before; its own part of dS came with it.
                        barrier_sync(8 + 2 * (1 - CONSUMER) + (n + 1 & 1))
                        next_dq = start_dq(ds_s, (n - 1) & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
                        at, last_at = last_at, at
                    else:
                        barrier_sync(8)
                        next_dq = start_dq(ds_s, n & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
                next_dk = warpgroup_mma(gl.convert_layout(ds, dk_operand), q_tile, dk, is_async=True)
                if FUSE_DQ > 0:
                    # dQ leaves while the last product runs.
                    dv, dq = warpgroup_mma_wait(1, deps=(next_dv, next_dq))
                    add_dq(dq_sums, dq_s.index(CONSUMER), at, dq, FUSE_DQ)
                    dk = warpgroup_mma_wait(0, deps=(next_dk,))
                else:
                    dv, dk = warpgroup_mma_wait(0, deps=(next_dv, next_dk))
                mbarrier.arrive(empty.index(stage))
                if FUSE_DQ > 0 and DELAY_DQ:
                    barrier_arrive(8 + 2 * CONSUMER + (n & 1))
                n = opaque(n + 1)
                i = opaque(i + 1)

    if LEARNED:
        accumulate_threads(d_rel_ptr, d_rel_at, d_rel_sums)

    # Epilogue. The tiles of K and V have been read and take dK and dV, which TMA writes as far as there are keys.
    # Where these are is computed anew: it is not worth registers in the meantime.
    _, kv_h, col0, begin_k, num_keys = key_tile(
        opaque(gl.program_id(0)),
        cu_seqlens_k_ptr,
        num_seqs,
        total_k,
        opaque(longest_k),
        batch,
        opaque(kv_heads),
        opaque(head_group),
        BN,
    )
    k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, num_keys, col0 + 64 * CONSUMER)
    v_tile.store(dv.to(v_s.dtype))
    fence_async_shared()
    tma_store(dv_desc, place_of(dv_desc, k_b, kv_h, k_row, 0), v_s.index(CONSUMER))
    if FUSE_DQ > 0:
        if DELAY_DQ:
            barrier_sync(8 + 2 * (1 - CONSUMER) + (n + 1 & 1))
            next_dq = start_dq(ds_s, (n - 1) & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
            dq = warpgroup_mma_wait(0, deps=(next_dq,))
            add_dq(dq_sums, dq_s.index(CONSUMER), last_at, dq, FUSE_DQ)
        # The other consumer has read this one's keys.
        barrier_sync(12)
    k_tile.store((dk * scale).to(k_s.dtype))
    fence_async_shared()
    tma_store(dk_desc, place_of(dk_desc, k_b, kv_h, k_row, 0), k_s.index(CONSUMER))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "batch", "num_rows", "head_group", "num_seqs",
    "total_q", "total_k",
])
def _backward_kv_sm90(
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, dq_sums, dk_desc, dv_desc, d_rel_ptr, rel_ptr, stride_rel_0,
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, FUSE_DQ: gl.constexpr, DELAY_DQ: gl.constexpr,
    LEARNED: gl.constexpr,
):
    # Grid: one program for each tile of BN = 128 keys of each head of K and V of each batch element. It walks along the
    # queries that see some of its keys, head by head of those that share them: p = exp(logit - lse), dv = p^T d_out,
    # ds = p * (d_out v^T - delta), dk = scale ds^T q. lse and delta are what _delta writes, num_rows for each head.
    # Packed sequences are where cu_seqlens are not None; see key_tile for both.
    # Where LEARNED, ds_out = p * (d_out v^T - delta) is added up for rel where all pairs of a tile share an element.
    # Where FUSE_DQ, each tile's part of dq = scale ds k is added in memory, in float32 and in no fixed order: without
    # the scale, in tiles of 64 x 64, each as fragments, see add_dq.
    # One warp loads (_backward_producer), two groups of four warps compute (_backward_consumer). They meet at barriers
    # in shared memory: `full` when a tile has arrived, `empty` when both consumers are done with it.
    q_s = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + q_desc.block_type.shape, q_desc.layout)
    do_s = gl.allocate_shared_memory(do_desc.dtype, [STAGES] + do_desc.block_type.shape, do_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, [2] + k_desc.block_type.shape, k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, [2] + v_desc.block_type.shape, v_desc.layout)
    lse_s = gl.allocate_shared_memory(gl.float32, [STAGES, BM], lse_desc.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, [STAGES, BM], delta_desc.layout)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, BM], k_desc.dtype)
    BUFFERS: gl.constexpr = 4 if DELAY_DQ else 2
    # What a launch does without is not allocated: another name for K's.
    if FUSE_DQ > 0:
        ds_s = gl.allocate_shared_memory(k_desc.dtype, [2 * BUFFERS, 64, BM], ds_layout)
    else:
        ds_s = k_s
    if FUSE_DQ == 2:
        dq_s = gl.allocate_shared_memory(gl.float32, [2] + dq_sums.block_type.shape, dq_sums.layout)
    else:
        dq_s = k_s
    kv_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_full = make_barriers(STAGES)
    do_full = make_barriers(STAGES)
    rows_full = make_barriers(STAGES)
    empty = make_barriers(STAGES, 2)
    mbarrier.init(kv_full, count=1)
    shared = (q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, dq_s)
    barriers = (kv_full, q_full, do_full, rows_full, empty)
    loads = (batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    computes = (scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    # fmt: off
    gl.warp_specialize([
        (_backward_consumer, (
            0, shared, barriers, dq_sums, dk_desc, dv_desc, d_rel_ptr, rel_ptr, stride_rel_0, computes,
            cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, STAGES, FUSE_DQ, DELAY_DQ, LEARNED,
        )),
        (_backward_consumer, (
            1, shared, barriers, dq_sums, dk_desc, dv_desc, d_rel_ptr, rel_ptr, stride_rel_0, computes,
            cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, STAGES, FUSE_DQ, DELAY_DQ, LEARNED,
        )),
        (_backward_producer, (
            q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, (q_s, do_s, k_s, v_s, lse_s, delta_s), barriers,
            loads, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, STAGES,
        )),
    ], [4, 1], [240, 24])
    # fmt: on
