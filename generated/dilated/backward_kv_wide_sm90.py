"""dilated: dk and dv of wide heads, for Hopper.

Generated from variants/dilated.yaml by

    flashgen build variants/dilated.yaml

Do not edit: change the spec and build again.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait

from flashgen.runtime.device.sm90.barriers import barrier_arrive, barrier_sync, make_barriers, make_channel
from flashgen.runtime.device.sm90.fragments import load_fragments, store_fragments
from flashgen.runtime.device.sm90.kv_tiles import slot_of
from flashgen.runtime.device.sm90.scheduled import scheduled_query_tile
from flashgen.runtime.device.sm90.sequences import delta_place, if_any, tma_place
from flashgen.runtime.device.sm90.tiles import place_of
from flashgen.runtime.device.sm90.wide_steps import (
    WideShape, add_wide_dk, add_wide_dv, allocate_wide, load_wide_stage, start_wide_dp, start_wide_scores, store_wide,
    zero_wide_dk, zero_wide_dv,
)
from flashgen.runtime.device.sm90.work_tiles import key_tile, keys_at, other_range
from flashgen.runtime.gluon import tma_load

from .backward_kv_sm90 import _queries_of
from .pair import _visible


@gluon.jit
def _wide_producer(
    descs, shared, channels, counts_ptr, tiles_ptr, num_q_tiles, sizes, sequences, shape, BM: gl.constexpr,
    BN: gl.constexpr,
):
    # One warp: brings the program's tile of K and V into shared memory by TMA, then the tiles of Q and dO that see it
    # and their rows' lse and delta as soon as the consumers make room.
    batch, heads, kv_heads, longest_q, longest_k, num_rows, head_group = sizes
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr = sequences
    kv_full, q_channel, do_channel = channels[:3]
    k_desc, v_desc = descs[2:4]
    work_tile = keys_at(sequences, gl.program_id(0), longest_q, longest_k, kv_heads, head_group, BN)
    b, kv_h, col0, begin_k, num_keys = key_tile(work_tile, order_ptr, longest_k, batch, kv_heads, head_group, BN)
    begin_q, q_len = other_range(work_tile, cu_seqlens_q_ptr, b, longest_q)
    k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, if_any(cu_seqlens_q_ptr, q_len, num_keys, 0), col0)
    mbarrier.expect(kv_full, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma_load(k_desc, place_of(k_desc, k_b, kv_h, k_row, 0), kv_full, shared[2])
    tma_load(v_desc, place_of(v_desc, k_b, kv_h, k_row, 0), kv_full, shared[3])
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    for h in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        num_tiles, num_mixed, row_tiles_ptr = _queries_of(
            col0, b, counts_ptr, tiles_ptr, num_q_tiles, q_len, longest_k, cu_seqlens_q_ptr, BN
        )
        first_row = delta_place(cu_seqlens_q_ptr, b, h, heads, begin_q, num_rows)
        for i in range(num_tiles):
            start = scheduled_query_tile(i, num_mixed, row_tiles_ptr, num_q_tiles, BM)
            q_b, q_row = tma_place(cu_seqlens_q_ptr, begin_q, q_len, start)
            slot = slot_of(n, shape.STAGES)
            load_wide_stage(descs, q_b, h, q_row, first_row, start, slot, shared, q_channel, do_channel)
            n += 1


@gluon.jit
def _wide_dv_consumer(shared, channels, dv_desc, inputs, sizes, sequences, shape, BM: gl.constexpr, BN: gl.constexpr):
    # Four warps: S^T = K Q^T, P^T = exp2(logit - lse), dV += P^T dO. Tiles are transposed, [64, BM], so that P enters
    # its product from registers. P goes to shared memory too, in float32, for those who make dK.
    counts_ptr, tiles_ptr, num_q_tiles = inputs
    q_s, do_s, k_s, v_s, lse_s = shared[:5]
    p_s = shared[6]
    scale, batch, heads, kv_heads, longest_q, longest_k, head_group = sizes
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr = sequences
    kv_full, q_channel, do_channel, p_full = channels
    scores_layout: gl.constexpr = shape.scores_layout
    row_layout: gl.constexpr = gl.SliceLayout(0, scores_layout)
    col_layout: gl.constexpr = gl.SliceLayout(1, scores_layout)
    zero = gl.zeros([BN, BM], gl.float32, scores_layout)
    dv = zero_wide_dv(shape)
    work_tile = keys_at(sequences, gl.program_id(0), longest_q, longest_k, kv_heads, head_group, BN)
    b, kv_h, col0, begin_k, num_keys = key_tile(work_tile, order_ptr, longest_k, batch, kv_heads, head_group, BN)
    begin_q, q_len = other_range(work_tile, cu_seqlens_q_ptr, b, longest_q)
    kv_len = if_any(cu_seqlens_q_ptr, q_len, num_keys, 1)
    cols = col0 + gl.arange(0, BN, layout=col_layout)
    # Keys beyond the last are taken as the last: they read what exists.
    k = gl.minimum(cols, kv_len - 1)[:, None]
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    mbarrier.wait(kv_full, 0)
    for _ in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        qk_scale = scale * 1.4426950408889634
        num_tiles, num_mixed, row_tiles_ptr = _queries_of(
            col0, b, counts_ptr, tiles_ptr, num_q_tiles, q_len, longest_k, cu_seqlens_q_ptr, BN
        )

        # Mixed tiles.
        for i in range(0, num_mixed):
            start = scheduled_query_tile(i, num_mixed, row_tiles_ptr, num_q_tiles, BM)
            slot = slot_of(n, shape.STAGES)
            stage = slot[0]
            q_channel.wait(slot)
            scores = start_wide_scores(k_s, q_s, stage, zero, shape)
            qk = warpgroup_mma_wait(0, deps=(scores,))
            rows = start + gl.arange(0, BM, layout=row_layout)
            q = (rows + (kv_len - q_len))[None, :]
            lse = lse_s.index(stage).load(row_layout)[None, :]
            qk = gl.where(_visible(q, k) & (cols < kv_len)[:, None], qk, -float("inf"))
            p = gl.exp2(qk * qk_scale - lse)
            store_fragments(p_s.index(stage), p)
            mbarrier.arrive(p_full.index(stage))
            p_operand = gl.convert_layout(p.to(k_s.dtype), shape.dv_operand)
            do_channel.wait(slot)
            dv = add_wide_dv(p_operand, do_s, stage, dv, shape)
            do_channel.release(slot)
            n += 1

        # Full tiles: each row sees each key, no mask.
        for _ in range(num_mixed, num_tiles):
            slot = slot_of(n, shape.STAGES)
            stage = slot[0]
            q_channel.wait(slot)
            scores = start_wide_scores(k_s, q_s, stage, zero, shape)
            qk = warpgroup_mma_wait(0, deps=(scores,))
            lse = lse_s.index(stage).load(row_layout)[None, :]
            p = gl.exp2(qk * qk_scale - lse)
            store_fragments(p_s.index(stage), p)
            mbarrier.arrive(p_full.index(stage))
            p_operand = gl.convert_layout(p.to(k_s.dtype), shape.dv_operand)
            do_channel.wait(slot)
            dv = add_wide_dv(p_operand, do_s, stage, dv, shape)
            do_channel.release(slot)
            n += 1

    # Epilogue. When V has been read for the last time it takes dV, which TMA writes as far as there are keys.
    barrier_sync(8)
    store_wide(dv_desc, v_s, dv, None, cu_seqlens_k_ptr, begin_k, num_keys, kv_h, col0, BN, shape.V_MAIN, shape.V_REST)


@gluon.jit
def _wide_dk_consumer(
    shared, channels, dk_desc, counts_ptr, tiles_ptr, num_q_tiles, sizes, sequences, shape, BM: gl.constexpr,
    BN: gl.constexpr,
):
    # Four warps: dP^T = V dO^T, dS^T = P^T (dP^T - delta) with P of the others, dK += dS^T Q.
    q_s, do_s, k_s, v_s = shared[:4]
    delta_s, p_s = shared[5:7]
    scale, batch, heads, kv_heads, longest_q, longest_k, head_group = sizes
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr = sequences
    kv_full, q_channel, do_channel, p_full = channels
    scores_layout: gl.constexpr = shape.scores_layout
    row_layout: gl.constexpr = gl.SliceLayout(0, scores_layout)
    zero = gl.zeros([BN, BM], gl.float32, scores_layout)
    dk = zero_wide_dk(shape)
    work_tile = keys_at(sequences, gl.program_id(0), longest_q, longest_k, kv_heads, head_group, BN)
    b, kv_h, col0, begin_k, num_keys = key_tile(work_tile, order_ptr, longest_k, batch, kv_heads, head_group, BN)
    begin_q, q_len = other_range(work_tile, cu_seqlens_q_ptr, b, longest_q)
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    mbarrier.wait(kv_full, 0)
    for _ in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        num_tiles, _, _ = _queries_of(
            col0, b, counts_ptr, tiles_ptr, num_q_tiles, q_len, longest_k, cu_seqlens_q_ptr, BN
        )
        for _ in range(num_tiles):
            slot = slot_of(n, shape.STAGES)
            stage = slot[0]
            do_channel.wait(slot)
            products = start_wide_dp(v_s, do_s, stage, zero, shape)
            dp = warpgroup_mma_wait(0, deps=(products,))
            dp -= delta_s.index(stage).load(row_layout)[None, :]
            do_channel.release(slot)
            mbarrier.wait(p_full.index(stage), slot[1])
            ds = load_fragments(p_s.index(stage), scores_layout) * dp
            q_channel.wait(slot)
            ds_operand = gl.convert_layout(ds.to(k_s.dtype), shape.dk_operand)
            dk = add_wide_dk(ds_operand, q_s, stage, dk, shape)
            q_channel.release(slot)
            n += 1
    barrier_arrive(8)

    # Epilogue. K has been read when the last P was made: it takes dK.
    store_wide(dk_desc, k_s, dk, scale, cu_seqlens_k_ptr, begin_k, num_keys, kv_h, col0, BN, shape.MAIN, shape.REST)


@gluon.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_q_tiles", "batch", "num_rows", "head_group",
    "num_seqs", "total_q", "total_k",
])
def _backward_kv_wide_sm90(
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, dk_desc, dv_desc, counts_ptr, tiles_ptr, num_q_tiles,
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr,
    BM: gl.constexpr, BN: gl.constexpr, HEAD_DIM: gl.constexpr, V_HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
):
    # Grid: one program for each tile of BN = 64 keys of each head of K and V of each batch element. It walks along the
    # queries as _backward_kv_sm90 does and leaves dq to _backward_q: a thread holds 64 x 256 of either dk or dv.
    # One warp loads (_wide_producer), four warps make p and dv (_wide_dv_consumer), four ds and dk (_wide_dk_consumer).
    # Channels say when a tile has arrived in shared memory, and when all who read it are done.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up; what lies beyond reads as zero.
    # Packed sequences are where cu_seqlens are not None; see work_tiles.py for both.
    descs = (q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc)
    shape = WideShape(BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES)
    shared = allocate_wide(descs, shape)
    kv_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full, count=1)
    # The product for dK, the last that reads Q and P, comes after all that the others do with them.
    q_channel = make_channel(STAGES, 1)
    do_channel = make_channel(STAGES, 2)
    p_full = make_barriers(STAGES)
    channels = (kv_full, q_channel, do_channel, p_full)
    sequences = (cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr)
    inputs = (counts_ptr, tiles_ptr, num_q_tiles)
    loads = (batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    for_dv = (scale, batch, heads, kv_heads, q_len, kv_len, head_group)
    for_dk = (scale, batch, heads, kv_heads, q_len, kv_len, head_group)
    # fmt: off
    gl.warp_specialize([
        (_wide_dv_consumer, (shared, channels, dv_desc, inputs, for_dv, sequences, shape, BM, BN)),
        (_wide_dk_consumer, (
            shared, channels, dk_desc, counts_ptr, tiles_ptr, num_q_tiles, for_dk, sequences, shape, BM, BN,
        )),
        (_wide_producer, (
            descs, shared, channels, counts_ptr, tiles_ptr, num_q_tiles, loads, sequences, shape, BM, BN,
        )),
    ], [4, 1], [240, 24])
    # fmt: on
