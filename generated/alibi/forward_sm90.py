"""alibi: out and lse, for Hopper.

Generated from variants/alibi.yaml by

    flashgen build variants/alibi.yaml

Do not edit: change the spec and build again.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from flashgen.runtime.device.sm90.barriers import make_channel, ping_pong_arrive, ping_pong_sync
from flashgen.runtime.device.sm90.positions import affine_bias, masked_keys
from flashgen.runtime.device.sm90.products import await_product, scale_rows, start_product, start_scores, zero_sums
from flashgen.runtime.device.sm90.scheduler import make_scheduler, request_tile, reset_counter
from flashgen.runtime.device.sm90.sequences import (
    count_tiles,
    describe_sequences,
    first_stat,
    hide_if_none,
    last_row,
    next_tile,
    other_side,
    output_strides,
    query_tile,
    some_keys,
    tma_place,
)
from flashgen.runtime.device.sm90.softmax import packed, softmax_step_shifted, unpacked
from flashgen.runtime.device.sm90.tiles import allocate_tiles, load_keys, load_tile, load_values, place_of, tile_at
from flashgen.runtime.gluon import tma_store

from .pair import _visible


@gluon.jit
def _work(
    index, batch, heads, q_len, kv_len, head_group, BM: gl.constexpr, BN: gl.constexpr, cu_seqlens_q_ptr,
    cu_seqlens_k_ptr, num_seqs, total_q, total_k,
):
    """What `query_tile` says of tile `index` of queries, its first row; how many tiles of keys it sees, and which.

    Of num_tiles tiles of keys, the first num_mixed need the mask; see _key_tile.
    """
    b, h, tile, begin_q, q_len = query_tile(
        index, cu_seqlens_q_ptr, num_seqs, total_q, q_len, batch, heads, head_group, BM
    )
    b, begin_k, num_keys = other_side(cu_seqlens_k_ptr, b, num_seqs, total_k, kv_len)
    row0 = tile * BM
    kv_len = some_keys(cu_seqlens_k_ptr, num_keys)
    q_first = row0 + (kv_len - q_len)
    q_last = gl.minimum(row0 + BM, q_len) - 1 + (kv_len - q_len)

    # Keys below stop are seen by some row of the tile, those below full_end by each row.
    stop = q_last + 1
    full_end = gl.maximum(q_first + 1, 0) // BN * BN
    num_tiles = gl.maximum(gl.cdiv(stop, BN), 1)
    num_mixed = num_tiles - full_end // BN
    return b, h, row0, begin_q, q_len, begin_k, num_keys, num_tiles, num_mixed


@gluon.jit
def _key_tile(i, num_tiles, BN: gl.constexpr):
    """The first key of tile i: mixed tiles come before full ones."""
    return (num_tiles - 1 - i) * BN


@gluon.jit
def _producer(
    q_ptr, k_ptr, v_ptr, q_strides, k_strides, v_strides, shared, scheduler, q_channel, k_channel, v_channel,
    counter_ptr, sizes,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, CONSUMERS: gl.constexpr, SPLIT: gl.constexpr,
):
    # One warp: brings the tiles of Q, K and V into shared memory by TMA as soon as the consumers have made room.
    batch, heads, kv_heads, longest_q, longest_k, head_dim, v_head_dim, head_group = sizes
    q_s, k_s, v_s = shared
    k_descs = describe_sequences(cu_seqlens_k_ptr, k_ptr, batch, kv_heads, longest_k, head_dim, k_strides, k_s, SPLIT)
    q_descs = describe_sequences(cu_seqlens_q_ptr, q_ptr, batch, heads, longest_q, head_dim, q_strides, q_s, SPLIT)
    v_descs = describe_sequences(cu_seqlens_k_ptr, v_ptr, batch, kv_heads, longest_k, v_head_dim, v_strides, v_s, SPLIT)
    ROWS: gl.constexpr = BM // CONSUMERS
    num_q_tiles = count_tiles(cu_seqlens_q_ptr, num_seqs, total_q, longest_q, batch, heads, BM)
    index = next_tile(gl.program_id(0), counter_ptr, cu_seqlens_q_ptr, num_seqs, total_q, longest_q, heads, BM)
    ticket = 0  # tiles of queries so far
    # Tiles of keys so far. V comes after K of the tile that follows, also
    # where that is the first of the next tile of queries: there is room for K sooner.
    n = 0
    v_b = 0
    v_head = 0
    v_row = 0
    answer = gl.zeros([32], gl.int32, gl.BlockedLayout([1], [32], [1], [0]))
    while index < num_q_tiles:
        scheduler.announce(ticket, index)
        _, h, row0, begin_q, q_len, begin_k, num_keys, num_tiles, _ = _work(
            index, batch, heads, longest_q, longest_k, head_group, BM, BN, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs,
            total_q, total_k,
        )
        kv_h = h // (heads // kv_heads)
        for i in range(num_tiles):
            if i == gl.maximum(num_tiles - 2, 0):
                # Tiles differ in length: whoever is nearly done takes the next one.
                answer = request_tile(counter_ptr)
            k_b, k_row = tma_place(cu_seqlens_k_ptr, begin_k, num_keys, _key_tile(i, num_tiles, BN))
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
        index = gl.num_programs(0) + gl.sum(answer, 0)
        index = next_tile(index, counter_ptr, cu_seqlens_q_ptr, num_seqs, total_q, longest_q, heads, BM)
    scheduler.announce(ticket, index)
    if cu_seqlens_q_ptr is None or n > 0:
        load_values(v_descs, v_b, v_head, v_row, n - 1, v_s, k_channel, v_channel, SPLIT)
    reset_counter(counter_ptr)


@gluon.jit
def _consumer(
    CONSUMER: gl.constexpr, out_desc, out_s, shared, scheduler, q_channel, k_channel, v_channel, lse_ptr, max_ptr,
    slopes_ptr, sizes,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: gl.constexpr, BN: gl.constexpr, HEAD_DIM: gl.constexpr, V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr, CONSUMERS: gl.constexpr, PING_PONG: gl.constexpr, SPLIT: gl.constexpr,
):
    # Four warps: ROWS rows of each tile of queries.
    # q, k: positions of the tile's rows [ROWS, 1] and of a tile's keys [1, BN]. m, l, p: see softmax_step_shifted.
    # acc: the sums for the MAIN and the REST columns of V.
    scale, batch, heads, longest_q, longest_k, head_group = sizes
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
    q_layout: gl.constexpr = gl.DotOperandLayout(0, qk_layout, 2)
    # Where there are registers for Q, the products of full tiles read only K and V from shared memory.
    HOLD_Q: gl.constexpr = CONSUMERS == 2 and HEAD_DIM == WIDTH and WIDTH <= 64
    out_tile = out_s.index(CONSUMER).reshape([ROWS, OUT_WIDTH])
    zero = gl.zeros([ROWS, BN], gl.float32, qk_layout)
    num_q_tiles = count_tiles(cu_seqlens_q_ptr, num_seqs, total_q, longest_q, batch, heads, BM)
    # A round begins a tile of queries and finishes that of the round before. The first one has nothing to finish, the
    # last one nothing to begin: their products are of what lies in shared memory, and nobody reads them.
    ticket = 0  # tiles of queries so far
    n = 0  # tiles of keys so far
    b = 0
    h = 0
    row0 = 0
    begin_q = 0
    q_len = longest_q
    row_shift = gl.zeros([ROWS], gl.float32, row_layout)
    m = gl.zeros([ROWS], gl.float32, row_layout)
    l = gl.zeros([ROWS, 8], gl.float32, l_layout)
    pairs = packed(zero, out_s.dtype)
    acc = zero_sums(ROWS, V_MAIN, V_REST, acc_layout, rest_layout)
    if CONSUMER == CONSUMERS - 1:
        ping_pong_arrive(CONSUMER, CONSUMERS, PING_PONG)
    index = 0
    while index < num_q_tiles:
        index = scheduler.take(ticket)
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
        lse = (m + gl.log2(l) + row_shift) * 0.6931471805599453
        rows = row0 + gl.arange(0, ROWS, layout=row_layout)
        stat_rows = first_stat(cu_seqlens_q_ptr, b, h, heads, begin_q, q_len, total_q) + rows
        gl.store(lse_ptr + stat_rows, gl.where(empty, -float("inf"), lse), mask=(rows < q_len) & finishes)
        if max_ptr is not None:
            gl.store(
                max_ptr + stat_rows,
                gl.where(empty, -float("inf"), (m + row_shift) * 0.6931471805599453),
                mask=(rows < q_len) & finishes,
            )
        out_b, out_row0 = tma_place(cu_seqlens_q_ptr, begin_q, q_len, row0)
        out_h = h

        # The tile that begins.
        b, h, row0, begin_q, q_len, begin_k, num_keys, num_tiles, num_mixed = _work(
            index, batch, heads, longest_q, longest_k, head_group, BM, BN, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs,
            total_q, total_k,
        )
        kv_len = some_keys(cu_seqlens_k_ptr, num_keys)
        row0 += CONSUMER * ROWS
        rows = row0 + gl.arange(0, ROWS, layout=row_layout)
        # Rows beyond the last are taken as the last: they read what exists.
        q = (gl.minimum(rows, last_row(cu_seqlens_k_ptr, num_keys, q_len)) + (kv_len - q_len))[:, None]
        q_first = row0 + (kv_len - q_len)
        qk_scale = scale * 1.4426950408889634
        slopes_h = gl.load(slopes_ptr + h)
        slopes_h_scaled = slopes_h * 1.4426950408889634
        # What a score gains from one key to the next goes into the dot products, in their units: their sums begin with
        # it. Scales below 1e-30 are taken as that; then no dot product counts.
        qk_scale = gl.maximum(qk_scale, 1e-30)
        per_key = slopes_h_scaled / qk_scale

        # Its first tile of keys, as if it were mixed.
        i = 0
        start = _key_tile(i, num_tiles, BN)
        qk = warpgroup_mma_wait(PRODUCTS, deps=(scores,))
        k_channel.release(slot, begins)
        qk += affine_bias(per_key, ROWS, BN, qk_layout)
        k = masked_keys(start, BN, col_layout)
        shift = -((q_first - start).to(gl.float32) * slopes_h_scaled)
        qk = gl.where(_visible(q, k), qk, -float("inf"))
        qk = hide_if_none(cu_seqlens_k_ptr, num_keys, qk)

        # A finite floor for the maximum: -inf - floor is -inf, so that a row that sees no key stays at l = 0.
        m = gl.full([ROWS], -3.0e38, gl.float32, row_layout)
        l = gl.zeros([ROWS, 8], gl.float32, l_layout)
        p, alpha, m, l = softmax_step_shifted(qk, m, l, qk_scale, shift)

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
        bias = affine_bias(per_key, ROWS, BN, qk_layout)

        # The other mixed tiles.
        for i in range(1, gl.where(begins, num_mixed, 0)):
            # Start the scores of this tile and the product of the last one; the softmax runs beside the product.
            last = v_channel.slot(n)
            n += 1
            slot = k_channel.slot(n)
            k_channel.wait(slot)
            ping_pong_sync(CONSUMER, PING_PONG)
            scores = start_scores(q_tile, tile_at(k_s, slot[0], SPLIT), bias, MAIN, REST, SPLIT, ADD=True)
            v_channel.wait(last)
            p = unpacked(pairs, out_s.dtype, p_layout)
            product = start_product(p, tile_at(v_s, last[0], SPLIT), acc, V_MAIN, V_REST, SPLIT)
            ping_pong_arrive(CONSUMER, CONSUMERS, PING_PONG)
            start = _key_tile(i, num_tiles, BN)
            qk = warpgroup_mma_wait(PRODUCTS, deps=(scores,))
            k_channel.release(slot)
            k = masked_keys(start, BN, col_layout)
            shift = -((q_first - start).to(gl.float32) * slopes_h_scaled)
            qk = gl.where(_visible(q, k), qk, -float("inf"))
            p, alpha, m, l = softmax_step_shifted(qk, m, l, qk_scale, shift)
            acc = await_product(product, V_REST)
            v_channel.release(last)
            acc = scale_rows(acc, alpha, V_REST)
            pairs = packed(p, out_s.dtype)
            bias = affine_bias(per_key, ROWS, BN, qk_layout)

        # Full tiles: each row sees each key, no mask.
        if HOLD_Q:
            q_tile = (q_tile[0].load(q_layout),)
        for i in range(gl.maximum(num_mixed, 1), gl.where(begins, num_tiles, 0)):
            # Start the scores of this tile and the product of the last one; the softmax runs beside the product.
            last = v_channel.slot(n)
            n += 1
            slot = k_channel.slot(n)
            k_channel.wait(slot)
            ping_pong_sync(CONSUMER, PING_PONG)
            scores = start_scores(q_tile, tile_at(k_s, slot[0], SPLIT), bias, MAIN, REST, SPLIT, ADD=True)
            v_channel.wait(last)
            p = unpacked(pairs, out_s.dtype, p_layout)
            product = start_product(p, tile_at(v_s, last[0], SPLIT), acc, V_MAIN, V_REST, SPLIT)
            ping_pong_arrive(CONSUMER, CONSUMERS, PING_PONG)
            start = _key_tile(i, num_tiles, BN)
            qk = warpgroup_mma_wait(PRODUCTS, deps=(scores,))
            k_channel.release(slot)
            shift = -((q_first - start).to(gl.float32) * slopes_h_scaled)
            p, alpha, m, l = softmax_step_shifted(qk, m, l, qk_scale, shift)
            acc = await_product(product, V_REST)
            v_channel.release(last)
            acc = scale_rows(acc, alpha, V_REST)
            pairs = packed(p, out_s.dtype)
            bias = affine_bias(per_key, ROWS, BN, qk_layout)

        q_channel.release(q_slot)
        row_shift = gl.convert_layout(gl.reshape(-((q - q_first).to(gl.float32) * slopes_h_scaled), [ROWS]), row_layout)
        n += 1
        ticket += 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "batch", "head_group", "num_seqs", "total_q",
    "total_k",
])
def _forward_sm90(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, max_ptr, counter_ptr, slopes_ptr,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    scale, batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, head_group,
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
    scheduler = make_scheduler(CONSUMERS)
    q_channel = make_channel(Q_SLOTS, 1, CONSUMERS)
    k_channel = make_channel(STAGES, CONSUMERS)
    v_channel = make_channel(STAGES, CONSUMERS)
    shared = (q_s, k_s, v_s)
    q_strides = (stride_qb, stride_qh, stride_qm)
    k_strides = (stride_kb, stride_kh, stride_kn)
    v_strides = (stride_vb, stride_vh, stride_vn)
    loads = (batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, head_group)
    computes = (scale, batch, heads, q_len, kv_len, head_group)
    # Registers a thread: 240 for two consumers, 160 for three, 24 for the producer; the launch gives their mean.
    # fmt: off
    if CONSUMERS == 2:
        gl.warp_specialize([
            (_consumer, (
                0, out_desc, out_s, shared, scheduler, q_channel, k_channel, v_channel, lse_ptr, max_ptr, slopes_ptr,
                computes, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, HEAD_DIM, V_HEAD_DIM,
                STAGES, CONSUMERS, PING_PONG, SPLIT,
            )),
            (_consumer, (
                1, out_desc, out_s, shared, scheduler, q_channel, k_channel, v_channel, lse_ptr, max_ptr, slopes_ptr,
                computes, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, HEAD_DIM, V_HEAD_DIM,
                STAGES, CONSUMERS, PING_PONG, SPLIT,
            )),
            (_producer, (
                q_ptr, k_ptr, v_ptr, q_strides, k_strides, v_strides, shared, scheduler, q_channel, k_channel,
                v_channel, counter_ptr, loads, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN,
                CONSUMERS, SPLIT,
            )),
        ], [4, 1], [240, 24])
    else:
        gl.warp_specialize([
            (_consumer, (
                0, out_desc, out_s, shared, scheduler, q_channel, k_channel, v_channel, lse_ptr, max_ptr, slopes_ptr,
                computes, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, HEAD_DIM, V_HEAD_DIM,
                STAGES, CONSUMERS, PING_PONG, SPLIT,
            )),
            (_consumer, (
                1, out_desc, out_s, shared, scheduler, q_channel, k_channel, v_channel, lse_ptr, max_ptr, slopes_ptr,
                computes, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, HEAD_DIM, V_HEAD_DIM,
                STAGES, CONSUMERS, PING_PONG, SPLIT,
            )),
            (_consumer, (
                2, out_desc, out_s, shared, scheduler, q_channel, k_channel, v_channel, lse_ptr, max_ptr, slopes_ptr,
                computes, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN, HEAD_DIM, V_HEAD_DIM,
                STAGES, CONSUMERS, PING_PONG, SPLIT,
            )),
            (_producer, (
                q_ptr, k_ptr, v_ptr, q_strides, k_strides, v_strides, shared, scheduler, q_channel, k_channel,
                v_channel, counter_ptr, loads, cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, BM, BN,
                CONSUMERS, SPLIT,
            )),
        ], [4, 4, 1], [160, 160, 24])
    # fmt: on
