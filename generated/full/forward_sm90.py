"""full: out and lse, for Hopper.

Generated from variants/full.yaml by

    flashgen build variants/full.yaml

Do not edit: change the spec and build again.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from flashgen.runtime.device.sm90.barriers import make_channel, ping_pong_arrive, ping_pong_sync
from flashgen.runtime.device.sm90.positions import masked_keys
from flashgen.runtime.device.sm90.products import await_product, scale_rows, start_product, start_scores, zero_sums
from flashgen.runtime.device.sm90.sequences import (
    count_tiles,
    describe_sequences,
    first_stat,
    hide_if_none,
    next_tile,
    other_side,
    output_strides,
    query_tile,
    some_keys,
    tma_place,
)
from flashgen.runtime.device.sm90.softmax import packed, softmax_step_scaled, unpacked
from flashgen.runtime.device.sm90.tiles import allocate_tiles, load_keys, load_tile, load_values, place_of, tile_at
from flashgen.runtime.gluon import tma_store


@gluon.jit
def _work(
    index, batch, heads, q_len, kv_len, BM: gl.constexpr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k
):
    """What `query_tile` says of tile `index` of queries, its first row."""
    b, h, tile, begin_q, q_len = query_tile(index, cu_seqlens_q_ptr, num_seqs, total_q, q_len, batch, heads, None, BM)
    b, begin_k, num_keys = other_side(cu_seqlens_k_ptr, b, num_seqs, total_k, kv_len)
    row0 = tile * BM
    return b, h, row0, begin_q, q_len, begin_k, num_keys


@gluon.jit
def _producer(
    q_ptr, k_ptr, v_ptr, q_strides, k_strides, v_strides, shared, q_channel, k_channel, v_channel, sizes,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, CONSUMERS: gl.constexpr, SPLIT: gl.constexpr,
):
    # One warp: brings the tiles of Q, K and V into shared memory by TMA as soon as the consumers have made room.
    batch, heads, kv_heads, longest_q, longest_k, head_dim, v_head_dim = sizes
    q_s, k_s, v_s = shared
    k_descs = describe_sequences(cu_seqlens_k_ptr, k_ptr, batch, kv_heads, longest_k, head_dim, k_strides, k_s, SPLIT)
    q_descs = describe_sequences(cu_seqlens_q_ptr, q_ptr, batch, heads, longest_q, head_dim, q_strides, q_s, SPLIT)
    v_descs = describe_sequences(cu_seqlens_k_ptr, v_ptr, batch, kv_heads, longest_k, v_head_dim, v_strides, v_s, SPLIT)
    ROWS: gl.constexpr = BM // CONSUMERS
    num_q_tiles = count_tiles(cu_seqlens_q_ptr, num_seqs, total_q, longest_q, batch, heads, BM)
    num_tiles = gl.cdiv(longest_k, BN)
    index = next_tile(gl.program_id(0), None, cu_seqlens_q_ptr, num_seqs, total_q, longest_q, heads, BM)
    ticket = 0  # tiles of queries so far
    # Tiles of keys so far. V comes after K of the tile that follows, also
    # where that is the first of the next tile of queries: there is room for K sooner.
    n = 0
    v_b = 0
    v_head = 0
    v_row = 0
    while index < num_q_tiles:
        _, h, row0, begin_q, q_len, begin_k, num_keys = _work(
            index, batch, heads, longest_q, longest_k, BM, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q,
            total_k,
        )
        kv_h = h // (heads // kv_heads)
        if cu_seqlens_k_ptr is not None:
            num_tiles = gl.cdiv(some_keys(cu_seqlens_k_ptr, num_keys), BN)
        for i in range(num_tiles):
            k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, num_keys, (num_tiles - 1 - i) * BN)
            load_keys(k_descs, k_b, kv_h, k_row, n, k_s, k_channel, v_channel, SPLIT)
            if n > 0:
                load_values(v_descs, v_b, v_head, v_row, n - 1, v_s, k_channel, v_channel, SPLIT)
            v_b, v_head, v_row = k_b, kv_h, k_row
            if i == 0:
                # An earlier tile may still read Q when there is room for keys already.
                for each in gl.static_range(CONSUMERS):
                    q_b, q_row = tma_place(cu_seqlens_q_ptr, begin_q, q_len, row0 + each * ROWS)
                    slot = q_channel.slot(ticket, each)
                    full = q_channel.acquire(slot)
                    load_tile(q_descs, q_b, h, q_row, q_s, slot[0], full, SPLIT)
            n += 1
        ticket += 1
        index = next_tile(index + gl.num_programs(0), None, cu_seqlens_q_ptr, num_seqs, total_q, longest_q, heads, BM)
    if cu_seqlens_q_ptr is None or n > 0:
        load_values(v_descs, v_b, v_head, v_row, n - 1, v_s, k_channel, v_channel, SPLIT)


@gluon.jit
def _consumer(
    CONSUMER: gl.constexpr, out_desc, out_s, shared, q_channel, k_channel, v_channel, lse_ptr, max_ptr, sizes,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, HEAD_DIM: gl.constexpr, V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr, CONSUMERS: gl.constexpr, PING_PONG: gl.constexpr, SPLIT: gl.constexpr,
):
    # Four warps: ROWS rows of each tile of queries.
    # q, k: positions of the tile's rows [ROWS, 1] and of a tile's keys [1, BN]. m, l, p: see softmax_step_scaled.
    # acc: the sums for the MAIN and the REST columns of V.
    scale, batch, heads, longest_q, longest_k = sizes
    q_s, k_s, v_s = shared
    ROWS: gl.constexpr = BM // CONSUMERS
    # Tiles of Q, K and V lie in WIDTH columns, a power of two, or SPLIT in two parts; products take powers of two, MAIN
    # and REST, those with V at most 128 columns at a time.
    WIDTH: gl.constexpr = triton.next_power_of_2(HEAD_DIM)
    MAIN: gl.constexpr = WIDTH if HEAD_DIM == WIDTH else WIDTH // 2
    REST: gl.constexpr = HEAD_DIM - MAIN
    V_WIDTH: gl.constexpr = triton.next_power_of_2(V_HEAD_DIM)
    OUT_WIDTH: gl.constexpr = out_s.type.shape[-1]
    V_MAIN: gl.constexpr = OUT_WIDTH
    V_REST: gl.constexpr = V_HEAD_DIM - V_MAIN
    PRODUCTS: gl.constexpr = 1 if V_REST == 0 else 2
    qk_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, qk_layout)
    col_layout: gl.constexpr = gl.SliceLayout(0, qk_layout)
    l_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_MAIN, 16])
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_REST, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    out_tile = out_s.index(CONSUMER).reshape([ROWS, OUT_WIDTH])
    zero = gl.zeros([ROWS, BN], gl.float32, qk_layout)
    num_q_tiles = count_tiles(cu_seqlens_q_ptr, num_seqs, total_q, longest_q, batch, heads, BM)
    num_tiles = gl.cdiv(longest_k, BN)
    # A round begins a tile of queries and finishes that of the round before. The first one has nothing to finish, the
    # last one nothing to begin: their products are of what lies in shared memory, and nobody reads them.
    ticket = 0  # tiles of queries so far
    n = 0  # tiles of keys so far
    b = 0
    h = 0
    row0 = 0
    begin_q = 0
    q_len = longest_q
    m = gl.zeros([ROWS], gl.float32, row_layout)
    l = gl.zeros([ROWS, 8], gl.float32, l_layout)
    pairs = packed(zero, out_s.dtype)
    acc = zero_sums(ROWS, V_MAIN, V_REST, acc_layout, rest_layout)
    if CONSUMER == CONSUMERS - 1:
        ping_pong_arrive(CONSUMER, CONSUMERS, PING_PONG)
    index = gl.program_id(0) - gl.num_programs(0)
    while index < num_q_tiles:
        index = next_tile(index + gl.num_programs(0), None, cu_seqlens_q_ptr, num_seqs, total_q, longest_q, heads, BM)
        begins = index < num_q_tiles
        finishes = ticket > 0

        # Start the first scores of this tile and the last product of the one before.
        last = v_channel.slot(n - 1 + 2 * STAGES)  # that of n - 1, and a place where n is 0
        slot = k_channel.slot(n)
        q_slot = q_channel.slot(ticket, CONSUMER)
        q_tile = tile_at(q_s, q_slot[0], SPLIT)
        q_channel.wait(q_slot, begins)
        k_channel.wait(slot, begins)
        ping_pong_sync(CONSUMER, PING_PONG)
        scores = start_scores(q_tile, tile_at(k_s, slot[0], SPLIT), zero, MAIN, REST, SPLIT)
        v_channel.wait(last, finishes)
        p = unpacked(pairs, out_s.dtype, p_layout)
        product = start_product(p, tile_at(v_s, last[0], SPLIT), acc, V_MAIN, V_REST, SPLIT)
        ping_pong_arrive(CONSUMER, CONSUMERS, PING_PONG)

        # Beside them: by what to scale the sums of the tile before, and its lse.
        l = gl.convert_layout(gl.sum(l, 1), row_layout)
        empty = l == 0
        factor = 1.0 / gl.where(empty, 1.0, l)
        lse = (m + gl.log2(l)) * 0.6931471805599453
        rows = row0 + gl.arange(0, ROWS, layout=row_layout)
        stat_rows = first_stat(cu_seqlens_q_ptr, b, h, heads, begin_q, q_len, total_q) + rows
        gl.store(lse_ptr + stat_rows, gl.where(empty, -float("inf"), lse), mask=(rows < q_len) & finishes)
        if max_ptr is not None:
            gl.store(
                max_ptr + stat_rows,
                gl.where(empty, -float("inf"), m * 0.6931471805599453),
                mask=(rows < q_len) & finishes,
            )
        out_b, out_row0 = tma_place(cu_seqlens_q_ptr, begin_q, q_len, row0)
        out_h = h

        # The tile that begins.
        b, h, row0, begin_q, q_len, begin_k, num_keys = _work(
            index, batch, heads, longest_q, longest_k, BM, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q,
            total_k,
        )
        kv_len = some_keys(cu_seqlens_k_ptr, num_keys)
        if cu_seqlens_k_ptr is not None:
            num_tiles = gl.cdiv(kv_len, BN)
        row0 += CONSUMER * ROWS
        rows = row0 + gl.arange(0, ROWS, layout=row_layout)
        qk_scale = scale * 1.4426950408889634

        # Its first tile of keys, as if it were mixed.
        # Always 0, which the compiler does not know: it would compute the keys' positions once and keep them all.
        i = gl.where(ticket < 0, 1, 0)
        start = (num_tiles - 1 - i) * BN
        qk = warpgroup_mma_wait(PRODUCTS, deps=(scores,))
        k_channel.release(slot, begins)
        k = masked_keys(start, BN, col_layout)
        qk = gl.where(k < kv_len, qk, -float("inf"))
        qk = hide_if_none(cu_seqlens_k_ptr, num_keys, qk)

        # A finite floor for the maximum: -inf - floor is -inf, so that a row that sees no key stays at l = 0.
        m = gl.full([ROWS], -3.0e38, gl.float32, row_layout)
        l = gl.zeros([ROWS, 8], gl.float32, l_layout)
        p, alpha, m, l = softmax_step_scaled(qk, m, l, qk_scale)

        # The output of the tile before, which TMA writes as far as there are rows and columns.
        acc = scale_rows(await_product(product, V_REST), factor, V_REST)
        v_channel.release(last, finishes)
        if finishes:
            tma.store_wait(0)
            out_tile.store(acc[0].to(out_s.dtype))
            if V_REST > 0:
                # Shared memory for the output holds one part of it.
                fence_async_shared()
                tma_store(out_desc, place_of(out_desc, out_b, out_h, out_row0, 0), out_s.index(CONSUMER))
                tma.store_wait(0)
                out_tile.slice(0, V_REST, 1).store(acc[1].to(out_s.dtype))
            fence_async_shared()
            tma_store(out_desc, place_of(out_desc, out_b, out_h, out_row0, V_WIDTH - OUT_WIDTH), out_s.index(CONSUMER))
        acc = zero_sums(ROWS, V_MAIN, V_REST, acc_layout, rest_layout)
        pairs = packed(p, out_s.dtype)

        # The other tiles: each row sees each key.
        for _ in range(1, gl.where(begins, num_tiles, 0)):
            # Start the scores of this tile and the product of the last one; the softmax runs beside the product.
            last = v_channel.slot(n)
            n += 1
            slot = k_channel.slot(n)
            k_channel.wait(slot)
            ping_pong_sync(CONSUMER, PING_PONG)
            scores = start_scores(q_tile, tile_at(k_s, slot[0], SPLIT), zero, MAIN, REST, SPLIT)
            v_channel.wait(last)
            p = unpacked(pairs, out_s.dtype, p_layout)
            product = start_product(p, tile_at(v_s, last[0], SPLIT), acc, V_MAIN, V_REST, SPLIT)
            ping_pong_arrive(CONSUMER, CONSUMERS, PING_PONG)
            qk = warpgroup_mma_wait(PRODUCTS, deps=(scores,))
            k_channel.release(slot)

            p, alpha, m, l = softmax_step_scaled(qk, m, l, qk_scale)
            acc = await_product(product, V_REST)
            v_channel.release(last)
            acc = scale_rows(acc, alpha, V_REST)
            pairs = packed(p, out_s.dtype)

        q_channel.release(q_slot)
        n += 1
        ticket += 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "batch", "num_seqs", "total_q", "total_k",
])
def _forward_sm90(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, max_ptr,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    scale, batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, HEAD_DIM: gl.constexpr, V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr, CONSUMERS: gl.constexpr, PING_PONG: gl.constexpr, SPLIT: gl.constexpr,
):
    # Grid: at most as many programs as the GPU holds at once; they share the tiles of BM query rows of all heads.
    # Packed sequences are where cu_seqlens are not None; see query_tile for both.
    # One warp loads (_producer), CONSUMERS groups of four warps compute (_consumer). A channel says
    # when a tile has arrived in shared memory, and when all who read it are done.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up; what lies beyond reads as zero.
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    PACKED: gl.constexpr = cu_seqlens_q_ptr is not None
    ROWS: gl.constexpr = BM // CONSUMERS
    WIDTH: gl.constexpr = triton.next_power_of_2(HEAD_DIM)
    V_WIDTH: gl.constexpr = triton.next_power_of_2(V_HEAD_DIM)
    # The output leaves through shared memory, 128 columns at a time.
    OUT_WIDTH: gl.constexpr = V_WIDTH if V_WIDTH <= 128 else 128
    # Where SPLIT, tiles whose width is no power of two lie in two parts, and V of a tile takes the place of its K.
    MAIN: gl.constexpr = WIDTH // 2 if SPLIT else WIDTH
    REST: gl.constexpr = HEAD_DIM - MAIN
    # Q of the next tile waits beside that of this one where there is room.
    Q_SLOTS: gl.constexpr = 2 if WIDTH <= 128 else 1
    q_s = (allocate_tiles(dtype, Q_SLOTS * CONSUMERS, ROWS, MAIN, PACKED),)
    k_s = (allocate_tiles(dtype, STAGES, BN, MAIN, PACKED),)
    if SPLIT:
        q_s = (q_s[0], allocate_tiles(dtype, Q_SLOTS * CONSUMERS, ROWS, REST, PACKED))
        k_s = (k_s[0], allocate_tiles(dtype, STAGES, BN, REST, PACKED))
        v_s = k_s
    else:
        v_s = (allocate_tiles(dtype, STAGES, BN, V_WIDTH, PACKED),)
    out_s = allocate_tiles(dtype, CONSUMERS, ROWS, OUT_WIDTH, PACKED)
    out_strides = output_strides(cu_seqlens_q_ptr, q_len, heads, v_head_dim)
    (out_desc,) = describe_sequences(
        cu_seqlens_q_ptr, out_ptr, batch, heads, q_len, v_head_dim, out_strides, (out_s,), False
    )
    q_channel = make_channel(Q_SLOTS, 1, CONSUMERS)
    k_channel = make_channel(STAGES, CONSUMERS)
    v_channel = make_channel(STAGES, CONSUMERS)
    shared = (q_s, k_s, v_s)
    q_strides = (stride_qb, stride_qh, stride_qm)
    k_strides = (stride_kb, stride_kh, stride_kn)
    v_strides = (stride_vb, stride_vh, stride_vn)
    loads = (batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim)
    computes = (scale, batch, heads, q_len, kv_len)
    # Registers a thread: 240 for two consumers, 160 for three, 24 for the producer; the launch gives their mean.
    # fmt: off
    if CONSUMERS == 2:
        gl.warp_specialize([
            (_consumer, (
                0, out_desc, out_s, shared, q_channel, k_channel, v_channel, lse_ptr, max_ptr, computes,
                cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_consumer, (
                1, out_desc, out_s, shared, q_channel, k_channel, v_channel, lse_ptr, max_ptr, computes,
                cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_producer, (
                q_ptr, k_ptr, v_ptr, q_strides, k_strides, v_strides, shared, q_channel, k_channel, v_channel, loads,
                cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, CONSUMERS, SPLIT,
            )),
        ], [4, 1], [240, 24])
    else:
        gl.warp_specialize([
            (_consumer, (
                0, out_desc, out_s, shared, q_channel, k_channel, v_channel, lse_ptr, max_ptr, computes,
                cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_consumer, (
                1, out_desc, out_s, shared, q_channel, k_channel, v_channel, lse_ptr, max_ptr, computes,
                cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_consumer, (
                2, out_desc, out_s, shared, q_channel, k_channel, v_channel, lse_ptr, max_ptr, computes,
                cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_producer, (
                q_ptr, k_ptr, v_ptr, q_strides, k_strides, v_strides, shared, q_channel, k_channel, v_channel, loads,
                cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, CONSUMERS, SPLIT,
            )),
        ], [4, 4, 1], [160, 160, 24])
    # fmt: on
