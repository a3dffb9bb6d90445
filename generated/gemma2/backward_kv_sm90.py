"""gemma2: dk and dv, and dq where a config fuses it, for Hopper.

Generated from variants/gemma2.yaml by

    flashgen build variants/gemma2.yaml

Do not edit: change the spec and build again.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from flashgen.runtime.device.sm90.kv_steps import (
    KvShape, allocate_kv, begin_dq, finish_kv_step, load_halves, load_stage, make_kv_barriers, start_kv_step,
    store_gradients_at_once,
)
from flashgen.runtime.device.sm90.kv_tiles import slot_of
from flashgen.runtime.device.sm90.positions import opaque, rows_from, rows_to
from flashgen.runtime.device.sm90.sequences import delta_place, if_any, tma_place
from flashgen.runtime.device.sm90.work_tiles import key_tile, keys_at, other_range

from .pair import _score_and_slope_by_key


@gluon.jit
def _queries_of(col0, q_len, kv_len, BM: gl.constexpr, BN: gl.constexpr):
    """The tiles of queries for the tile of keys at col0: num_tiles, the first num_mixed of which need the mask."""
    k_first = col0
    k_last = gl.minimum(col0 + BN, kv_len) - 1

    # Rows [first, stop) see some key of the tile, rows [full_start, full_end) each of them.
    first = gl.maximum(k_first + q_len - kv_len, 0) // BM * BM
    full_start = gl.where(col0 + BN > kv_len, q_len, k_last + q_len - kv_len)
    stop = gl.minimum(k_last + q_len - kv_len + 4096, q_len)
    full_end = gl.minimum(k_first + q_len - kv_len + 4096, q_len)
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
def _backward_producer(descs, shared, of_keys, of_queries, sizes, sequences, shape, BM: gl.constexpr, BN: gl.constexpr):
    # One warp: brings the program's tile of K and V into shared memory by TMA, then the tiles of Q and dO that see it
    # and their rows' lse and delta as soon as the consumers make room.
    batch, heads, kv_heads, longest_q, longest_k, num_rows, head_group = sizes
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr = sequences
    (kv_full,) = of_keys
    k_desc, v_desc = descs[2:4]
    k_s, v_s = shared[2:4]
    work_tile = keys_at(sequences, gl.program_id(0), longest_q, longest_k, kv_heads, head_group, BN)
    b, kv_h, col0, begin_k, num_keys = key_tile(work_tile, order_ptr, longest_k, batch, kv_heads, head_group, BN)
    begin_q, q_len = other_range(work_tile, cu_seqlens_q_ptr, b, longest_q)
    kv_len = if_any(cu_seqlens_q_ptr, q_len, num_keys, 1)
    seen = if_any(cu_seqlens_q_ptr, q_len, num_keys, 0)
    mbarrier.expect(kv_full, 2 * (k_desc.block_type.nbytes + v_desc.block_type.nbytes))
    load_halves(k_desc, cu_seqlens_k_ptr, begin_k, seen, kv_h, col0, k_s, kv_full)
    load_halves(v_desc, cu_seqlens_k_ptr, begin_k, seen, kv_h, col0, v_s, kv_full)
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    for h in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        num_tiles, num_mixed, num_left, num_right, first = _queries_of(col0, q_len, kv_len, BM, BN)
        first_row = delta_place(cu_seqlens_q_ptr, b, h, heads, begin_q, num_rows)
        for i in range(num_tiles):
            start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
            q_b, q_row = tma_place(cu_seqlens_q_ptr, begin_q, q_len, start)
            stage, phase = slot_of(n, shape.STAGES)
            load_stage(descs, q_b, h, q_row, first_row, start, stage, phase, shared, of_queries)
            n += 1


@gluon.jit
def _backward_consumer(
    CONSUMER: gl.constexpr, shared, of_keys, of_queries, outputs, sizes, sequences, shape, BM: gl.constexpr,
    BN: gl.constexpr,
):
    # Four warps: 64 keys. Tiles of scores are transposed, [64, BM], so that P and dS enter the products for dV and dK
    # from registers; for dQ both consumers put dS into shared memory, and each makes one half of its columns or rows.
    dq_sums = outputs[0]
    scale, batch, heads, kv_heads, longest_q, longest_k, num_rows, head_group = sizes
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr = sequences
    k_s, _, lse_s, delta_s = shared[2:6]
    (kv_full,) = of_keys
    rows_full = of_queries[2]
    dtype: gl.constexpr = k_s.dtype
    scores_layout: gl.constexpr = shape.scores_layout
    row_layout: gl.constexpr = gl.SliceLayout(0, scores_layout)
    col_layout: gl.constexpr = gl.SliceLayout(1, scores_layout)
    zero = gl.zeros([64, BM], gl.float32, scores_layout)
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    dk = gl.zeros([64, shape.HEAD_DIM], gl.float32, shape.dk_layout)
    dv = gl.zeros([64, shape.V_HEAD_DIM], gl.float32, shape.dv_layout)
    work_tile = keys_at(sequences, gl.program_id(0), longest_q, longest_k, kv_heads, head_group, BN)
    b, kv_h, col0, begin_k, num_keys = key_tile(work_tile, order_ptr, longest_k, batch, kv_heads, head_group, BN)
    begin_q, q_len = other_range(work_tile, cu_seqlens_q_ptr, b, longest_q)
    kv_len = if_any(cu_seqlens_q_ptr, q_len, num_keys, 1)
    cols = col0 + 64 * CONSUMER + gl.arange(0, 64, layout=col_layout)
    # Keys beyond the last are taken as the last: they read what exists.
    k = gl.minimum(cols, kv_len - 1)[:, None]
    last_at = begin_dq(
        cu_seqlens_q_ptr, b, kv_h * (heads // kv_heads), heads, begin_q, num_rows, n, shared, CONSUMER, shape
    )
    mbarrier.wait(kv_full, 0)
    # At least one, or the compiler would keep for the epilogue what it computes for the loops.
    num_heads = gl.maximum(heads // kv_heads, 1)
    for each in range(num_heads):
        h = kv_h * num_heads + each
        qk_scale = scale * 0.02
        # The rows that see each key, as far as these are one interval.
        seen_from = gl.where((cols < kv_len)[:, None], gl.maximum(k + q_len - kv_len, 0), 1 << 30)
        seen_to = gl.minimum(gl.maximum(k + q_len - kv_len + 4095, -1), q_len - 1)
        num_tiles, num_mixed, num_left, num_right, first = _queries_of(col0, q_len, kv_len, BM, BN)
        first_row = delta_place(cu_seqlens_q_ptr, b, h, heads, begin_q, num_rows)

        # Mixed tiles.
        i = 0
        while i < num_mixed:
            start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
            stage, phase = slot_of(n, shape.STAGES)
            # S^T = K Q^T and dP^T = V dO^T.
            scores, products = start_kv_step(zero, stage, phase, shared, of_queries, CONSUMER, shape)
            qk = warpgroup_mma_wait(1, deps=(scores,))
            mbarrier.wait(rows_full.index(stage), phase)
            lse = lse_s.index(stage).load(row_layout)[None, :]
            x, slope = _score_and_slope_by_key(qk, qk_scale)
            shown = rows_from(seen_from - start, BM, row_layout) & rows_to(seen_to - start, BM, row_layout)
            x = gl.where(shown, x, -float("inf"))
            slope = gl.where(shown, slope, 0.0)
            p = gl.exp2(x - lse)
            dp = warpgroup_mma_wait(0, deps=(products,))
            p_operand = gl.convert_layout(p.to(dtype), shape.dv_operand)
            p = p * slope
            delta = delta_s.index(stage).load(row_layout)[None, :]
            ds = (p * (dp - delta)).to(dtype)
            # dV += P^T dO and dK += dS^T Q, and between them, where FUSE_DQ, a part of dQ.
            dk, dv, last_at = finish_kv_step(
                p_operand, ds, dk, dv, first_row, start, last_at, n, stage, dq_sums, shared, of_queries, CONSUMER, shape
            )
            n = opaque(n + 1)
            i = opaque(i + 1)

        # Full tiles: each row sees each key, no mask.
        while i < num_tiles:
            start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
            stage, phase = slot_of(n, shape.STAGES)
            # S^T = K Q^T and dP^T = V dO^T.
            scores, products = start_kv_step(zero, stage, phase, shared, of_queries, CONSUMER, shape)
            qk = warpgroup_mma_wait(1, deps=(scores,))
            mbarrier.wait(rows_full.index(stage), phase)
            lse = lse_s.index(stage).load(row_layout)[None, :]
            x, slope = _score_and_slope_by_key(qk, qk_scale)
            p = gl.exp2(x - lse)
            dp = warpgroup_mma_wait(0, deps=(products,))
            p_operand = gl.convert_layout(p.to(dtype), shape.dv_operand)
            p = p * slope
            delta = delta_s.index(stage).load(row_layout)[None, :]
            ds = (p * (dp - delta)).to(dtype)
            # dV += P^T dO and dK += dS^T Q, and between them, where FUSE_DQ, a part of dQ.
            dk, dv, last_at = finish_kv_step(
                p_operand, ds, dk, dv, first_row, start, last_at, n, stage, dq_sums, shared, of_queries, CONSUMER, shape
            )
            n = opaque(n + 1)
            i = opaque(i + 1)

    # Epilogue. The tiles of K and V have been read and take dK and dV, which TMA writes as far as there are keys.
    places = (batch, longest_k, kv_heads, head_group)
    store_gradients_at_once(
        outputs, dk, scale, dv, last_at, n, work_tile, places, sequences, shared, CONSUMER, BN, shape
    )
    tma.store_wait(0)


@gluon.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "batch", "num_rows", "head_group", "num_seqs",
    "total_q", "total_k",
])
def _backward_kv_sm90(
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, dq_sums, dk_desc, dv_desc,
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, FUSE_DQ: gl.constexpr, DELAY_DQ: gl.constexpr,
):
    # Grid: one program for each tile of BN = 128 keys of each head of K and V of each batch element. It walks along the
    # queries that see some of its keys, head by head of those that share them: p = exp2(logit - lse), dv = p^T d_out,
    # ds = p * (d_out v^T - delta) * slope, dk = scale ds^T q. lse and delta are what _delta writes, num_rows for each
    # head.
    # Packed sequences are where cu_seqlens are not None; see work_tiles.py for both.
    # Where FUSE_DQ, each tile's part of dq = scale ds k is added in memory, in float32 and in no fixed order: without
    # the scale, in tiles of 64 x 64, each as fragments, see add_dq.
    # One warp loads (_backward_producer), two groups of four warps compute (_backward_consumer). They meet at barriers
    # in shared memory: `full` when a tile has arrived, `empty` when both consumers are done with it.
    descs = (q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc)
    outputs = (dq_sums, dk_desc, dv_desc)
    WIDTH: gl.constexpr = k_desc.block_type.shape[-1]
    V_WIDTH: gl.constexpr = v_desc.block_type.shape[-1]
    PACKED: gl.constexpr = cu_seqlens_k_ptr is not None
    shape = KvShape(BM, WIDTH, V_WIDTH, STAGES, FUSE_DQ, DELAY_DQ, PERSISTENT=False, PACKED=PACKED)
    shared = allocate_kv(descs, outputs, shape, PERSISTENT=False)
    of_keys, of_queries = make_kv_barriers(STAGES, PERSISTENT=False)
    sequences = (cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr)
    loads = (batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    computes = (scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    # fmt: off
    gl.warp_specialize([
        (_backward_consumer, (0, shared, of_keys, of_queries, outputs, computes, sequences, shape, BM, BN)),
        (_backward_consumer, (1, shared, of_keys, of_queries, outputs, computes, sequences, shape, BM, BN)),
        (_backward_producer, (descs, shared, of_keys, of_queries, loads, sequences, shape, BM, BN)),
    ], [4, 1], [240, 24])
    # fmt: on
