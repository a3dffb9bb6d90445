"""relative_bias: dk and dv, and dq where a config fuses it, for Hopper.

Generated from variants/relative_bias.yaml by

    flashgen build variants/relative_bias.yaml

Do not edit: change the spec and build again.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from flashgen.runtime.device.sm90.fragments import accumulate_threads, thread_sums
from flashgen.runtime.device.sm90.kv_steps import (
    KvShape, allocate_kv, begin_dq, finish_kv_step, load_halves, load_stage, make_kv_barriers, start_kv_step,
    store_gradients_at_once,
)
from flashgen.runtime.device.sm90.kv_tiles import slot_of
from flashgen.runtime.device.sm90.positions import opaque
from flashgen.runtime.device.sm90.sequences import delta_place, if_any, tma_place
from flashgen.runtime.device.sm90.work_tiles import key_tile, keys_at, other_range

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
        num_tiles, _ = _queries_of(col0, q_len, kv_len, BM, BN)
        first_row = delta_place(cu_seqlens_q_ptr, b, h, heads, begin_q, num_rows)
        for i in range(num_tiles):
            start = _query_tile(i, num_tiles, BM)
            q_b, q_row = tma_place(cu_seqlens_q_ptr, begin_q, q_len, start)
            stage, phase = slot_of(n, shape.STAGES)
            load_stage(descs, q_b, h, q_row, first_row, start, stage, phase, shared, of_queries)
            n += 1


@gluon.jit
def _backward_consumer(
    CONSUMER: gl.constexpr, shared, of_keys, of_queries, outputs, inputs, sizes, sequences, shape, BM: gl.constexpr,
    BN: gl.constexpr, LEARNED: gl.constexpr,
):
    # Four warps: 64 keys. Tiles of scores are transposed, [64, BM], so that P and dS enter the products for dV and dK
    # from registers; for dQ both consumers put dS into shared memory, and each makes one half of its columns or rows.
    dq_sums = outputs[0]
    d_rel_ptr, rel_ptr, stride_rel_0 = inputs
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
    k_first = col0 + 64 * CONSUMER
    k_last = gl.minimum(col0 + 64 * CONSUMER + 64, kv_len) - 1
    last_at = begin_dq(
        cu_seqlens_q_ptr, b, kv_h * (heads // kv_heads), heads, begin_q, num_rows, n, shared, CONSUMER, shape
    )
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
            stage, phase = slot_of(n, shape.STAGES)
            # S^T = K Q^T and dP^T = V dO^T.
            scores, products = start_kv_step(zero, stage, phase, shared, of_queries, CONSUMER, shape)
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
            p_operand = gl.convert_layout(p.to(dtype), shape.dv_operand)
            delta = delta_s.index(stage).load(row_layout)[None, :]
            ds_out = p * (dp - delta)
            if LEARNED:
                d_rel_sums += gl.where(d_rel_shared, thread_sums(ds_out), 0.0)
            ds = ds_out.to(dtype)
            # dV += P^T dO and dK += dS^T Q, and between them, where FUSE_DQ, a part of dQ.
            dk, dv, last_at = finish_kv_step(
                p_operand, ds, dk, dv, first_row, start, last_at, n, stage, dq_sums, shared, of_queries, CONSUMER, shape
            )
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
                stage, phase = slot_of(n, shape.STAGES)
                # S^T = K Q^T and dP^T = V dO^T.
                scores, products = start_kv_step(zero, stage, phase, shared, of_queries, CONSUMER, shape)
                qk = warpgroup_mma_wait(1, deps=(scores,))
                mbarrier.wait(rows_full.index(stage), phase)
                lse = lse_s.index(stage).load(row_layout)[None, :]
                x = _uniform_score(qk, k_first, q_first, rel_base, scale)
                p = gl.exp2((x - lse) * 1.4426950408889634)
                if shape.DELAY_DQ:
                    # There already: nothing moves across a wait, so that all exponentials run beside dP^T.
                    mbarrier.wait(rows_full.index(stage), phase)
                dp = warpgroup_mma_wait(0, deps=(products,))
                p_operand = gl.convert_layout(p.to(dtype), shape.dv_operand)
                delta = delta_s.index(stage).load(row_layout)[None, :]
                ds_out = p * (dp - delta)
                if LEARNED:
                    d_rel_sums += thread_sums(ds_out)
                ds = ds_out.to(dtype)
                # dV += P^T dO and dK += dS^T Q, and between them, where FUSE_DQ, a part of dQ.
                dk, dv, last_at = finish_kv_step(
                    p_operand, ds, dk, dv, first_row, start, last_at, n, stage, dq_sums, shared, of_queries, CONSUMER,
                    shape,
                )
                n = opaque(n + 1)
                i = opaque(i + 1)

            while (i < num_tiles) & ~_is_uniform_query_tile(i, num_tiles, k_first, k_last, kv_len, q_len, BM):
                start = _query_tile(i, num_tiles, BM)
                stage, phase = slot_of(n, shape.STAGES)
                # S^T = K Q^T and dP^T = V dO^T.
                scores, products = start_kv_step(zero, stage, phase, shared, of_queries, CONSUMER, shape)
                qk = warpgroup_mma_wait(1, deps=(scores,))
                mbarrier.wait(rows_full.index(stage), phase)
                rows = start + gl.arange(0, BM, layout=row_layout)
                # Rows beyond the last are taken as the last: they read what exists.
                q = (gl.minimum(rows, q_len - 1) + (kv_len - q_len))[None, :]
                lse = lse_s.index(stage).load(row_layout)[None, :]
                x = _score(qk, q, k, rel_base, scale)
                p = gl.exp2((x - lse) * 1.4426950408889634)
                if shape.DELAY_DQ:
                    # There already: nothing moves across a wait, so that all exponentials run beside dP^T.
                    mbarrier.wait(rows_full.index(stage), phase)
                dp = warpgroup_mma_wait(0, deps=(products,))
                p_operand = gl.convert_layout(p.to(dtype), shape.dv_operand)
                delta = delta_s.index(stage).load(row_layout)[None, :]
                ds_out = p * (dp - delta)
                ds = ds_out.to(dtype)
                # dV += P^T dO and dK += dS^T Q, and between them, where FUSE_DQ, a part of dQ.
                dk, dv, last_at = finish_kv_step(
                    p_operand, ds, dk, dv, first_row, start, last_at, n, stage, dq_sums, shared, of_queries, CONSUMER,
                    shape,
                )
                n = opaque(n + 1)
                i = opaque(i + 1)

    if LEARNED:
        accumulate_threads(d_rel_ptr, d_rel_at, d_rel_sums)

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
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, dq_sums, dk_desc, dv_desc, d_rel_ptr, rel_ptr, stride_rel_0,
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, FUSE_DQ: gl.constexpr, DELAY_DQ: gl.constexpr,
    LEARNED: gl.constexpr,
):
    # Grid: one program for each tile of BN = 128 keys of each head of K and V of each batch element. It walks along the
    # queries that see some of its keys, head by head of those that share them: p = exp(logit - lse), dv = p^T d_out,
    # ds = p * (d_out v^T - delta), dk = scale ds^T q. lse and delta are what _delta writes, num_rows for each head.
    # Packed sequences are where cu_seqlens are not None; see work_tiles.py for both.
    # Where LEARNED, ds_out = p * (d_out v^T - delta) is added up for rel where all pairs of a tile share an element.
    # Where FUSE_DQ, each tile's part of dq = scale ds k is added in memory, in float32 and in no fixed order: without
    # the scale, in tiles of 64 x 64, each as fragments, see add_dq.
    # One warp loads (_backward_producer), two groups of four warps compute (_backward_consumer). They meet at barriers
    # in shared memory: `full` when a tile has arrived, `empty` when both consumers are done with it.
    descs = (q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc)
    outputs = (dq_sums, dk_desc, dv_desc)
    WIDTH: gl.constexpr = k_desc.block_type.shape[-1]
    V_WIDTH: gl.constexpr = v_desc.block_type.shape[-1]
    PACKED: gl.constexpr = cu_seqlens_k_ptr is not None
    shape = KvShape(
        BM, WIDTH, V_WIDTH, STAGES, FUSE_DQ, DELAY_DQ, PERSISTENT=False, PACKED=PACKED, SUMS_BY_TILE=LEARNED
    )
    shared = allocate_kv(descs, outputs, shape, PERSISTENT=False)
    of_keys, of_queries = make_kv_barriers(STAGES, PERSISTENT=False)
    sequences = (cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr)
    inputs = (d_rel_ptr, rel_ptr, stride_rel_0)
    loads = (batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    computes = (scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    # fmt: off
    gl.warp_specialize([
        (_backward_consumer, (
            0, shared, of_keys, of_queries, outputs, inputs, computes, sequences, shape, BM, BN, LEARNED,
        )),
        (_backward_consumer, (
            1, shared, of_keys, of_queries, outputs, inputs, computes, sequences, shape, BM, BN, LEARNED,
        )),
        (_backward_producer, (descs, shared, of_keys, of_queries, loads, sequences, shape, BM, BN)),
    ], [4, 1], [240, 24])
    # fmt: on
