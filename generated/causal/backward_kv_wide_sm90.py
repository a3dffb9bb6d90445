"""causal: dk and dv of wide heads, for Hopper.

Generated from variants/causal.yaml by

    flashgen build variants/causal.yaml

Do not edit: change the spec and build again.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait

from flashgen.runtime.device.sm90.barriers import barrier_arrive, barrier_sync, make_barriers, make_channel
from flashgen.runtime.device.sm90.fragments import load_fragments, store_fragments
from flashgen.runtime.device.sm90.kv_tiles import slot_of
from flashgen.runtime.device.sm90.positions import rows_from
from flashgen.runtime.device.sm90.products import await_product, start_product, start_scores
from flashgen.runtime.device.sm90.sequences import delta_place, if_any, key_tile, other_side, tma_place
from flashgen.runtime.device.sm90.tiles import place_of
from flashgen.runtime.gluon import tma_load, tma_store

from .backward_kv_sm90 import _queries_of, _query_tile


@gluon.jit
def _wide_producer(
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, shared, kv_full, q_channel, do_channel, sizes,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
):
    # One warp: brings the program's tile of K and V into shared memory by TMA, then the tiles of Q and dO that see it
    # and their rows' lse and delta as soon as the consumers make room.
    batch, heads, kv_heads, longest_q, longest_k, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s, lse_s, delta_s = shared
    b, kv_h, col0, begin_k, num_keys = key_tile(
        gl.program_id(0), cu_seqlens_k_ptr, num_seqs, total_k, longest_k, batch, kv_heads, head_group, BN
    )
    b, begin_q, q_len = other_side(cu_seqlens_q_ptr, b, num_seqs, total_q, longest_q)
    kv_len = if_any(cu_seqlens_q_ptr, q_len, num_keys, 1)
    k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, if_any(cu_seqlens_q_ptr, q_len, num_keys, 0), col0)
    mbarrier.expect(kv_full, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma_load(k_desc, place_of(k_desc, k_b, kv_h, k_row, 0), kv_full, k_s)
    tma_load(v_desc, place_of(v_desc, k_b, kv_h, k_row, 0), kv_full, v_s)
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    for h in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        num_tiles, _, first = _queries_of(col0, q_len, kv_len, BM, BN)
        first_row = delta_place(cu_seqlens_q_ptr, b, h, heads, begin_q, num_rows)
        for i in range(num_tiles):
            start = _query_tile(i, first, BM)
            q_b, q_row = tma_place(cu_seqlens_q_ptr, begin_q, q_len, start)
            slot = slot_of(n, STAGES)
            do_full = do_channel.acquire(slot)
            mbarrier.expect(do_full, do_desc.block_type.nbytes + 4 * BM)
            tma_load(do_desc, place_of(do_desc, q_b, h, q_row, 0), do_full, do_s.index(slot[0]))
            tma_load(delta_desc, [first_row + start], do_full, delta_s.index(slot[0]))
            q_full = q_channel.acquire(slot)
            mbarrier.expect(q_full, q_desc.block_type.nbytes + 4 * BM)
            tma_load(q_desc, place_of(q_desc, q_b, h, q_row, 0), q_full, q_s.index(slot[0]))
            tma_load(lse_desc, [first_row + start], q_full, lse_s.index(slot[0]))
            n += 1


@gluon.jit
def _wide_dv_consumer(
    shared, kv_full, q_channel, do_channel, p_full, dv_desc, sizes,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, HEAD_DIM: gl.constexpr, V_HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
):
    # Four warps: S^T = K Q^T, P^T = exp2(logit - lse), dV += P^T dO. Tiles are transposed, [64, BM], so that P enters
    # its product from registers. P goes to shared memory too, in float32, for those who make dK.
    scale, batch, heads, kv_heads, longest_q, longest_k, head_group = sizes
    q_s, do_s, k_s, v_s, lse_s, p_s = shared
    # Tiles lie in WIDTH columns, a power of two; products take powers of two, MAIN and REST.
    WIDTH: gl.constexpr = k_s.type.shape[-1]
    MAIN: gl.constexpr = WIDTH if HEAD_DIM == WIDTH else WIDTH // 2
    REST: gl.constexpr = HEAD_DIM - MAIN
    V_WIDTH: gl.constexpr = v_s.type.shape[-1]
    V_MAIN: gl.constexpr = V_WIDTH if V_HEAD_DIM == V_WIDTH else V_WIDTH // 2
    V_REST: gl.constexpr = V_HEAD_DIM - V_MAIN
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 16])
    row_layout: gl.constexpr = gl.SliceLayout(0, scores_layout)
    col_layout: gl.constexpr = gl.SliceLayout(1, scores_layout)
    dv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_MAIN, 16])
    dv_operand: gl.constexpr = gl.DotOperandLayout(0, dv_layout, 2)
    zero = gl.zeros([BN, BM], gl.float32, scores_layout)
    k_tile = k_s.reshape([BN, WIDTH])
    v_tile = v_s.reshape([BN, V_WIDTH])
    dv = (gl.zeros([BN, V_MAIN], gl.float32, dv_layout),)
    if V_REST > 0:
        dv = (dv[0], gl.zeros([BN, V_REST], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_REST, 16])))
    b, kv_h, col0, begin_k, num_keys = key_tile(
        gl.program_id(0), cu_seqlens_k_ptr, num_seqs, total_k, longest_k, batch, kv_heads, head_group, BN
    )
    b, begin_q, q_len = other_side(cu_seqlens_q_ptr, b, num_seqs, total_q, longest_q)
    kv_len = if_any(cu_seqlens_q_ptr, q_len, num_keys, 1)
    cols = col0 + gl.arange(0, BN, layout=col_layout)
    # Keys beyond the last are taken as the last: they read what exists.
    k = gl.minimum(cols, kv_len - 1)[:, None]
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    mbarrier.wait(kv_full, 0)
    for _ in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        qk_scale = scale * 1.4426950408889634
        # The rows that see each key, as far as these are one interval.
        seen_from = gl.where((cols < kv_len)[:, None], gl.maximum(k + q_len - kv_len, 0), 1 << 30)
        num_tiles, num_mixed, first = _queries_of(col0, q_len, kv_len, BM, BN)

        # Mixed tiles.
        for i in range(0, num_mixed):
            start = _query_tile(i, first, BM)
            slot = slot_of(n, STAGES)
            stage = slot[0]
            q_channel.wait(slot)
            scores = start_scores((k_tile,), (q_s.index(stage).reshape([BM, WIDTH]),), zero, MAIN, REST)
            qk = warpgroup_mma_wait(0, deps=(scores,))
            lse = lse_s.index(stage).load(row_layout)[None, :]
            qk = gl.where(rows_from(seen_from - start, BM, row_layout), qk, -float("inf"))
            p = gl.exp2(qk * qk_scale - lse)
            store_fragments(p_s.index(stage), p)
            mbarrier.arrive(p_full.index(stage))
            p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
            do_channel.wait(slot)
            product = start_product(p_operand, (do_s.index(stage).reshape([BM, V_WIDTH]),), dv, V_MAIN, V_REST)
            dv = await_product(product, V_REST)
            do_channel.release(slot)
            n += 1

        # Full tiles: each row sees each key, no mask.
        for _ in range(num_mixed, num_tiles):
            slot = slot_of(n, STAGES)
            stage = slot[0]
            q_channel.wait(slot)
            scores = start_scores((k_tile,), (q_s.index(stage).reshape([BM, WIDTH]),), zero, MAIN, REST)
            qk = warpgroup_mma_wait(0, deps=(scores,))
            lse = lse_s.index(stage).load(row_layout)[None, :]
            p = gl.exp2(qk * qk_scale - lse)
            store_fragments(p_s.index(stage), p)
            mbarrier.arrive(p_full.index(stage))
            p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
            do_channel.wait(slot)
            product = start_product(p_operand, (do_s.index(stage).reshape([BM, V_WIDTH]),), dv, V_MAIN, V_REST)
            dv = await_product(product, V_REST)
            do_channel.release(slot)
            n += 1

    # Epilogue. When V has been read for the last time it takes dV, which TMA writes as far as there are keys.
    barrier_sync(8)
    v_tile.slice(0, V_MAIN, 1).store(dv[0].to(v_s.dtype))
    if V_REST > 0:
        v_tile.slice(V_MAIN, V_REST, 1).store(dv[1].to(v_s.dtype))
    fence_async_shared()
    k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, num_keys, col0)
    tma_store(dv_desc, place_of(dv_desc, k_b, kv_h, k_row, 0), v_s)
    tma.store_wait(0)


@gluon.jit
def _wide_dk_consumer(
    shared, kv_full, q_channel, do_channel, p_full, dk_desc, sizes,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, HEAD_DIM: gl.constexpr, V_HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
):
    # Four warps: dP^T = V dO^T, dS^T = P^T (dP^T - delta) with P of the others, dK += dS^T Q.
    scale, batch, heads, kv_heads, longest_q, longest_k, head_group = sizes
    q_s, do_s, k_s, v_s, delta_s, p_s = shared
    # Tiles lie in WIDTH columns, a power of two; products take powers of two, MAIN and REST.
    WIDTH: gl.constexpr = k_s.type.shape[-1]
    MAIN: gl.constexpr = WIDTH if HEAD_DIM == WIDTH else WIDTH // 2
    REST: gl.constexpr = HEAD_DIM - MAIN
    V_WIDTH: gl.constexpr = v_s.type.shape[-1]
    V_MAIN: gl.constexpr = V_WIDTH if V_HEAD_DIM == V_WIDTH else V_WIDTH // 2
    V_REST: gl.constexpr = V_HEAD_DIM - V_MAIN
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 16])
    row_layout: gl.constexpr = gl.SliceLayout(0, scores_layout)
    dk_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MAIN, 16])
    dk_operand: gl.constexpr = gl.DotOperandLayout(0, dk_layout, 2)
    zero = gl.zeros([BN, BM], gl.float32, scores_layout)
    k_tile = k_s.reshape([BN, WIDTH])
    v_tile = v_s.reshape([BN, V_WIDTH])
    dk = (gl.zeros([BN, MAIN], gl.float32, dk_layout),)
    if REST > 0:
        dk = (dk[0], gl.zeros([BN, REST], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST, 16])))
    b, kv_h, col0, begin_k, num_keys = key_tile(
        gl.program_id(0), cu_seqlens_k_ptr, num_seqs, total_k, longest_k, batch, kv_heads, head_group, BN
    )
    b, begin_q, q_len = other_side(cu_seqlens_q_ptr, b, num_seqs, total_q, longest_q)
    kv_len = if_any(cu_seqlens_q_ptr, q_len, num_keys, 1)
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    mbarrier.wait(kv_full, 0)
    for _ in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        num_tiles, _, _ = _queries_of(col0, q_len, kv_len, BM, BN)
        for _ in range(num_tiles):
            slot = slot_of(n, STAGES)
            stage = slot[0]
            do_channel.wait(slot)
            products = start_scores((v_tile,), (do_s.index(stage).reshape([BM, V_WIDTH]),), zero, V_MAIN, V_REST)
            dp = warpgroup_mma_wait(0, deps=(products,))
            dp -= delta_s.index(stage).load(row_layout)[None, :]
            do_channel.release(slot)
            mbarrier.wait(p_full.index(stage), slot[1])
            ds = load_fragments(p_s.index(stage), scores_layout) * dp
            q_channel.wait(slot)
            ds_operand = gl.convert_layout(ds.to(k_s.dtype), dk_operand)
            product = start_product(ds_operand, (q_s.index(stage).reshape([BM, WIDTH]),), dk, MAIN, REST)
            dk = await_product(product, REST)
            q_channel.release(slot)
            n += 1
    barrier_arrive(8)

    # Epilogue. K has been read when the last P was made: it takes dK.
    k_tile.slice(0, MAIN, 1).store((dk[0] * scale).to(k_s.dtype))
    if REST > 0:
        k_tile.slice(MAIN, REST, 1).store((dk[1] * scale).to(k_s.dtype))
    fence_async_shared()
    k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, num_keys, col0)
    tma_store(dk_desc, place_of(dk_desc, k_b, kv_h, k_row, 0), k_s)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "batch", "num_rows", "head_group", "num_seqs",
    "total_q", "total_k",
])
def _backward_kv_wide_sm90(
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, dk_desc, dv_desc,
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, HEAD_DIM: gl.constexpr, V_HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
):
    # Grid: one program for each tile of BN = 64 keys of each head of K and V of each batch element. It walks along the
    # queries as _backward_kv_sm90 does and leaves dq to _backward_q: a thread holds 64 x 256 of either dk or dv.
    # One warp loads (_wide_producer), four warps make p and dv (_wide_dv_consumer), four ds and dk (_wide_dk_consumer).
    # Channels say when a tile has arrived in shared memory, and when all who read it are done.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up; what lies beyond reads as zero.
    # Packed sequences are where cu_seqlens are not None; see key_tile for both.
    q_s = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + q_desc.block_type.shape, q_desc.layout)
    do_s = gl.allocate_shared_memory(do_desc.dtype, [STAGES] + do_desc.block_type.shape, do_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, k_desc.block_type.shape, k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, v_desc.block_type.shape, v_desc.layout)
    lse_s = gl.allocate_shared_memory(gl.float32, [STAGES, BM], lse_desc.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, [STAGES, BM], delta_desc.layout)
    p_s = gl.allocate_shared_memory(gl.float32, [STAGES, 32, 128], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    kv_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full, count=1)
    # The product for dK, the last that reads Q and P, comes after all that the others do with them.
    q_channel = make_channel(STAGES, 1)
    do_channel = make_channel(STAGES, 2)
    p_full = make_barriers(STAGES)
    for_dv = (q_s, do_s, k_s, v_s, lse_s, p_s)
    for_dk = (q_s, do_s, k_s, v_s, delta_s, p_s)
    loads = (batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    # fmt: off
    gl.warp_specialize([
        (_wide_dv_consumer, (
            for_dv, kv_full, q_channel, do_channel, p_full, dv_desc,
            (scale, batch, heads, kv_heads, q_len, kv_len, head_group), cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs,
            total_q, total_k, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
        )),
        (_wide_dk_consumer, (
            for_dk, kv_full, q_channel, do_channel, p_full, dk_desc,
            (scale, batch, heads, kv_heads, q_len, kv_len, head_group), cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs,
            total_q, total_k, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
        )),
        (_wide_producer, (
            q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, (q_s, do_s, k_s, v_s, lse_s, delta_s), kv_full,
            q_channel, do_channel, loads, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN,
            STAGES,
        )),
    ], [4, 1], [240, 24])
    # fmt: on
