"""sliding_window: dk and dv, and dq where a config fuses it, for Hopper.

Generated from variants/sliding_window.yaml by

    flashgen build variants/sliding_window.yaml

Do not edit: change the spec and build again.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)

from flashgen.runtime.device.sm90.barriers import barrier_arrive, barrier_sync, make_barriers
from flashgen.runtime.device.sm90.fragments import add_dq, start_dq
from flashgen.runtime.device.sm90.kv_tiles import slot_of
from flashgen.runtime.device.sm90.positions import opaque, rows_from, rows_to
from flashgen.runtime.device.sm90.scheduler import make_scheduler, reset_counter
from flashgen.runtime.device.sm90.sequences import (
    count_tiles, delta_place, if_any, key_tile, next_tile, other_side, tma_place,
)
from flashgen.runtime.device.sm90.tiles import place_of
from flashgen.runtime.gluon import reinterpret, tma_load, tma_store


@gluon.jit
def _queries_of(col0, q_len, kv_len, BM: gl.constexpr, BN: gl.constexpr):
    """The tiles of queries for the tile of keys at col0: num_tiles, the first num_mixed of which need the mask."""
    k_first = col0
    k_last = gl.minimum(col0 + BN, kv_len) - 1

    # Rows [first, stop) see some key of the tile, rows [full_start, full_end) each of them.
    first = gl.maximum(k_first + q_len - kv_len, 0) // BM * BM
    full_start = gl.where(col0 + BN > kv_len, q_len, k_last + q_len - kv_len)
    stop = gl.minimum(k_last + q_len - kv_len + 1024, q_len)
    full_end = gl.minimum(k_first + q_len - kv_len + 1024, q_len)
    num_tiles = gl.cdiv(gl.maximum(stop - first, 0), BM)
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
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, counter_ptr, scheduler, shared, barriers, sizes,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
):
    # One warp: brings tiles of K and V into shared memory by TMA, and for each the tiles of Q and dO that see it and
    # their rows' lse and delta, as soon as the consumers make room.
    batch, heads, kv_heads, longest_q, longest_k, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s, lse_s, delta_s = shared
    k_full, k_empty, v_full, v_empty, q_full, do_full, rows_full, empty = barriers
    num_kv_tiles = count_tiles(cu_seqlens_k_ptr, num_seqs, total_k, longest_k, batch, kv_heads, BN)
    index = next_tile(gl.program_id(0), counter_ptr, cu_seqlens_k_ptr, num_seqs, total_k, longest_k, kv_heads, BN)
    ticket = 0  # tiles of keys so far
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    while index < num_kv_tiles:
        scheduler.announce(ticket, index)
        b, kv_h, col0, begin_k, num_keys = key_tile(
            index, cu_seqlens_k_ptr, num_seqs, total_k, longest_k, batch, kv_heads, head_group, BN
        )
        b, begin_q, q_len = other_side(cu_seqlens_q_ptr, b, num_seqs, total_q, longest_q)
        kv_len = if_any(cu_seqlens_q_ptr, q_len, num_keys, 1)
        seen = if_any(cu_seqlens_q_ptr, q_len, num_keys, 0)
        mbarrier.wait(v_empty, ticket & 1 ^ 1)
        mbarrier.expect(v_full, 2 * v_desc.block_type.nbytes)
        for c in gl.static_range(2):
            k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, seen, col0 + 64 * c)
            tma_load(v_desc, place_of(v_desc, k_b, kv_h, k_row, 0), v_full, v_s.index(c))
        mbarrier.wait(k_empty, ticket & 1 ^ 1)
        mbarrier.expect(k_full, 2 * k_desc.block_type.nbytes)
        for c in gl.static_range(2):
            k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, seen, col0 + 64 * c)
            tma_load(k_desc, place_of(k_desc, k_b, kv_h, k_row, 0), k_full, k_s.index(c))
        for h in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
            num_tiles, num_mixed, num_left, num_right, first = _queries_of(col0, q_len, kv_len, BM, BN)
            first_row = delta_place(cu_seqlens_q_ptr, b, h, heads, begin_q, num_rows)
            for i in range(num_tiles):
                start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
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
        ticket += 1
        # Whoever is done takes the next tile.
        index = gl.atomic_add(counter_ptr, 1) + gl.num_programs(0)
        index = next_tile(index, counter_ptr, cu_seqlens_k_ptr, num_seqs, total_k, longest_k, kv_heads, BN)
    scheduler.announce(ticket, index)
    reset_counter(counter_ptr)


@gluon.jit
def _backward_consumer(
    CONSUMER: gl.constexpr, scheduler, shared, barriers, dq_sums, dk_desc, dv_desc, sizes,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, FUSE_DQ: gl.constexpr, DELAY_DQ: gl.constexpr,
):
    # Four warps: 64 keys of each tile. Tiles of scores are transposed, [64, BM], so that P and dS enter the products
    # for dV and dK from registers; for dQ both consumers put dS into shared memory, and each makes one half of its
    # columns or rows.
    # They meet at named barriers. 8: both have dS of a tile in shared memory. Where dQ is made one tile later, 8 + 2 *
    # consumer for its even tiles and the next one for its odd tiles. 12: both have read dS, or dK and dV are out of its
    # room.
    scale, batch, heads, kv_heads, longest_q, longest_k, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, dq_s, dk_s, dv_s = shared
    k_full, k_empty, v_full, v_empty, q_full, do_full, rows_full, empty = barriers
    HEAD_DIM: gl.constexpr = k_s.type.shape[-1]
    V_HEAD_DIM: gl.constexpr = v_s.type.shape[-1]
    BUFFERS: gl.constexpr = ds_s.type.shape[0] // 2
    THROUGH_DS: gl.constexpr = dk_s.type.shape[0] > 2
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 16])
    row_layout: gl.constexpr = gl.SliceLayout(0, scores_layout)
    col_layout: gl.constexpr = gl.SliceLayout(1, scores_layout)
    dk_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    dv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_HEAD_DIM, 16])
    dk_operand: gl.constexpr = gl.DotOperandLayout(0, dk_layout, 2)
    dv_operand: gl.constexpr = gl.DotOperandLayout(0, dv_layout, 2)
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    v_layout: gl.constexpr = gl.DotOperandLayout(0, scores_layout, 2)
    # Without parts of dQ there are registers for V, so that products read a third less from shared memory.
    HOLD_V: gl.constexpr = FUSE_DQ == 0 and V_HEAD_DIM == 64
    zero = gl.zeros([64, BM], gl.float32, scores_layout)
    zero_dq = gl.zeros([64, 64], gl.float32, dq_layout)
    k_tile = k_s.index(CONSUMER).reshape([64, HEAD_DIM])
    v_tile = v_s.index(CONSUMER).reshape([64, V_HEAD_DIM])
    num_kv_tiles = count_tiles(cu_seqlens_k_ptr, num_seqs, total_k, longest_k, batch, kv_heads, BN)
    ticket = 0  # tiles of keys so far
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    index = scheduler.take(ticket)
    while index < num_kv_tiles:
        dk = gl.zeros([64, HEAD_DIM], gl.float32, dk_layout)
        dv = gl.zeros([64, V_HEAD_DIM], gl.float32, dv_layout)
        b, kv_h, col0, begin_k, num_keys = key_tile(
            index, cu_seqlens_k_ptr, num_seqs, total_k, longest_k, batch, kv_heads, head_group, BN
        )
        b, begin_q, q_len = other_side(cu_seqlens_q_ptr, b, num_seqs, total_q, longest_q)
        kv_len = if_any(cu_seqlens_q_ptr, q_len, num_keys, 1)
        cols = col0 + 64 * CONSUMER + gl.arange(0, 64, layout=col_layout)
        # Keys beyond the last are taken as the last: they read what exists.
        k = gl.minimum(cols, kv_len - 1)[:, None]
        if THROUGH_DS:
            # dK and dV of the last keys are out of the room of dS.
            tma.store_wait(0)
            barrier_sync(12)
        if FUSE_DQ > 0 and DELAY_DQ:
            # As if there had been a tile before the first, with dS = 0.
            last_at = delta_place(cu_seqlens_q_ptr, b, kv_h * (heads // kv_heads), heads, begin_q, num_rows)
            last_at = last_at * (HEAD_DIM // 64) + 64 * CONSUMER
            ds_s.index(2 * ((n - 1) & (BUFFERS - 1)) + CONSUMER).store(gl.zeros([64, BM], k_s.dtype, scores_layout))
            fence_async_shared()
            barrier_arrive(8 + 2 * CONSUMER + (n + 1 & 1))
        mbarrier.wait(k_full, ticket & 1)
        mbarrier.wait(v_full, ticket & 1)
        # At least one, or the compiler would keep for the epilogue what it computes for the loops.
        num_heads = gl.maximum(heads // kv_heads, 1)
        for each in range(num_heads):
            h = kv_h * num_heads + each
            qk_scale = scale * 1.4426950408889634
            # The rows that see each key, as far as these are one interval.
            seen_from = gl.where((cols < kv_len)[:, None], gl.maximum(k + q_len - kv_len, 0), 1 << 30)
            seen_to = gl.maximum(k + q_len - kv_len + 1023, -1)
            num_tiles, num_mixed, num_left, num_right, first = _queries_of(col0, q_len, kv_len, BM, BN)
            first_row = delta_place(cu_seqlens_q_ptr, b, h, heads, begin_q, num_rows)

            # Mixed tiles.
            i = 0
            while i < num_mixed:
                start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
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
                qk = gl.where(
                    rows_from(seen_from - start, BM, row_layout) & rows_to(seen_to - start, BM, row_layout),
                    qk,
                    -float("inf"),
                )
                p = gl.exp2(qk * qk_scale - lse)
                dp = warpgroup_mma_wait(0, deps=(products,))
                p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
                delta = delta_s.index(stage).load(row_layout)[None, :]
                ds = (p * (dp - delta)).to(k_s.dtype)
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

            # Full tiles: each row sees each key, no mask.
            v_held = v_tile.load(v_layout) if HOLD_V else v_tile
            while i < num_tiles:
                start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
                stage, phase = slot_of(n, STAGES)
                q_tile = q_s.index(stage).reshape([BM, HEAD_DIM])
                do_tile = do_s.index(stage).reshape([BM, V_HEAD_DIM])
                mbarrier.wait(q_full.index(stage), phase)
                scores = warpgroup_mma(k_tile, q_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
                mbarrier.wait(do_full.index(stage), phase)
                products = warpgroup_mma(v_held, do_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
                qk = warpgroup_mma_wait(1, deps=(scores,))
                mbarrier.wait(rows_full.index(stage), phase)
                lse = lse_s.index(stage).load(row_layout)[None, :]
                p = gl.exp2(qk * qk_scale - lse)
                if DELAY_DQ:
                    # There already: nothing moves across a wait, so that all exponentials run beside dP^T.
                    mbarrier.wait(rows_full.index(stage), phase)
                dp = warpgroup_mma_wait(0, deps=(products,))
                p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
                delta = delta_s.index(stage).load(row_layout)[None, :]
                ds = (p * (dp - delta)).to(k_s.dtype)
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

        # Epilogue. The next tiles of K and V may come. dK and dV leave by TMA, as far as there are keys. Where these
        # are is computed anew: it is not worth registers in the meantime.
        mbarrier.arrive(v_empty)
        if FUSE_DQ > 0 and DELAY_DQ:
            barrier_sync(8 + 2 * (1 - CONSUMER) + (n + 1 & 1))
            next_dq = start_dq(ds_s, (n - 1) & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
            dq = warpgroup_mma_wait(0, deps=(next_dq,))
            add_dq(dq_sums, dq_s.index(CONSUMER), last_at, dq, FUSE_DQ)
        mbarrier.arrive(k_empty)
        if THROUGH_DS:
            barrier_sync(12)
        _, kv_h, col0, begin_k, num_keys = key_tile(
            opaque(index), cu_seqlens_k_ptr, num_seqs, total_k, opaque(longest_k), batch, opaque(kv_heads),
            opaque(head_group), BN,
        )
        k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, num_keys, col0 + 64 * CONSUMER)
        dv_tile, dk_tile = dv_s.index(CONSUMER), dk_s.index(dk_s.type.shape[0] - 2 + CONSUMER)
        tma.store_wait(0)
        dv_tile.reshape([64, V_HEAD_DIM]).store(dv.to(v_s.dtype))
        fence_async_shared()
        tma_store(dv_desc, place_of(dv_desc, k_b, kv_h, k_row, 0), dv_tile)
        if not THROUGH_DS:
            tma.store_wait(0)
        dk_tile.reshape([64, HEAD_DIM]).store((dk * scale).to(k_s.dtype))
        fence_async_shared()
        tma_store(dk_desc, place_of(dk_desc, k_b, kv_h, k_row, 0), dk_tile)
        ticket += 1
        index = scheduler.take(ticket)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "batch", "num_rows", "head_group", "num_seqs",
    "total_q", "total_k",
])
def _backward_kv_sm90(
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, dq_sums, dk_desc, dv_desc, counter_ptr,
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, FUSE_DQ: gl.constexpr, DELAY_DQ: gl.constexpr,
):
    # Grid: at most as many programs as the GPU holds at once; they share the tiles of BN = 128 keys of all heads of K
    # and V. For each tile they walk along the queries that see some of its keys, head by head of those that share them:
    # p = exp2(logit - lse), dv = p^T d_out,
    # ds = p * (d_out v^T - delta), dk = scale ds^T q. lse and delta are what _delta writes, num_rows for each head.
    # Packed sequences are where cu_seqlens are not None; see key_tile for both.
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
    WIDTH: gl.constexpr = k_desc.block_type.shape[-1]
    V_WIDTH: gl.constexpr = v_desc.block_type.shape[-1]
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
    # dV and dK leave at once through the room of dS where it is large, else one after the other through their own.
    if FUSE_DQ > 0 and BUFFERS * BM >= 2 * WIDTH:
        dv_s = reinterpret(ds_s, v_desc.dtype, [2 * BUFFERS * BM // V_WIDTH] + dv_desc.block_type.shape, dv_desc.layout)
        dk_s = reinterpret(ds_s, k_desc.dtype, [2 * BUFFERS * BM // WIDTH] + dk_desc.block_type.shape, dk_desc.layout)
    else:
        dk_s = gl.allocate_shared_memory(k_desc.dtype, [2] + dk_desc.block_type.shape, dk_desc.layout)
        if V_WIDTH == WIDTH:
            dv_s = dk_s
        else:
            dv_s = gl.allocate_shared_memory(v_desc.dtype, [2] + dv_desc.block_type.shape, dv_desc.layout)
    scheduler = make_scheduler(2)
    k_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_full = make_barriers(STAGES)
    do_full = make_barriers(STAGES)
    rows_full = make_barriers(STAGES)
    empty = make_barriers(STAGES, 2)
    mbarrier.init(k_full, count=1)
    mbarrier.init(k_empty, count=2)
    mbarrier.init(v_full, count=1)
    mbarrier.init(v_empty, count=2)
    shared = (q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, dq_s, dk_s, dv_s)
    barriers = (k_full, k_empty, v_full, v_empty, q_full, do_full, rows_full, empty)
    loads = (batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    computes = (scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    # fmt: off
    gl.warp_specialize([
        (_backward_consumer, (
            0, scheduler, shared, barriers, dq_sums, dk_desc, dv_desc, computes, cu_seqlens_q_ptr, cu_seqlens_k_ptr,
            num_seqs, total_q, total_k, BM, BN, STAGES, FUSE_DQ, DELAY_DQ,
        )),
        (_backward_consumer, (
            1, scheduler, shared, barriers, dq_sums, dk_desc, dv_desc, computes, cu_seqlens_q_ptr, cu_seqlens_k_ptr,
            num_seqs, total_q, total_k, BM, BN, STAGES, FUSE_DQ, DELAY_DQ,
        )),
        (_backward_producer, (
            q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, counter_ptr, scheduler,
            (q_s, do_s, k_s, v_s, lse_s, delta_s), barriers, loads, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs,
            total_q, total_k, BM, BN, STAGES,
        )),
    ], [4, 1], [240, 24])
    # fmt: on
