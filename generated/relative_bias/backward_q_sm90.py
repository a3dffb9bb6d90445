"""relative_bias: dq, for Hopper.

Generated from variants/relative_bias.yaml by

    flashgen build variants/relative_bias.yaml

Do not edit: change the spec and build again.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from flashgen.runtime.device.packed import delta_row
from flashgen.runtime.device.sm90.barriers import make_barriers, make_channel, ping_pong_arrive
from flashgen.runtime.device.sm90.dq_steps import (
    DqShape, start_dp, start_dq_product, start_dq_scores, start_dq_step, store_dq, zero_dq_sums,
)
from flashgen.runtime.device.sm90.kv_tiles import v_slot_of
from flashgen.runtime.device.sm90.products import await_product
from flashgen.runtime.device.sm90.sequences import head_of, hide_if_none, if_any, last_row, some_keys, tma_place
from flashgen.runtime.device.sm90.tiles import load_tile
from flashgen.runtime.device.sm90.work_tiles import queries_at

from .forward_sm90 import _is_uniform_key_tile, _work
from .pair import _score, _uniform_score


@gluon.jit
def _dq_producer(
    q_desc, do_desc, k_desc, v_desc, shared, barriers, sizes, sequences, shape, BM: gl.constexpr, BN: gl.constexpr,
):
    # One warp: brings the tile of Q and dO into shared memory by TMA, then the tiles of K and V that it sees as soon as
    # the consumers make room.
    batch, heads, kv_heads, longest_q, longest_k, num_rows = sizes
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, _ = sequences
    q_s, do_s, k_s, v_s = shared
    q_full, do_full, k_channel, v_channel = barriers
    work_tile = queries_at(sequences, gl.program_id(0), longest_q, longest_k, heads, BM)
    _, h, row0, begin_q, q_len, begin_k, num_keys = _work(work_tile, batch, heads, longest_q, longest_k, sequences, BM)
    kv_h = h // (heads // kv_heads)
    num_tiles = gl.cdiv(some_keys(cu_seqlens_k_ptr, num_keys), BN)
    seen = if_any(cu_seqlens_k_ptr, num_keys, q_len, 0)
    for each in gl.static_range(shape.CONSUMERS):
        q_b, q_row = tma_place(cu_seqlens_q_ptr, begin_q, seen, row0 + 64 * each)
        load_tile((q_desc,), q_b, h, q_row, (q_s,), each, q_full.index(each))
    for i in range(num_tiles):
        k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, num_keys, (num_tiles - 1 - i) * BN)
        slot = k_channel.slot(i)
        load_tile((k_desc,), k_b, kv_h, k_row, (k_s,), slot[0], k_channel.acquire(slot))
        if i == 0:
            for each in gl.static_range(shape.CONSUMERS):
                q_b, q_row = tma_place(cu_seqlens_q_ptr, begin_q, seen, row0 + 64 * each)
                load_tile((do_desc,), q_b, h, q_row, (do_s,), each, do_full.index(each))
        v_slot = v_slot_of(i, num_rows, shape.V_STAGES)
        load_tile((v_desc,), k_b, kv_h, k_row, (v_s,), v_slot[0], v_channel.acquire(v_slot))


@gluon.jit
def _dq_consumer(
    CONSUMER: gl.constexpr, dq_desc, shared, barriers, lse_ptr, delta_ptr, rel_ptr, stride_rel_0, sizes, sequences,
    shape, BM: gl.constexpr, BN: gl.constexpr,
):
    # Four warps: 64 rows of the tile of queries. dP = dO V^T is made as Q K^T is, dQ += dS K as P V is in _consumer.
    # q [64, 1]: positions of the rows; k [1, BN]: positions of a tile's keys. dq: the sums for its columns, in one part
    # or two, see DqShape.
    scale, batch, heads, longest_q, longest_k, num_rows = sizes
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, _ = sequences
    q_s, do_s, k_s, v_s = shared
    q_full, do_full, k_channel, v_channel = barriers
    qk_layout: gl.constexpr = shape.qk_layout
    row_layout: gl.constexpr = gl.SliceLayout(1, qk_layout)
    col_layout: gl.constexpr = gl.SliceLayout(0, qk_layout)
    q_tile = q_s.index(CONSUMER).reshape([64, shape.WIDTH])
    zero = gl.zeros([64, BN], gl.float32, qk_layout)
    work_tile = queries_at(sequences, gl.program_id(0), longest_q, longest_k, heads, BM)
    b, h, row0, begin_q, q_len, begin_k, num_keys = _work(work_tile, batch, heads, longest_q, longest_k, sequences, BM)
    kv_len = some_keys(cu_seqlens_k_ptr, num_keys)
    num_tiles = gl.cdiv(kv_len, BN)
    row0 += 64 * CONSUMER
    rows = row0 + gl.arange(0, 64, layout=row_layout)
    # Rows beyond the last are taken as the last: they read what exists.
    q = (gl.minimum(rows, last_row(cu_seqlens_k_ptr, num_keys, q_len)) + (kv_len - q_len))[:, None]
    q_first = row0 + (kv_len - q_len)
    q_last = gl.minimum(row0 + 64, q_len) - 1 + (kv_len - q_len)
    rel_base = rel_ptr + h.to(gl.int64) * stride_rel_0
    at = delta_row(cu_seqlens_q_ptr, head_of(cu_seqlens_q_ptr, b, h, heads), b, begin_q, num_rows) + rows
    seen = if_any(cu_seqlens_k_ptr, num_keys, q_len, 0)
    lse = gl.load(lse_ptr + at, mask=rows < seen, other=float("inf"))[:, None]
    delta = gl.load(delta_ptr + at, mask=rows < seen, other=0.0)[:, None]
    dq = zero_dq_sums(shape)

    # The first tile of keys, as if it were mixed.
    i = 0
    slot = k_channel.slot(0)
    v_slot = v_slot_of(0, num_rows, shape.V_STAGES)
    if CONSUMER == shape.CONSUMERS - 1:
        ping_pong_arrive(CONSUMER, shape.CONSUMERS, shape.PING_PONG)
    mbarrier.wait(q_full.index(CONSUMER), 0)
    k_channel.wait(slot)
    scores = start_dq_scores(q_tile, k_s, slot, zero, shape)
    mbarrier.wait(do_full.index(CONSUMER), 0)
    v_channel.wait(v_slot)
    products = start_dp(do_s, CONSUMER, v_s, v_slot, zero, shape)
    qk = warpgroup_mma_wait(shape.DP_PRODUCTS, deps=(scores,))
    start = (num_tiles - 1 - i) * BN
    col = start + gl.arange(0, BN, layout=col_layout)[None, :]
    k = gl.minimum(col, kv_len - 1)
    x = _score(qk, q, k, rel_base, scale)
    x = gl.where(col < kv_len, x, -float("inf"))
    x = hide_if_none(cu_seqlens_k_ptr, num_keys, x)
    p = gl.exp2((x - lse) * 1.4426950408889634)
    # K is there; to look again keeps the compiler from putting exponentials behind the wait for dP.
    k_channel.wait(slot)
    dp = warpgroup_mma_wait(0, deps=(products,))
    v_channel.release(v_slot)
    ds = gl.convert_layout((p * (dp - delta)).to(dq_desc.dtype), shape.ds_layout)

    # The other tiles: each row sees each key.
    # Runs of uniform ones, all of whose pairs read at one place, and of others.
    i = 1
    while i < num_tiles:
        while _is_uniform_key_tile(i, num_tiles, kv_len, q_first, q_last, BN):
            # Start the last tile's part of dQ and this tile's S, then dP; P is computed while dP runs.
            last = slot
            slot = k_channel.slot(i)
            v_slot = v_slot_of(i, num_rows, shape.V_STAGES)
            scores, products, dq = start_dq_step(
                q_tile, zero, ds, dq, last, slot, v_slot, shared, k_channel, v_channel, CONSUMER, shape
            )
            qk = warpgroup_mma_wait(shape.DP_PRODUCTS, deps=(scores,))
            start = (num_tiles - 1 - i) * BN
            x = _uniform_score(qk, start, q_first, rel_base, scale)
            p = gl.exp2((x - lse) * 1.4426950408889634)
            # K is there; to look again keeps the compiler from putting exponentials behind the wait for dP.
            k_channel.wait(slot)
            dp = warpgroup_mma_wait(0, deps=(products,))
            v_channel.release(v_slot)
            ds = gl.convert_layout((p * (dp - delta)).to(dq_desc.dtype), shape.ds_layout)
            i += 1
        while (i < num_tiles) & ~_is_uniform_key_tile(i, num_tiles, kv_len, q_first, q_last, BN):
            # Start the last tile's part of dQ and this tile's S, then dP; P is computed while dP runs.
            last = slot
            slot = k_channel.slot(i)
            v_slot = v_slot_of(i, num_rows, shape.V_STAGES)
            scores, products, dq = start_dq_step(
                q_tile, zero, ds, dq, last, slot, v_slot, shared, k_channel, v_channel, CONSUMER, shape
            )
            qk = warpgroup_mma_wait(shape.DP_PRODUCTS, deps=(scores,))
            start = (num_tiles - 1 - i) * BN
            k = start + gl.arange(0, BN, layout=col_layout)[None, :]
            x = _score(qk, q, k, rel_base, scale)
            p = gl.exp2((x - lse) * 1.4426950408889634)
            # K is there; to look again keeps the compiler from putting exponentials behind the wait for dP.
            k_channel.wait(slot)
            dp = warpgroup_mma_wait(0, deps=(products,))
            v_channel.release(v_slot)
            ds = gl.convert_layout((p * (dp - delta)).to(dq_desc.dtype), shape.ds_layout)
            i += 1

    # The last tile's part of dQ. TMA writes the rows and columns that exist.
    dq = await_product(start_dq_product(ds, k_s, slot, dq, shape), shape.REST)
    store_dq(dq_desc, q_s, dq, scale, cu_seqlens_q_ptr, begin_q, q_len, h, row0, CONSUMER, shape)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "batch", "num_rows", "num_seqs", "total_q",
    "total_k",
])
def _backward_q_sm90(
    q_desc, do_desc, k_desc, v_desc, dq_desc, lse_ptr, delta_ptr, rel_ptr, stride_rel_0,
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, HEAD_DIM: gl.constexpr, V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr, V_STAGES: gl.constexpr, CONSUMERS: gl.constexpr, PING_PONG: gl.constexpr,
):
    # Grid: one program for each tile of BM query rows of each head of each batch element.
    # It walks along the keys as _forward_sm90 does: p = exp(logit - lse), ds = p * (d_out v^T - delta),
    # dq = scale ds k.
    # lse and delta are what _delta writes, num_rows for each head.
    # One warp loads (_dq_producer), CONSUMERS groups of four warps compute (_dq_consumer). Channels
    # say when a tile has arrived in shared memory, and when all who read it are done. A tile of K is read again,
    # for dQ, when the next one is there: those of K have STAGES places, those of V one less, V_STAGES.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up; what lies beyond reads as zero.
    # Packed sequences are where cu_seqlens are not None; see work_tiles.py for both.
    q_s = gl.allocate_shared_memory(q_desc.dtype, [CONSUMERS] + q_desc.block_type.shape, q_desc.layout)
    do_s = gl.allocate_shared_memory(do_desc.dtype, [CONSUMERS] + do_desc.block_type.shape, do_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, [V_STAGES] + v_desc.block_type.shape, v_desc.layout)
    q_full = make_barriers(CONSUMERS)
    do_full = make_barriers(CONSUMERS)
    k_channel = make_channel(STAGES, CONSUMERS)
    v_channel = make_channel(V_STAGES, CONSUMERS)
    shape = DqShape(BN, HEAD_DIM, V_HEAD_DIM, V_STAGES, CONSUMERS, PING_PONG)
    shared = (q_s, do_s, k_s, v_s)
    barriers = (q_full, do_full, k_channel, v_channel)
    sequences = (cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, (None,))  # no pages
    loads = (batch, heads, kv_heads, q_len, kv_len, num_rows)
    computes = (scale, batch, heads, q_len, kv_len, num_rows)
    # Registers a thread: 240 for two consumers, 160 for three, 24 for the producer; the launch gives their mean.
    # fmt: off
    if CONSUMERS == 2:
        gl.warp_specialize([
            (_dq_consumer, (
                0, dq_desc, shared, barriers, lse_ptr, delta_ptr, rel_ptr, stride_rel_0, computes, sequences, shape, BM,
                BN,
            )),
            (_dq_consumer, (
                1, dq_desc, shared, barriers, lse_ptr, delta_ptr, rel_ptr, stride_rel_0, computes, sequences, shape, BM,
                BN,
            )),
            (_dq_producer, (q_desc, do_desc, k_desc, v_desc, shared, barriers, loads, sequences, shape, BM, BN)),
        ], [4, 1], [240, 24])
    else:
        gl.warp_specialize([
            (_dq_consumer, (
                0, dq_desc, shared, barriers, lse_ptr, delta_ptr, rel_ptr, stride_rel_0, computes, sequences, shape, BM,
                BN,
            )),
            (_dq_consumer, (
                1, dq_desc, shared, barriers, lse_ptr, delta_ptr, rel_ptr, stride_rel_0, computes, sequences, shape, BM,
                BN,
            )),
            (_dq_consumer, (
                2, dq_desc, shared, barriers, lse_ptr, delta_ptr, rel_ptr, stride_rel_0, computes, sequences, shape, BM,
                BN,
            )),
            (_dq_producer, (q_desc, do_desc, k_desc, v_desc, shared, barriers, loads, sequences, shape, BM, BN)),
        ], [4, 4, 1], [160, 160, 24])
    # fmt: on
