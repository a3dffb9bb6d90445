"""alibi: dk and dv, and dq where a config fuses it, for Hopper.

Generated from variants/alibi.yaml by

    flashgen build variants/alibi.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from flashgen.runtime.device.sm90.barriers import barrier_sync
from flashgen.runtime.device.sm90.fragments import accumulate_threads, thread_sums
from flashgen.runtime.device.sm90.kv_steps import (
    KvShape, allocate_kv, begin_dq, end_dq, finish_kv_step, load_halves, load_stage, make_kv_barriers, own_tile,
    start_kv_step, store_gradients,
)
from flashgen.runtime.device.sm90.kv_tiles import slot_of
from flashgen.runtime.device.sm90.positions import opaque, rows_from, rows_to
from flashgen.runtime.device.sm90.scheduler import make_scheduler, reset_counter
from flashgen.runtime.device.sm90.sequences import delta_place, if_any, tma_place
from flashgen.runtime.device.sm90.work_tiles import count_key_tiles, key_tile, keys_at, other_range

from .pair import _score


@triton.jit
def _d_slopes_by_key(q, k):
    """-(abs(q - k) * 1.0)."""
    return (q - k).to(tl.float32) * -1.0


@gluon.jit
def _queries_of(col0, q_len, kv_len, BM: gl.constexpr, BN: gl.constexpr):
    """The tiles of queries for the tile of keys at col0: num_tiles, the first num_mixed of which need the mask."""
    k_first = col0
    k_last = gl.minimum(col0 + BN, kv_len) - 1

    # Rows from first on see some key of the tile, those from full_start on each of them.
    first = gl.maximum(k_first + q_len - kv_len, 0) // BM * BM
    full_start = gl.where(col0 + BN > kv_len, q_len, k_last + q_len - kv_len)
    full_end = q_len
    num_tiles = gl.cdiv(gl.maximum(q_len - first, 0), BM)
    num_left = gl.minimum(gl.cdiv(gl.maximum(full_start - first, 0), BM), num_tiles)
    num_right = gl.minimum(num_tiles - gl.maximum(full_end - first, 0) // BM, num_tiles - num_left)
    num_mixed = num_left + num_right
    return num_tiles, num_mixed, num_left, num_right, first


@gluon.jit
def _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM: gl.constexpr):
    """The first query of tile i, mixed tiles before full ones."""
    right = num_tiles - 1 - (i - num_left)
    start = first + gl.where(i < num_left, i, gl.where(i < num_mixed, right, i - num_right)) * BM
    return start


@gluon.jit
def _backward_producer(
    descs, counter_ptr, scheduler, shared, of_keys, of_queries, sizes, sequences, shape, BM: gl.constexpr,
    BN: gl.constexpr,
):
    # One warp: brings tiles of K and V into shared memory by TMA, and for each the tiles of Q and dO that see it and
    # their rows' lse and delta, as soon as the consumers make room.
    batch, heads, kv_heads, longest_q, longest_k, num_rows, head_group = sizes
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr = sequences
    k_full, k_empty, v_full, v_empty = of_keys
    k_desc, v_desc = descs[2:4]
    k_s, v_s = shared[2:4]
    num_kv_tiles = count_key_tiles(order_ptr, num_seqs, longest_k, batch, kv_heads, BN)
    index = gl.program_id(0)
    ticket = 0  # tiles of keys so far
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    while index < num_kv_tiles:
        work_tile = keys_at(sequences, index, longest_q, longest_k, kv_heads, head_group, BN)
        scheduler.announce(ticket, work_tile)
        b, kv_h, col0, begin_k, num_keys = key_tile(work_tile, order_ptr, longest_k, batch, kv_heads, head_group, BN)
        begin_q, q_len = other_range(work_tile, cu_seqlens_q_ptr, b, longest_q)
        kv_len = if_any(cu_seqlens_q_ptr, q_len, num_keys, 1)
        seen = if_any(cu_seqlens_q_ptr, q_len, num_keys, 0)
        mbarrier.wait(v_empty, ticket & 1 ^ 1)
        mbarrier.expect(v_full, 2 * v_desc.block_type.nbytes)
        load_halves(v_desc, cu_seqlens_k_ptr, begin_k, seen, kv_h, col0, v_s, v_full)
        mbarrier.wait(k_empty, ticket & 1 ^ 1)
        mbarrier.expect(k_full, 2 * k_desc.block_type.nbytes)
        load_halves(k_desc, cu_seqlens_k_ptr, begin_k, seen, kv_h, col0, k_s, k_full)
        for h in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
            num_tiles, num_mixed, num_left, num_right, first = _queries_of(col0, q_len, kv_len, BM, BN)
            first_row = delta_place(cu_seqlens_q_ptr, b, h, heads, begin_q, num_rows)
            for i in range(num_tiles):
                start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
                q_b, q_row = tma_place(cu_seqlens_q_ptr, begin_q, q_len, start)
                stage, phase = slot_of(n, shape.STAGES)
                load_stage(descs, q_b, h, q_row, first_row, start, stage, phase, shared, of_queries)
                n += 1
        ticket += 1
        # Whoever is done takes the next tile.
        index = gl.atomic_add(counter_ptr, 1) + gl.num_programs(0)
    scheduler.end(ticket, index)
    reset_counter(counter_ptr)


@gluon.jit
def _backward_consumer(
    CONSUMER: gl.constexpr, scheduler, shared, of_keys, of_queries, outputs, d_slopes_ptr, slopes_ptr, sizes, sequences,
    shape, BM: gl.constexpr, BN: gl.constexpr, LEARNED: gl.constexpr,
):
    # Four warps: 64 keys of each tile. Tiles of scores are transposed, [64, BM], so that P and dS enter the products
    # for dV and dK from registers; for dQ both consumers put dS into shared memory, and each makes one half of its
    # columns or rows.
    dq_sums = outputs[0]
    scale, batch, heads, kv_heads, longest_q, longest_k, num_rows, head_group = sizes
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr = sequences
    k_s, v_s, lse_s, delta_s = shared[2:6]
    k_full, k_empty, v_full, v_empty = of_keys
    rows_full = of_queries[2]
    dtype: gl.constexpr = k_s.dtype
    scores_layout: gl.constexpr = shape.scores_layout
    row_layout: gl.constexpr = gl.SliceLayout(0, scores_layout)
    col_layout: gl.constexpr = gl.SliceLayout(1, scores_layout)
    # Without parts of dQ there are registers for V, so that products read a third less from shared memory.
    HOLD_V: gl.constexpr = shape.FUSE_DQ == 0 and shape.V_HEAD_DIM == 64
    zero = gl.zeros([64, BM], gl.float32, scores_layout)
    num_kv_tiles = count_key_tiles(order_ptr, num_seqs, longest_k, batch, kv_heads, BN)
    ticket = 0  # tiles of keys so far
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    work_tile = scheduler.take(ticket)
    while work_tile[0] < num_kv_tiles:
        dk = gl.zeros([64, shape.HEAD_DIM], gl.float32, shape.dk_layout)
        dv = gl.zeros([64, shape.V_HEAD_DIM], gl.float32, shape.dv_layout)
        b, kv_h, col0, begin_k, num_keys = key_tile(work_tile, order_ptr, longest_k, batch, kv_heads, head_group, BN)
        begin_q, q_len = other_range(work_tile, cu_seqlens_q_ptr, b, longest_q)
        kv_len = if_any(cu_seqlens_q_ptr, q_len, num_keys, 1)
        cols = col0 + 64 * CONSUMER + gl.arange(0, 64, layout=col_layout)
        # Keys beyond the last are taken as the last: they read what exists.
        k = gl.minimum(cols, kv_len - 1)[:, None]
        if shape.THROUGH_DS:
            # dK and dV of the last keys are out of the room of dS.
            tma.store_wait(0)
            barrier_sync(12)
        last_at = begin_dq(
            cu_seqlens_q_ptr, b, kv_h * (heads // kv_heads), heads, begin_q, num_rows, n, shared, CONSUMER, shape
        )
        nothing = thread_sums(zero)
        mbarrier.wait(k_full, ticket & 1)
        mbarrier.wait(v_full, ticket & 1)
        # At least one, or the compiler would keep for the epilogue what it computes for the loops.
        num_heads = gl.maximum(heads // kv_heads, 1)
        for each in range(num_heads):
            h = kv_h * num_heads + each
            qk_scale = scale * 1.4426950408889634
            slopes_h = gl.load(slopes_ptr + h)
            slopes_h_scaled = slopes_h * 1.4426950408889634
            # The rows that see each key, as far as these are one interval.
            seen_from = gl.where((cols < kv_len)[:, None], gl.maximum(k + q_len - kv_len, 0), 1 << 30)
            num_tiles, num_mixed, num_left, num_right, first = _queries_of(col0, q_len, kv_len, BM, BN)
            first_row = delta_place(cu_seqlens_q_ptr, b, h, heads, begin_q, num_rows)
            d_slopes_sums = nothing

            # Mixed tiles.
            i = 0
            while i < num_mixed:
                start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
                stage, phase = slot_of(n, shape.STAGES)
                # S^T = K Q^T and dP^T = V dO^T.
                scores, products = start_kv_step(zero, stage, phase, shared, of_queries, CONSUMER, shape)
                qk = warpgroup_mma_wait(1, deps=(scores,))
                mbarrier.wait(rows_full.index(stage), phase)
                q_first = start + (kv_len - q_len)
                lse = lse_s.index(stage).load(row_layout)[None, :]
                x = _score(qk, k, q_first, qk_scale, slopes_h_scaled)
                x = gl.where(
                    rows_from(seen_from - start, BM, row_layout) & rows_to(q_len - 1 - start, BM, row_layout),
                    x,
                    -float("inf"),
                )
                p = gl.exp2(x - lse)
                dp = warpgroup_mma_wait(0, deps=(products,))
                p_operand = gl.convert_layout(p.to(dtype), shape.dv_operand)
                delta = delta_s.index(stage).load(row_layout)[None, :]
                ds_out = p * (dp - delta)
                if LEARNED:
                    rows = start + gl.arange(0, BM, layout=row_layout)
                    q = (rows + (kv_len - q_len))[None, :]
                    # d slopes[h]
                    d_slopes = ds_out * _d_slopes_by_key(q, k)
                    d_slopes_sums += thread_sums(d_slopes)
                ds = ds_out.to(dtype)
                # dV += P^T dO and dK += dS^T Q, and between them, where FUSE_DQ, a part of dQ.
                dk, dv, last_at = finish_kv_step(
                    p_operand, ds, dk, dv, first_row, start, last_at, n, stage, dq_sums, shared, of_queries, CONSUMER,
                    shape,
                )
                n = opaque(n + 1)
                i = opaque(i + 1)

            # Full tiles: each row sees each key, no mask.
            v_held = own_tile(v_s, CONSUMER, shape.V_HEAD_DIM, shape).load(shape.v_layout) if HOLD_V else None
            while i < num_tiles:
                start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
                stage, phase = slot_of(n, shape.STAGES)
                # S^T = K Q^T and dP^T = V dO^T.
                scores, products = start_kv_step(zero, stage, phase, shared, of_queries, CONSUMER, shape, v_held)
                qk = warpgroup_mma_wait(1, deps=(scores,))
                mbarrier.wait(rows_full.index(stage), phase)
                q_first = start + (kv_len - q_len)
                lse = lse_s.index(stage).load(row_layout)[None, :]
                x = _score(qk, k, q_first, qk_scale, slopes_h_scaled)
                p = gl.exp2(x - lse)
                if shape.DELAY_DQ:
                    # There already: nothing moves across a wait, so that all exponentials run beside dP^T.
                    mbarrier.wait(rows_full.index(stage), phase)
                dp = warpgroup_mma_wait(0, deps=(products,))
                p_operand = gl.convert_layout(p.to(dtype), shape.dv_operand)
                delta = delta_s.index(stage).load(row_layout)[None, :]
                ds_out = p * (dp - delta)
                if LEARNED:
                    rows = start + gl.arange(0, BM, layout=row_layout)
                    q = (rows + (kv_len - q_len))[None, :]
                    # d slopes[h]
                    d_slopes = ds_out * _d_slopes_by_key(q, k)
                    d_slopes_sums += thread_sums(d_slopes)
                ds = ds_out.to(dtype)
                # dV += P^T dO and dK += dS^T Q, and between them, where FUSE_DQ, a part of dQ.
                dk, dv, last_at = finish_kv_step(
                    p_operand, ds, dk, dv, first_row, start, last_at, n, stage, dq_sums, shared, of_queries, CONSUMER,
                    shape,
                )
                n = opaque(n + 1)
                i = opaque(i + 1)

            if LEARNED:
                accumulate_threads(d_slopes_ptr, h, d_slopes_sums)

        # Epilogue. The next tiles of K and V may come. dK and dV leave by TMA, as far as there are keys.
        mbarrier.arrive(v_empty)
        end_dq(dq_sums, last_at, n, shared, CONSUMER, shape)
        mbarrier.arrive(k_empty)
        places = (batch, longest_k, kv_heads, head_group)
        work_tile = scheduler.take_again(ticket, work_tile)
        store_gradients(outputs, dk, scale, dv, work_tile, places, sequences, shared, CONSUMER, BN, shape)
        ticket += 1
        work_tile = scheduler.take(ticket)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "batch", "num_rows", "head_group", "num_seqs",
    "total_q", "total_k",
])
def _backward_kv_sm90(
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, dq_sums, dk_desc, dv_desc, counter_ptr, d_slopes_ptr,
    slopes_ptr,
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, FUSE_DQ: gl.constexpr, DELAY_DQ: gl.constexpr,
    LEARNED: gl.constexpr,
):
    # Grid: at most as many programs as the GPU holds at once; they share the tiles of BN = 128 keys of all heads of K
    # and V. For each tile they walk along the queries that see some of its keys, head by head of those that share them:
    # p = exp2(logit - lse), dv = p^T d_out,
    # ds = p * (d_out v^T - delta), dk = scale ds^T q. lse and delta are what _delta writes, num_rows for each head.
    # Packed sequences are where cu_seqlens are not None; see work_tiles.py for both.
    # Where LEARNED, ds_out = p * (d_out v^T - delta) is added up for slopes.
    # Where FUSE_DQ, each tile's part of dq = scale ds k is added in memory, in float32 and in no fixed order: without
    # the scale, in tiles of 64 x 64, each as fragments, see add_dq.
    # One warp loads (_backward_producer), two groups of four warps compute (_backward_consumer). They meet at barriers
    # in shared memory: `full` when a tile has arrived, `empty` when both consumers are done with it.
    descs = (q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc)
    outputs = (dq_sums, dk_desc, dv_desc)
    WIDTH: gl.constexpr = k_desc.block_type.shape[-1]
    V_WIDTH: gl.constexpr = v_desc.block_type.shape[-1]
    PACKED: gl.constexpr = cu_seqlens_k_ptr is not None
    shape = KvShape(BM, WIDTH, V_WIDTH, STAGES, FUSE_DQ, DELAY_DQ, PERSISTENT=True, PACKED=PACKED)
    shared = allocate_kv(descs, outputs, shape, PERSISTENT=True)
    scheduler = make_scheduler(2, PACKED)
    of_keys, of_queries = make_kv_barriers(STAGES, PERSISTENT=True)
    sequences = (cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr)
    loads = (batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    computes = (scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    # fmt: off
    gl.warp_specialize([
        (_backward_consumer, (
            0, scheduler, shared, of_keys, of_queries, outputs, d_slopes_ptr, slopes_ptr, computes, sequences, shape,
            BM, BN, LEARNED,
        )),
        (_backward_consumer, (
            1, scheduler, shared, of_keys, of_queries, outputs, d_slopes_ptr, slopes_ptr, computes, sequences, shape,
            BM, BN, LEARNED,
        )),
        (_backward_producer, (
            descs, counter_ptr, scheduler, shared, of_keys, of_queries, loads, sequences, shape, BM, BN,
        )),
    ], [4, 1], [240, 24])
    # fmt: on
