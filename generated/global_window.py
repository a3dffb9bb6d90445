"""A window of 256 keys to each side; tokens marked global see every key and are seen by every query.

    out = softmax(score over visible keys) v, score = scale q k^T
    key k is visible to query q where (abs(q - k) <= W) | is_global[b, k] | is_global[b, q]
    query i stands at key position i + kv_len - q_len

Inputs:
    is_global [batch, kv_len] bool

In this file:
    _forward, _forward_sm90            out and lse: the portable kernel, and that for Hopper
    _classify                          which tiles of queries and keys the mask leaves out, mixes or leaves whole
    _delta                             what the backward kernels need of each row
    _backward_q, _backward_q_sm90      dq
    _backward_kv, _backward_kv_sm90    dk and dv, dq too where a config fuses it; _wide: for wide heads
    attention, plan, reference         what callers use, after the launches of the kernels

Generated from variants/global_window.yaml by

    flashgen build variants/global_window.yaml

Do not edit: change the spec and build again.
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashgen import runtime
from flashgen.runtime.device.collect import collect_dq
from flashgen.runtime.device.sm90.barriers import (
    barrier_arrive,
    barrier_sync,
    make_barriers,
    make_channel,
    ping_pong_arrive,
    ping_pong_sync,
)
from flashgen.runtime.device.sm90.fragments import add_dq, load_fragments, start_dq, store_fragments
from flashgen.runtime.device.sm90.kv_tiles import kv_place, kv_tile, slot_of, v_slot_of
from flashgen.runtime.device.sm90.positions import masked_keys, opaque
from flashgen.runtime.device.sm90.products import await_product, scale_rows, start_product, start_scores, zero_sums
from flashgen.runtime.device.sm90.scheduler import make_scheduler, request_tile, reset_counter
from flashgen.runtime.device.sm90.softmax import packed, softmax_step_scaled, unpacked
from flashgen.runtime.device.sm90.tiles import allocate_tiles, describe, load_keys, load_tile, load_values, tile_at
from flashgen.runtime.device.softmax import online_softmax_scaled
from flashgen.runtime.gluon import reinterpret, tma_load, tma_store

IDENTITY = runtime.Identity(
    variant="global_window",
    spec="ef402b1ee476",
    templates={"forward": "33c6498f954b", "backward_q": "f7cec12aff0e", "backward_kv": "5071111d0c05"},
    source="variants/global_window.yaml",
    arguments={"is_global": "bool"},
)
CONFIGS = runtime.Lookup(
    IDENTITY,
    "forward",
    runtime.default_by_key_config,
    runtime.shipped_root(__file__),
)
BACKWARD_Q = runtime.Lookup(
    IDENTITY,
    "backward_q",
    runtime.default_scheduled_backward_q_config,
    runtime.shipped_root(__file__),
)
BACKWARD_KV = runtime.Lookup(
    IDENTITY,
    "backward_kv",
    runtime.default_scheduled_backward_kv_config,
    runtime.shipped_root(__file__),
)


@triton.jit
def _visible(q, k, is_global_b_q, is_global_base):
    """abs(q - k) <= 256 or is_global[b, k] or is_global[b, q]."""
    return (tl.abs(q - k) <= 256) | tl.load(is_global_base + k) | is_global_b_q


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_k_tiles"])
def _forward(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    counts_ptr,
    tiles_ptr,
    num_k_tiles,
    is_global_ptr,
    stride_is_global_0,
    stride_qb,
    stride_qh,
    stride_qm,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    scale,
    heads,
    kv_heads,
    q_len,
    kv_len,
    head_dim,
    v_head_dim,
    BM: tl.constexpr,
    BN: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Grid: one program for each tile of BM query rows of each head of each batch element.
    # q, k: positions of the tile's rows [BM, 1] and of a tile's keys [1, BN]. m, l, acc: see online_softmax_scaled.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up to powers of two; what lies beyond reads as zero.
    num_tiles = tl.cdiv(q_len, BM)
    tile = tl.program_id(0) % num_tiles
    head = tl.program_id(0) // num_tiles
    b = head // heads
    h = head % heads
    kv_h = h // (heads // kv_heads)
    row0 = tile * BM

    q_base = q_ptr + b.to(tl.int64) * stride_qb + h.to(tl.int64) * stride_qh
    k_base = k_ptr + b.to(tl.int64) * stride_kb + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + b.to(tl.int64) * stride_vb + kv_h.to(tl.int64) * stride_vh
    q_desc = tl.make_tensor_descriptor(q_base, [q_len, head_dim], [stride_qm, 1], [BM, HEAD_DIM])
    k_desc = tl.make_tensor_descriptor(k_base, [kv_len, head_dim], [stride_kn, 1], [BN, HEAD_DIM])
    v_desc = tl.make_tensor_descriptor(v_base, [kv_len, v_head_dim], [stride_vn, 1], [BN, V_HEAD_DIM])

    rows = row0 + tl.arange(0, BM)
    # Rows beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
    qk_scale = scale * 1.4426950408889634
    is_global_base = is_global_ptr + b.to(tl.int64) * stride_is_global_0
    is_global_b_q = tl.load(is_global_base + tl.maximum(q, 0))

    # What the schedule says of this tile of queries: which tiles of keys are mixed and which are full.
    row = b.to(tl.int64) * num_tiles + tile
    num_mixed = tl.load(counts_ptr + 3 * row)
    num_full = tl.load(counts_ptr + 3 * row + 1)
    tiles_ptr += row * num_k_tiles

    q_tile = q_desc.load([row0, 0])
    # A finite floor for the maximum: -inf - floor is -inf, so that a row that sees no key stays at l = 0, without NaN.
    m = tl.full([BM], -3.0e38, tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, V_HEAD_DIM], tl.float32)

    # Full tiles: each row sees each key, no mask. The index of a tile is loaded ahead of the tile, which takes every
    # other stage of the pipeline.
    for i in tl.range(0, num_full, num_stages=2 * STAGES - 1):
        start = tl.load(tiles_ptr + num_k_tiles - 1 - i) * BN
        k_tile = k_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        v_tile = v_desc.load([start, 0])
        acc, m, l = online_softmax_scaled(qk, qk_scale, v_tile, acc, m, l)

    # Mixed tiles, few: a shorter pipeline leaves shared memory for the mask.
    for i in tl.range(0, num_mixed, num_stages=STAGES - 1 if STAGES > 1 else 1):
        start = tl.load(tiles_ptr + i) * BN
        k_tile = k_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        col = start + tl.arange(0, BN)[None, :]
        k = tl.minimum(col, kv_len - 1)
        qk = tl.where(_visible(q, k, is_global_b_q, is_global_base) & (col < kv_len), qk, -float("inf"))
        v_tile = v_desc.load([start, 0])
        acc, m, l = online_softmax_scaled(qk, qk_scale, v_tile, acc, m, l)

    # Epilogue.
    empty = l == 0
    acc = acc / tl.where(empty, 1.0, l)[:, None]
    lse = (m + tl.log2(l)) * 0.6931471805599453
    out_rows = head.to(tl.int64) * q_len + rows
    out_cols = tl.arange(0, V_HEAD_DIM)
    in_range = rows < q_len
    tl.store(lse_ptr + out_rows, tl.where(empty, -float("inf"), lse), mask=in_range)
    tl.store(
        out_ptr + out_rows[:, None] * v_head_dim + out_cols[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=in_range[:, None] & (out_cols < v_head_dim)[None, :],
    )


# The same for Hopper, warp-specialized: a warp that loads, and groups of four that compute.


@triton.jit
def _visible_sm90(q, k, is_global_b_k, is_global_b_q):
    """is_global[b, q] or (abs(q - k) <= 256 or is_global[b, k])."""
    return is_global_b_q | ((tl.abs(q - k) <= 256) | is_global_b_k)


@gluon.jit
def _work(index, counts_ptr, tiles_ptr, num_k_tiles, batch, heads, q_len, head_group, BM: gl.constexpr):
    """Tile `index` of queries: its batch element, head and first row; how many tiles of keys it sees, and which.

    The heads are taken in groups of head_group, whose K and V stay in the L2 cache, the longest tiles of a group first.
    Of num_tiles tiles of keys, the first num_mixed need the mask; see _key_tile.
    """
    num_q_tiles = gl.cdiv(q_len, BM)
    # What comes after the last tile is asked for, but not done.
    index = gl.minimum(index, num_q_tiles * batch * heads - 1)
    first_head = index // (num_q_tiles * head_group) * head_group
    group = gl.minimum(head_group, batch * heads - first_head)
    in_group = index - first_head * num_q_tiles
    head = first_head + in_group % group
    place = in_group // group
    b = head // heads
    h = head % heads
    tile = gl.load(counts_ptr + 3 * (b.to(gl.int64) * num_q_tiles + place) + 2)
    row0 = tile * BM
    row = b.to(gl.int64) * num_q_tiles + tile
    num_mixed = gl.load(counts_ptr + 3 * row)
    num_full = gl.load(counts_ptr + 3 * row + 1)
    num_tiles = gl.maximum(num_mixed + num_full, 1)
    row_tiles_ptr = tiles_ptr + row * num_k_tiles
    return b, h, row0, num_tiles, num_mixed, num_full, row_tiles_ptr


@gluon.jit
def _key_tile(i, num_mixed, num_full, row_tiles_ptr, num_k_tiles, BN: gl.constexpr):
    """The first key of tile i: mixed tiles come before full ones."""
    # Mixed tiles stand at the front of the row, full ones at its end; an empty row gets a tile that it does not see.
    place = gl.where(i < num_mixed, i, num_k_tiles - 1 - (i - num_mixed))
    return gl.load(row_tiles_ptr + place, mask=i < num_mixed + num_full, other=0) * BN


@gluon.jit
def _producer(
    q_ptr,
    k_ptr,
    v_ptr,
    q_strides,
    k_strides,
    v_strides,
    shared,
    scheduler,
    q_channel,
    k_channel,
    v_channel,
    counter_ptr,
    counts_ptr,
    tiles_ptr,
    num_k_tiles,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    CONSUMERS: gl.constexpr,
    SPLIT: gl.constexpr,
):
    # One warp: brings the tiles of Q, K and V into shared memory by TMA as soon as the consumers have made room.
    batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, head_group = sizes
    q_s, k_s, v_s = shared
    k_descs = describe(k_ptr, [batch, kv_heads, kv_len, head_dim], k_strides, k_s, SPLIT)
    q_descs = describe(q_ptr, [batch, heads, q_len, head_dim], q_strides, q_s, SPLIT)
    v_descs = describe(v_ptr, [batch, kv_heads, kv_len, v_head_dim], v_strides, v_s, SPLIT)
    ROWS: gl.constexpr = BM // CONSUMERS
    num_q_tiles = gl.cdiv(q_len, BM) * batch * heads
    index = gl.program_id(0)
    ticket = 0  # tiles of queries so far
    # Tiles of keys so far. V comes after K of the tile that follows, also
    # where that is the first of the next tile of queries: there is room for K sooner.
    n = 0
    v_b = 0
    v_head = 0
    v_start = 0
    answer = gl.zeros([32], gl.int32, gl.BlockedLayout([1], [32], [1], [0]))
    while index < num_q_tiles:
        scheduler.announce(ticket, index)
        b, h, row0, num_tiles, num_mixed, num_full, row_tiles_ptr = _work(
            index, counts_ptr, tiles_ptr, num_k_tiles, batch, heads, q_len, head_group, BM
        )
        kv_h = h // (heads // kv_heads)
        for i in range(num_tiles):
            if i == gl.maximum(num_tiles - 2, 0):
                # Tiles differ in length: whoever is nearly done takes the next one.
                answer = request_tile(counter_ptr)
            start = _key_tile(i, num_mixed, num_full, row_tiles_ptr, num_k_tiles, BN)
            load_keys(k_descs, b, kv_h, start, n, k_s, k_channel, v_channel, SPLIT)
            if n > 0:
                load_values(v_descs, v_b, v_head, v_start, n - 1, v_s, k_channel, v_channel, SPLIT)
            v_b, v_head, v_start = b, kv_h, start
            if i == 0:
                # An earlier tile may still read Q when there is room for keys already.
                for each in gl.static_range(CONSUMERS):
                    slot = q_channel.slot(ticket, each)
                    full = q_channel.acquire(slot)
                    load_tile(q_descs, b, h, row0 + each * ROWS, q_s, slot[0], full, SPLIT)
            n += 1
        ticket += 1
        index = gl.num_programs(0) + gl.sum(answer, 0)
    scheduler.announce(ticket, index)
    load_values(v_descs, v_b, v_head, v_start, n - 1, v_s, k_channel, v_channel, SPLIT)
    reset_counter(counter_ptr)


@gluon.jit
def _consumer(
    CONSUMER: gl.constexpr,
    out_desc,
    out_s,
    shared,
    scheduler,
    q_channel,
    k_channel,
    v_channel,
    lse_ptr,
    counts_ptr,
    tiles_ptr,
    num_k_tiles,
    is_global_ptr,
    stride_is_global_0,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
    PING_PONG: gl.constexpr,
    SPLIT: gl.constexpr,
):
    # Four warps: ROWS rows of each tile of queries.
    # q, k: positions of the tile's rows [ROWS, 1] and of a tile's keys [1, BN]. m, l, p: see softmax_step_scaled.
    # acc: the sums for the MAIN and the REST columns of V.
    scale, batch, heads, q_len, kv_len, head_group = sizes
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
    # Keys as they are loaded for: one a thread.
    key_layout: gl.constexpr = gl.SliceLayout(0, gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0]))
    l_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_MAIN, 16])
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_REST, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    q_layout: gl.constexpr = gl.DotOperandLayout(0, qk_layout, 2)
    # Where there are registers for Q, the products of full tiles read only K and V from shared memory.
    HOLD_Q: gl.constexpr = CONSUMERS == 2 and HEAD_DIM == WIDTH and WIDTH <= 64
    out_tile = out_s.index(CONSUMER).reshape([ROWS, OUT_WIDTH])
    zero = gl.zeros([ROWS, BN], gl.float32, qk_layout)
    num_q_tiles = gl.cdiv(q_len, BM) * batch * heads
    # A round begins a tile of queries and finishes that of the round before. The first one has nothing to finish, the
    # last one nothing to begin: their products are of what lies in shared memory, and nobody reads them.
    ticket = 0  # tiles of queries so far
    n = 0  # tiles of keys so far
    b = 0
    h = 0
    row0 = 0
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
        lse = (m + gl.log2(l)) * 0.6931471805599453
        rows = row0 + gl.arange(0, ROWS, layout=row_layout)
        lse_rows = lse_ptr + (b * heads + h).to(gl.int64) * q_len + rows
        gl.store(lse_rows, gl.where(empty, -float("inf"), lse), mask=(rows < q_len) & finishes)
        out_b, out_h, out_row0 = b, h, row0

        # The tile that begins.
        b, h, row0, num_tiles, num_mixed, num_full, row_tiles_ptr = _work(
            index, counts_ptr, tiles_ptr, num_k_tiles, batch, heads, q_len, head_group, BM
        )
        row0 += CONSUMER * ROWS
        rows = row0 + gl.arange(0, ROWS, layout=row_layout)
        # Rows beyond the last are taken as the last: they read what exists.
        q = (gl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
        qk_scale = scale * 1.4426950408889634
        is_global_base = is_global_ptr + b.to(gl.int64) * stride_is_global_0
        is_global_b_q = gl.load(is_global_base + gl.maximum(q, 0))

        # Its first tile of keys, as if it were mixed.
        i = 0
        start = _key_tile(i, num_mixed, num_full, row_tiles_ptr, num_k_tiles, BN)
        keys = gl.minimum(start + gl.arange(0, BN, layout=key_layout)[None, :], kv_len - 1)
        is_global_b_k = gl.load(is_global_base + keys)
        is_global_b_k = gl.convert_layout(is_global_b_k, qk_layout)
        qk = warpgroup_mma_wait(PRODUCTS, deps=(scores,))
        k_channel.release(slot, begins)
        k = masked_keys(start, BN, col_layout)
        qk = gl.where(_visible_sm90(q, k, is_global_b_k, is_global_b_q), qk, -float("inf"))
        if start + BN > kv_len:
            qk = gl.where(k < kv_len, qk, -float("inf"))

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
                tma_store(out_desc, [out_b, out_h, out_row0, 0], out_s.index(CONSUMER))
                tma.store_wait(0)
                out_tile.slice(0, V_REST, 1).store(acc[1].to(out_s.dtype))
            fence_async_shared()
            tma_store(out_desc, [out_b, out_h, out_row0, V_WIDTH - OUT_WIDTH], out_s.index(CONSUMER))
        acc = zero_sums(ROWS, V_MAIN, V_REST, acc_layout, rest_layout)
        pairs = packed(p, out_s.dtype)

        # The other mixed tiles.
        for i in range(1, gl.where(begins, num_mixed, 0)):
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
            start = _key_tile(i, num_mixed, num_full, row_tiles_ptr, num_k_tiles, BN)
            keys = gl.minimum(start + gl.arange(0, BN, layout=key_layout)[None, :], kv_len - 1)
            is_global_b_k = gl.load(is_global_base + keys)
            is_global_b_k = gl.convert_layout(is_global_b_k, qk_layout)
            qk = warpgroup_mma_wait(PRODUCTS, deps=(scores,))
            k_channel.release(slot)
            k = masked_keys(start, BN, col_layout)
            qk = gl.where(_visible_sm90(q, k, is_global_b_k, is_global_b_q), qk, -float("inf"))
            if start + BN > kv_len:
                qk = gl.where(k < kv_len, qk, -float("inf"))
            p, alpha, m, l = softmax_step_scaled(qk, m, l, qk_scale)
            acc = await_product(product, V_REST)
            v_channel.release(last)
            acc = scale_rows(acc, alpha, V_REST)
            pairs = packed(p, out_s.dtype)

        # Full tiles: each row sees each key, no mask.
        if HOLD_Q:
            q_tile = (q_tile[0].load(q_layout),)
        for _ in range(gl.maximum(num_mixed, 1), gl.where(begins, num_tiles, 0)):
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


@gluon.jit(
    do_not_specialize=[
        "heads",
        "kv_heads",
        "q_len",
        "kv_len",
        "head_dim",
        "v_head_dim",
        "num_k_tiles",
        "batch",
        "head_group",
    ]
)
def _forward_sm90(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    counter_ptr,
    counts_ptr,
    tiles_ptr,
    num_k_tiles,
    is_global_ptr,
    stride_is_global_0,
    stride_qb,
    stride_qh,
    stride_qm,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    scale,
    batch,
    heads,
    kv_heads,
    q_len,
    kv_len,
    head_dim,
    v_head_dim,
    head_group,
    BM: gl.constexpr,
    BN: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
    PING_PONG: gl.constexpr,
    SPLIT: gl.constexpr,
):
    # Grid: at most as many programs as the GPU holds at once; they share the tiles of BM query rows of all heads.
    # One warp loads (_producer), CONSUMERS groups of four warps compute (_consumer). A channel says
    # when a tile has arrived in shared memory, and when all who read it are done.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up; what lies beyond reads as zero.
    dtype: gl.constexpr = q_ptr.dtype.element_ty
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
    q_s = (allocate_tiles(dtype, Q_SLOTS * CONSUMERS, ROWS, MAIN),)
    k_s = (allocate_tiles(dtype, STAGES, BN, MAIN),)
    if SPLIT:
        q_s = (q_s[0], allocate_tiles(dtype, Q_SLOTS * CONSUMERS, ROWS, REST))
        k_s = (k_s[0], allocate_tiles(dtype, STAGES, BN, REST))
        v_s = k_s
    else:
        v_s = (allocate_tiles(dtype, STAGES, BN, V_WIDTH),)
    out_s = allocate_tiles(dtype, CONSUMERS, ROWS, OUT_WIDTH)
    out_strides = (q_len.to(gl.int64) * v_head_dim * heads, q_len.to(gl.int64) * v_head_dim, v_head_dim)
    (out_desc,) = describe(out_ptr, [batch, heads, q_len, v_head_dim], out_strides, (out_s,), False)
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
                0, out_desc, out_s, shared, scheduler, q_channel, k_channel, v_channel, lse_ptr, counts_ptr, tiles_ptr,
                num_k_tiles, is_global_ptr, stride_is_global_0, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_consumer, (
                1, out_desc, out_s, shared, scheduler, q_channel, k_channel, v_channel, lse_ptr, counts_ptr, tiles_ptr,
                num_k_tiles, is_global_ptr, stride_is_global_0, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_producer, (
                q_ptr, k_ptr, v_ptr, q_strides, k_strides, v_strides, shared, scheduler, q_channel, k_channel,
                v_channel, counter_ptr, counts_ptr, tiles_ptr, num_k_tiles, loads, BM, BN, CONSUMERS, SPLIT,
            )),
        ], [4, 1], [240, 24])
    else:
        gl.warp_specialize([
            (_consumer, (
                0, out_desc, out_s, shared, scheduler, q_channel, k_channel, v_channel, lse_ptr, counts_ptr, tiles_ptr,
                num_k_tiles, is_global_ptr, stride_is_global_0, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_consumer, (
                1, out_desc, out_s, shared, scheduler, q_channel, k_channel, v_channel, lse_ptr, counts_ptr, tiles_ptr,
                num_k_tiles, is_global_ptr, stride_is_global_0, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_consumer, (
                2, out_desc, out_s, shared, scheduler, q_channel, k_channel, v_channel, lse_ptr, counts_ptr, tiles_ptr,
                num_k_tiles, is_global_ptr, stride_is_global_0, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_producer, (
                q_ptr, k_ptr, v_ptr, q_strides, k_strides, v_strides, shared, scheduler, q_channel, k_channel,
                v_channel, counter_ptr, counts_ptr, tiles_ptr, num_k_tiles, loads, BM, BN, CONSUMERS, SPLIT,
            )),
        ], [4, 4, 1], [160, 160, 24])
    # fmt: on


@triton.jit(do_not_specialize=["q_len", "kv_len", "num_k_tiles"])
def _classify(
    states_ptr,
    is_global_ptr,
    stride_is_global_0,
    q_len,
    kv_len,
    num_k_tiles,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CHUNK: tl.constexpr,
):
    # Grid: one program for each chunk of CHUNK tiles of keys, of each tile of queries, of each batch element and head
    # as far as the mask tells them apart. Writes one state for each tile: 0 no pair is visible, 1 some are, 2 all are.
    num_chunks = tl.cdiv(num_k_tiles, CHUNK)
    num_q_tiles = tl.cdiv(q_len, BM)
    chunk = tl.program_id(0) % num_chunks * CHUNK
    row = tl.program_id(0) // num_chunks
    b = row // num_q_tiles
    row0 = row % num_q_tiles * BM
    rows = row0 + tl.arange(0, BM)
    # Rows and keys beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
    q_first = row0 + (kv_len - q_len)
    q_last = tl.minimum(row0 + BM, q_len) - 1 + (kv_len - q_len)
    is_global_base = is_global_ptr + b.to(tl.int64) * stride_is_global_0
    is_global_b_q = tl.load(is_global_base + tl.maximum(q, 0))
    is_global_b_q_min = tl.min(is_global_b_q.to(tl.int32)) != 0
    is_global_b_q_max = tl.max(is_global_b_q.to(tl.int32)) != 0
    tiles = chunk + tl.arange(0, CHUNK)

    # What the corners of each tile say of all its pairs, for the whole chunk at once.
    k_first = tl.minimum(tiles, num_k_tiles - 1) * BN
    k_last = tl.minimum(k_first + BN, kv_len) - 1
    k = tl.minimum(k_first[:, None] + tl.arange(0, BN)[None, :], kv_len - 1)
    t = q_first - k_last
    t_2 = q_last - k_first
    is_global_b_k = tl.load(is_global_base + k)
    some = (t <= 256) & (t_2 >= -256) | (tl.max(is_global_b_k.to(tl.int32), 1) != 0) | is_global_b_q_max
    every = (t >= -256) & (t_2 <= 256) | (tl.min(is_global_b_k.to(tl.int32), 1) != 0) | is_global_b_q_min
    state = tl.zeros([CHUNK], tl.int32) + some.to(tl.int32) + every.to(tl.int32)

    # Pair by pair where that leaves doubt.
    for i in tl.range(0, tl.minimum(CHUNK, num_k_tiles - chunk)):
        if tl.sum(tl.where(tiles == chunk + i, state, 0)) == 1:
            keys = tl.minimum((chunk + i) * BN + tl.arange(0, BN), kv_len - 1)[None, :]
            shown = _visible(q, keys, is_global_b_q, is_global_base).to(tl.int32)
            state = tl.where(tiles == chunk + i, tl.max(shown) + tl.min(shown), state)

    # A ragged tile always needs the mask.
    state = tl.where((tiles + 1) * BN > kv_len, tl.minimum(state, 1), state)
    tl.store(states_ptr + row.to(tl.int64) * num_k_tiles + tiles, state.to(tl.int8), mask=tiles < num_k_tiles)


@triton.jit(do_not_specialize=["heads", "q_len", "num_rows", "v_head_dim"])
def _delta(
    out_ptr,
    d_out_ptr,
    lse_ptr,
    d_lse_ptr,
    row_lse_ptr,
    delta_ptr,
    dq_sums_ptr,
    stride_ob,
    stride_oh,
    stride_om,
    stride_lb,
    stride_lh,
    stride_lm,
    heads,
    q_len,
    num_rows,
    v_head_dim,
    BM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    # Grid: one program for each tile of BM rows of each head of each batch element. Writes for each row
    # delta = sum(d_out * out) - d_lse (FlashAttention-2, algorithm 2) and its log-sum-exp in units of log2: infinity
    # for a row that sees no key, so that all its p are 0, and for the rows from q_len to num_rows, which fill tiles.
    num_tiles = tl.cdiv(num_rows, BM)
    head = tl.program_id(0) // num_tiles
    b = (head // heads).to(tl.int64)
    h = (head % heads).to(tl.int64)
    rows = tl.program_id(0) % num_tiles * BM + tl.arange(0, BM)
    dims = tl.arange(0, V_HEAD_DIM)
    in_range = rows < q_len
    inside = in_range[:, None] & (dims < v_head_dim)[None, :]
    at = head.to(tl.int64) * q_len + rows
    out = tl.load(out_ptr + at[:, None] * v_head_dim + dims[None, :], mask=inside, other=0.0)
    d_out_rows = d_out_ptr + b * stride_ob + h * stride_oh + rows.to(tl.int64) * stride_om
    d_out = tl.load(d_out_rows[:, None] + dims[None, :], mask=inside, other=0.0)
    delta = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1)
    if d_lse_ptr is not None:
        d_lse_rows = d_lse_ptr + b * stride_lb + h * stride_lh + rows.to(tl.int64) * stride_lm
        delta -= tl.load(d_lse_rows, mask=in_range, other=0.0)
    lse = tl.load(lse_ptr + at, mask=in_range, other=-float("inf"))
    lse = tl.where(lse == -float("inf"), float("inf"), lse * 1.4426950408889634)
    at = head.to(tl.int64) * num_rows + rows
    tl.store(row_lse_ptr + at, lse, mask=rows < num_rows)
    tl.store(delta_ptr + at, delta, mask=rows < num_rows)
    if dq_sums_ptr is not None:
        # Zeros where parts of dQ are added up, WIDTH for each row.
        elements = at[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        tl.store(dq_sums_ptr + elements, tl.zeros([BM, WIDTH], tl.float32), mask=(rows < num_rows)[:, None])


@triton.jit(
    do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_k_tiles", "num_rows"]
)
def _backward_q(
    q_ptr,
    k_ptr,
    v_ptr,
    d_out_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    counts_ptr,
    tiles_ptr,
    num_k_tiles,
    is_global_ptr,
    stride_is_global_0,
    stride_qb,
    stride_qh,
    stride_qm,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    stride_ob,
    stride_oh,
    stride_om,
    num_rows,
    scale,
    heads,
    kv_heads,
    q_len,
    kv_len,
    head_dim,
    v_head_dim,
    BM: tl.constexpr,
    BN: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Grid: one program for each tile of BM query rows of each head of each batch element.
    # It walks along the keys as _forward does: p = exp2(logit - lse), ds = p * (d_out v^T - delta), dq = scale ds k.
    # lse and delta are what _delta writes, num_rows for each head.
    num_tiles = tl.cdiv(q_len, BM)
    tile = tl.program_id(0) % num_tiles
    head = tl.program_id(0) // num_tiles
    b = head // heads
    h = head % heads
    kv_h = h // (heads // kv_heads)
    row0 = tile * BM

    q_base = q_ptr + b.to(tl.int64) * stride_qb + h.to(tl.int64) * stride_qh
    k_base = k_ptr + b.to(tl.int64) * stride_kb + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + b.to(tl.int64) * stride_vb + kv_h.to(tl.int64) * stride_vh
    do_base = d_out_ptr + b.to(tl.int64) * stride_ob + h.to(tl.int64) * stride_oh
    q_desc = tl.make_tensor_descriptor(q_base, [q_len, head_dim], [stride_qm, 1], [BM, HEAD_DIM])
    k_desc = tl.make_tensor_descriptor(k_base, [kv_len, head_dim], [stride_kn, 1], [BN, HEAD_DIM])
    v_desc = tl.make_tensor_descriptor(v_base, [kv_len, v_head_dim], [stride_vn, 1], [BN, V_HEAD_DIM])
    do_desc = tl.make_tensor_descriptor(do_base, [q_len, v_head_dim], [stride_om, 1], [BM, V_HEAD_DIM])

    rows = row0 + tl.arange(0, BM)
    # Rows beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
    qk_scale = scale * 1.4426950408889634
    is_global_base = is_global_ptr + b.to(tl.int64) * stride_is_global_0
    is_global_b_q = tl.load(is_global_base + tl.maximum(q, 0))

    # What the schedule says of this tile of queries: which tiles of keys are mixed and which are full.
    row = b.to(tl.int64) * num_tiles + tile
    num_mixed = tl.load(counts_ptr + 3 * row)
    num_full = tl.load(counts_ptr + 3 * row + 1)
    tiles_ptr += row * num_k_tiles

    q_tile = q_desc.load([row0, 0])
    do_tile = do_desc.load([row0, 0])
    row = head.to(tl.int64) * num_rows + rows
    lse = tl.load(lse_ptr + row)[:, None]
    delta = tl.load(delta_ptr + row)[:, None]
    dq = tl.zeros([BM, HEAD_DIM], tl.float32)

    # Full tiles, then mixed ones, as in _forward.
    for i in tl.range(0, num_full, num_stages=2 * STAGES - 1):
        start = tl.load(tiles_ptr + num_k_tiles - 1 - i) * BN
        k_tile = k_desc.load([start, 0])
        v_tile = v_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        p = tl.exp2(qk * qk_scale - lse)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta)
        dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision="ieee")

    for i in tl.range(0, num_mixed, num_stages=STAGES - 1 if STAGES > 1 else 1):
        start = tl.load(tiles_ptr + i) * BN
        k_tile = k_desc.load([start, 0])
        v_tile = v_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        col = start + tl.arange(0, BN)[None, :]
        k = tl.minimum(col, kv_len - 1)
        qk = tl.where(_visible(q, k, is_global_b_q, is_global_base) & (col < kv_len), qk, -float("inf"))
        p = tl.exp2(qk * qk_scale - lse)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta)
        dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision="ieee")

    out_rows = head.to(tl.int64) * q_len + rows
    dims = tl.arange(0, HEAD_DIM)
    tl.store(
        dq_ptr + out_rows[:, None] * head_dim + dims[None, :],
        (dq * scale).to(dq_ptr.dtype.element_ty),
        mask=(rows < q_len)[:, None] & (dims < head_dim)[None, :],
    )


@gluon.jit
def _dq_producer(
    q_desc,
    do_desc,
    k_desc,
    v_desc,
    shared,
    q_full,
    do_full,
    k_channel,
    v_channel,
    counts_ptr,
    tiles_ptr,
    num_k_tiles,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    CONSUMERS: gl.constexpr,
):
    # One warp: brings the tile of Q and dO into shared memory by TMA, then the tiles of K and V that it sees as soon as
    # the consumers make room.
    batch, heads, kv_heads, q_len, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s = shared
    V_STAGES: gl.constexpr = v_s.type.shape[0]
    b, h, row0, num_tiles, num_mixed, num_full, row_tiles_ptr = _work(
        gl.program_id(0), counts_ptr, tiles_ptr, num_k_tiles, batch, heads, q_len, head_group, BM
    )
    kv_h = h // (heads // kv_heads)
    for each in gl.static_range(CONSUMERS):
        load_tile((q_desc,), b, h, row0 + 64 * each, (q_s,), each, q_full.index(each))
    for i in range(num_tiles):
        start = _key_tile(i, num_mixed, num_full, row_tiles_ptr, num_k_tiles, BN)
        slot = k_channel.slot(i)
        load_tile((k_desc,), b, kv_h, start, (k_s,), slot[0], k_channel.acquire(slot))
        if i == 0:
            for each in gl.static_range(CONSUMERS):
                load_tile((do_desc,), b, h, row0 + 64 * each, (do_s,), each, do_full.index(each))
        v_slot = v_slot_of(i, num_rows, V_STAGES)
        load_tile((v_desc,), b, kv_h, start, (v_s,), v_slot[0], v_channel.acquire(v_slot))


@gluon.jit
def _dq_consumer(
    CONSUMER: gl.constexpr,
    dq_desc,
    shared,
    q_full,
    do_full,
    k_channel,
    v_channel,
    lse_ptr,
    delta_ptr,
    counts_ptr,
    tiles_ptr,
    num_k_tiles,
    is_global_ptr,
    stride_is_global_0,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    CONSUMERS: gl.constexpr,
    PING_PONG: gl.constexpr,
):
    # Four warps: 64 rows of the tile of queries. dP = dO V^T is made as Q K^T is, dQ += dS K as P V is in _consumer.
    # q, k: positions of the rows [64, 1] and of a tile's keys [1, BN]. dq: the sums for MAIN and REST columns.
    scale, batch, heads, q_len, kv_len, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s = shared
    V_STAGES: gl.constexpr = v_s.type.shape[0]
    # Tiles lie in WIDTH columns, a power of two; products take powers of two, MAIN and REST.
    WIDTH: gl.constexpr = q_s.type.shape[-1]
    MAIN: gl.constexpr = WIDTH if HEAD_DIM == WIDTH else WIDTH // 2
    REST: gl.constexpr = HEAD_DIM - MAIN
    V_WIDTH: gl.constexpr = v_s.type.shape[-1]
    V_MAIN: gl.constexpr = V_WIDTH if V_HEAD_DIM == V_WIDTH else V_WIDTH // 2
    V_REST: gl.constexpr = V_HEAD_DIM - V_MAIN
    S_PRODUCTS: gl.constexpr = 1 if REST == 0 else 2
    DP_PRODUCTS: gl.constexpr = 1 if V_REST == 0 else 2
    qk_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, qk_layout)
    col_layout: gl.constexpr = gl.SliceLayout(0, qk_layout)
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MAIN, 16])
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST, 16])
    ds_layout: gl.constexpr = gl.DotOperandLayout(0, dq_layout, 2)
    q_tile = q_s.index(CONSUMER).reshape([64, WIDTH])
    zero = gl.zeros([64, BN], gl.float32, qk_layout)
    b, h, row0, num_tiles, num_mixed, num_full, row_tiles_ptr = _work(
        gl.program_id(0), counts_ptr, tiles_ptr, num_k_tiles, batch, heads, q_len, head_group, BM
    )
    row0 += 64 * CONSUMER
    rows = row0 + gl.arange(0, 64, layout=row_layout)
    # Rows beyond the last are taken as the last: they read what exists.
    q = (gl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
    qk_scale = scale * 1.4426950408889634
    is_global_base = is_global_ptr + b.to(gl.int64) * stride_is_global_0
    is_global_b_q = gl.load(is_global_base + gl.maximum(q, 0))
    at = (b * heads + h).to(gl.int64) * num_rows + rows
    lse = gl.load(lse_ptr + at, mask=rows < q_len, other=float("inf"))[:, None]
    delta = gl.load(delta_ptr + at, mask=rows < q_len, other=0.0)[:, None]
    dq = (gl.zeros([64, MAIN], gl.float32, dq_layout),)
    if REST > 0:
        dq = (dq[0], gl.zeros([64, REST], gl.float32, rest_layout))

    # The first tile of keys, as if it were mixed.
    i = 0
    slot = k_channel.slot(0)
    v_slot = v_slot_of(0, num_rows, V_STAGES)
    if CONSUMER == CONSUMERS - 1:
        ping_pong_arrive(CONSUMER, CONSUMERS, PING_PONG)
    mbarrier.wait(q_full.index(CONSUMER), 0)
    k_channel.wait(slot)
    scores = start_scores((q_tile,), (k_s.index(slot[0]).reshape([BN, WIDTH]),), zero, MAIN, REST)
    mbarrier.wait(do_full.index(CONSUMER), 0)
    v_channel.wait(v_slot)
    do_tile = do_s.index(CONSUMER).reshape([64, V_WIDTH])
    products = start_scores((do_tile,), (v_s.index(v_slot[0]).reshape([BN, V_WIDTH]),), zero, V_MAIN, V_REST)
    qk = warpgroup_mma_wait(DP_PRODUCTS, deps=(scores,))
    start = _key_tile(i, num_mixed, num_full, row_tiles_ptr, num_k_tiles, BN)
    col = start + gl.arange(0, BN, layout=col_layout)[None, :]
    k = gl.minimum(col, kv_len - 1)
    qk = gl.where(_visible(q, k, is_global_b_q, is_global_base) & (col < kv_len), qk, -float("inf"))
    p = gl.exp2(qk * qk_scale - lse)
    # K is there; to look again keeps the compiler from putting exponentials behind the wait for dP.
    k_channel.wait(slot)
    dp = warpgroup_mma_wait(0, deps=(products,))
    v_channel.release(v_slot)
    ds = gl.convert_layout((p * (dp - delta)).to(dq_desc.dtype), ds_layout)

    # The other mixed tiles.
    for i in range(1, num_mixed):
        # Start the last tile's part of dQ and this tile's S, then dP; P is computed while dP runs.
        last = slot
        slot = k_channel.slot(i)
        v_slot = v_slot_of(i, num_rows, V_STAGES)
        ping_pong_sync(CONSUMER, PING_PONG)
        product = start_product(ds, (k_s.index(last[0]).reshape([BN, WIDTH]),), dq, MAIN, REST)
        k_channel.wait(slot)
        scores = start_scores((q_tile,), (k_s.index(slot[0]).reshape([BN, WIDTH]),), zero, MAIN, REST)
        dq = await_product(product, REST, S_PRODUCTS)
        k_channel.release(last)
        v_channel.wait(v_slot)
        own = CONSUMER + v_slot[0] if V_STAGES == 1 else CONSUMER  # CONSUMER, see v_slot_of
        do_tile = do_s.index(own).reshape([64, V_WIDTH])
        products = start_scores((do_tile,), (v_s.index(v_slot[0]).reshape([BN, V_WIDTH]),), zero, V_MAIN, V_REST)
        ping_pong_arrive(CONSUMER, CONSUMERS, PING_PONG)
        qk = warpgroup_mma_wait(DP_PRODUCTS, deps=(scores,))
        start = _key_tile(i, num_mixed, num_full, row_tiles_ptr, num_k_tiles, BN)
        col = start + gl.arange(0, BN, layout=col_layout)[None, :]
        k = gl.minimum(col, kv_len - 1)
        qk = gl.where(_visible(q, k, is_global_b_q, is_global_base) & (col < kv_len), qk, -float("inf"))
        p = gl.exp2(qk * qk_scale - lse)
        # K is there; to look again keeps the compiler from putting exponentials behind the wait for dP.
        k_channel.wait(slot)
        dp = warpgroup_mma_wait(0, deps=(products,))
        v_channel.release(v_slot)
        ds = gl.convert_layout((p * (dp - delta)).to(dq_desc.dtype), ds_layout)

    # Full tiles: each row sees each key, no mask.
    for i in range(gl.maximum(num_mixed, 1), num_tiles):
        # Start the last tile's part of dQ and this tile's S, then dP; P is computed while dP runs.
        last = slot
        slot = k_channel.slot(i)
        v_slot = v_slot_of(i, num_rows, V_STAGES)
        ping_pong_sync(CONSUMER, PING_PONG)
        product = start_product(ds, (k_s.index(last[0]).reshape([BN, WIDTH]),), dq, MAIN, REST)
        k_channel.wait(slot)
        scores = start_scores((q_tile,), (k_s.index(slot[0]).reshape([BN, WIDTH]),), zero, MAIN, REST)
        dq = await_product(product, REST, S_PRODUCTS)
        k_channel.release(last)
        v_channel.wait(v_slot)
        own = CONSUMER + v_slot[0] if V_STAGES == 1 else CONSUMER  # CONSUMER, see v_slot_of
        do_tile = do_s.index(own).reshape([64, V_WIDTH])
        products = start_scores((do_tile,), (v_s.index(v_slot[0]).reshape([BN, V_WIDTH]),), zero, V_MAIN, V_REST)
        ping_pong_arrive(CONSUMER, CONSUMERS, PING_PONG)
        qk = warpgroup_mma_wait(DP_PRODUCTS, deps=(scores,))
        p = gl.exp2(qk * qk_scale - lse)
        # K is there; to look again keeps the compiler from putting exponentials behind the wait for dP.
        k_channel.wait(slot)
        dp = warpgroup_mma_wait(0, deps=(products,))
        v_channel.release(v_slot)
        ds = gl.convert_layout((p * (dp - delta)).to(dq_desc.dtype), ds_layout)

    # The last tile's part of dQ. All is done with Q, whose place dQ takes; TMA writes the rows and columns that exist.
    product = start_product(ds, (k_s.index(slot[0]).reshape([BN, WIDTH]),), dq, MAIN, REST)
    dq = await_product(product, REST)
    q_tile.slice(0, MAIN, 1).store((dq[0] * scale).to(dq_desc.dtype))
    if REST > 0:
        q_tile.slice(MAIN, REST, 1).store((dq[1] * scale).to(dq_desc.dtype))
    fence_async_shared()
    tma_store(dq_desc, [b, h, row0, 0], q_s.index(CONSUMER))
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "heads",
        "kv_heads",
        "q_len",
        "kv_len",
        "head_dim",
        "v_head_dim",
        "num_k_tiles",
        "batch",
        "num_rows",
        "head_group",
    ]
)
def _backward_q_sm90(
    q_desc,
    do_desc,
    k_desc,
    v_desc,
    dq_desc,
    lse_ptr,
    delta_ptr,
    counts_ptr,
    tiles_ptr,
    num_k_tiles,
    is_global_ptr,
    stride_is_global_0,
    scale,
    batch,
    heads,
    kv_heads,
    q_len,
    kv_len,
    num_rows,
    head_group,
    BM: gl.constexpr,
    BN: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
    V_STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
    PING_PONG: gl.constexpr,
):
    # Grid: one program for each tile of BM query rows of each head of each batch element, longest rows first.
    # It walks along the keys as _forward_sm90 does: p = exp2(logit - lse), ds = p * (d_out v^T - delta),
    # dq = scale ds k.
    # lse and delta are what _delta writes, num_rows for each head.
    # One warp loads (_dq_producer), CONSUMERS groups of four warps compute (_dq_consumer). Channels
    # say when a tile has arrived in shared memory, and when all who read it are done. A tile of K is read again,
    # for dQ, when the next one is there: those of K have STAGES places, those of V one less, V_STAGES.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up; what lies beyond reads as zero.
    q_s = gl.allocate_shared_memory(q_desc.dtype, [CONSUMERS] + q_desc.block_type.shape, q_desc.layout)
    do_s = gl.allocate_shared_memory(do_desc.dtype, [CONSUMERS] + do_desc.block_type.shape, do_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, [V_STAGES] + v_desc.block_type.shape, v_desc.layout)
    q_full = make_barriers(CONSUMERS)
    do_full = make_barriers(CONSUMERS)
    k_channel = make_channel(STAGES, CONSUMERS)
    v_channel = make_channel(V_STAGES, CONSUMERS)
    shared = (q_s, do_s, k_s, v_s)
    loads = (batch, heads, kv_heads, q_len, num_rows, head_group)
    computes = (scale, batch, heads, q_len, kv_len, num_rows, head_group)
    # Registers a thread: 240 for two consumers, 160 for three, 24 for the producer; the launch gives their mean.
    # fmt: off
    if CONSUMERS == 2:
        gl.warp_specialize([
            (_dq_consumer, (
                0, dq_desc, shared, q_full, do_full, k_channel, v_channel, lse_ptr, delta_ptr, counts_ptr, tiles_ptr,
                num_k_tiles, is_global_ptr, stride_is_global_0, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, CONSUMERS,
                PING_PONG,
            )),
            (_dq_consumer, (
                1, dq_desc, shared, q_full, do_full, k_channel, v_channel, lse_ptr, delta_ptr, counts_ptr, tiles_ptr,
                num_k_tiles, is_global_ptr, stride_is_global_0, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, CONSUMERS,
                PING_PONG,
            )),
            (_dq_producer, (
                q_desc, do_desc, k_desc, v_desc, shared, q_full, do_full, k_channel, v_channel, counts_ptr, tiles_ptr,
                num_k_tiles, loads, BM, BN, CONSUMERS,
            )),
        ], [4, 1], [240, 24])
    else:
        gl.warp_specialize([
            (_dq_consumer, (
                0, dq_desc, shared, q_full, do_full, k_channel, v_channel, lse_ptr, delta_ptr, counts_ptr, tiles_ptr,
                num_k_tiles, is_global_ptr, stride_is_global_0, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, CONSUMERS,
                PING_PONG,
            )),
            (_dq_consumer, (
                1, dq_desc, shared, q_full, do_full, k_channel, v_channel, lse_ptr, delta_ptr, counts_ptr, tiles_ptr,
                num_k_tiles, is_global_ptr, stride_is_global_0, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, CONSUMERS,
                PING_PONG,
            )),
            (_dq_consumer, (
                2, dq_desc, shared, q_full, do_full, k_channel, v_channel, lse_ptr, delta_ptr, counts_ptr, tiles_ptr,
                num_k_tiles, is_global_ptr, stride_is_global_0, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, CONSUMERS,
                PING_PONG,
            )),
            (_dq_producer, (
                q_desc, do_desc, k_desc, v_desc, shared, q_full, do_full, k_channel, v_channel, counts_ptr, tiles_ptr,
                num_k_tiles, loads, BM, BN, CONSUMERS,
            )),
        ], [4, 4, 1], [160, 160, 24])
    # fmt: on


@triton.jit
def _visible_by_key(q, k, is_global_b_k, is_global_base):
    """abs(q - k) <= 256 or is_global[b, k] or is_global[b, q]."""
    return (tl.abs(q - k) <= 256) | is_global_b_k | tl.load(is_global_base + tl.maximum(q, 0))


@triton.jit(
    do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_q_tiles", "num_rows"]
)
def _backward_kv(
    q_ptr,
    k_ptr,
    v_ptr,
    d_out_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    counts_ptr,
    tiles_ptr,
    num_q_tiles,
    is_global_ptr,
    stride_is_global_0,
    stride_qb,
    stride_qh,
    stride_qm,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    stride_ob,
    stride_oh,
    stride_om,
    num_rows,
    stride_dqm,
    scale,
    heads,
    kv_heads,
    q_len,
    kv_len,
    head_dim,
    v_head_dim,
    BM: tl.constexpr,
    BN: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    FUSE_DQ: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Grid: one program for each tile of BN keys of each query head of each batch element. It walks along the queries
    # that see some of its keys. Tiles are transposed, [BN, BM], so that p and ds enter the products for dk and dv
    # from registers: p = exp2(logit - lse), dv = p d_out, ds = p * (v d_out^T - delta), dk = scale ds q.
    # lse and delta are what _delta writes, num_rows for each head. Where FUSE_DQ, each tile's part of dq = scale ds^T k
    # is added in memory, in float32 and in no fixed order.
    num_tiles = tl.cdiv(kv_len, BN)
    tile = tl.program_id(0) % num_tiles
    head = tl.program_id(0) // num_tiles
    b = head // heads
    h = head % heads
    kv_h = h // (heads // kv_heads)
    col0 = tile * BN

    q_base = q_ptr + b.to(tl.int64) * stride_qb + h.to(tl.int64) * stride_qh
    k_base = k_ptr + b.to(tl.int64) * stride_kb + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + b.to(tl.int64) * stride_vb + kv_h.to(tl.int64) * stride_vh
    do_base = d_out_ptr + b.to(tl.int64) * stride_ob + h.to(tl.int64) * stride_oh
    q_desc = tl.make_tensor_descriptor(q_base, [q_len, head_dim], [stride_qm, 1], [BM, HEAD_DIM])
    k_desc = tl.make_tensor_descriptor(k_base, [kv_len, head_dim], [stride_kn, 1], [BN, HEAD_DIM])
    v_desc = tl.make_tensor_descriptor(v_base, [kv_len, v_head_dim], [stride_vn, 1], [BN, V_HEAD_DIM])
    do_desc = tl.make_tensor_descriptor(do_base, [q_len, v_head_dim], [stride_om, 1], [BM, V_HEAD_DIM])
    row0 = head.to(tl.int64) * num_rows
    if FUSE_DQ:
        dq_desc = tl.make_tensor_descriptor(
            dq_ptr + head.to(tl.int64) * q_len * stride_dqm, [q_len, head_dim], [stride_dqm, 1], [BM, HEAD_DIM]
        )

    cols = col0 + tl.arange(0, BN)
    # Keys beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    k = tl.minimum(cols, kv_len - 1)[:, None]
    qk_scale = scale * 1.4426950408889634
    is_global_base = is_global_ptr + b.to(tl.int64) * stride_is_global_0
    is_global_b_k = tl.load(is_global_base + k)

    # What the schedule says of this tile of keys: which tiles of queries are mixed and which are full.
    row = b.to(tl.int64) * num_tiles + tile
    num_mixed = tl.load(counts_ptr + 3 * row)
    num_full = tl.load(counts_ptr + 3 * row + 1)
    tiles_ptr += row * num_q_tiles

    k_tile = k_desc.load([col0, 0])
    v_tile = v_desc.load([col0, 0])
    dk = tl.zeros([BN, HEAD_DIM], tl.float32)
    dv = tl.zeros([BN, V_HEAD_DIM], tl.float32)
    # The mixed tiles stand at the front of the list, the full ones at the back.
    for i in tl.range(0, num_mixed + num_full, num_stages=2 * STAGES - 1):
        index = tl.where(i < num_mixed, i, num_q_tiles - 1 + num_mixed - i)
        start = tl.load(tiles_ptr + index) * BM
        q_tile = q_desc.load([start, 0])
        rows = start + tl.arange(0, BM)
        q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[None, :]
        lse = tl.load(lse_ptr + row0 + rows)[None, :]
        qk = tl.dot(k_tile, q_tile.T, input_precision="ieee")
        if i < num_mixed:
            qk = tl.where(
                _visible_by_key(q, k, is_global_b_k, is_global_base) & (cols < kv_len)[:, None], qk, -float("inf")
            )
        p = tl.exp2(qk * qk_scale - lse)
        do_tile = do_desc.load([start, 0])
        dv = tl.dot(p.to(do_tile.dtype), do_tile, dv, input_precision="ieee")
        dp = tl.dot(v_tile, do_tile.T, input_precision="ieee")
        delta = tl.load(delta_ptr + row0 + rows)[None, :]
        ds = (p * (dp - delta)).to(q_tile.dtype)
        dk = tl.dot(ds, q_tile, dk, input_precision="ieee")
        if FUSE_DQ:
            dq = tl.dot(ds.T, k_tile, input_precision="ieee")
            dq_desc.atomic_add([start, 0], dq)

    out_rows = head.to(tl.int64) * kv_len + cols
    in_range = cols < kv_len
    dims = tl.arange(0, HEAD_DIM)
    tl.store(
        dk_ptr + out_rows[:, None] * head_dim + dims[None, :],
        (dk * scale).to(dk_ptr.dtype.element_ty),
        mask=in_range[:, None] & (dims < head_dim)[None, :],
    )
    v_dims = tl.arange(0, V_HEAD_DIM)
    tl.store(
        dv_ptr + out_rows[:, None] * v_head_dim + v_dims[None, :],
        dv.to(dv_ptr.dtype.element_ty),
        mask=in_range[:, None] & (v_dims < v_head_dim)[None, :],
    )


@gluon.jit
def _ranked(index, by_rank, counts_ptr, batch, kv_heads, kv_len, head_group, BN: gl.constexpr):
    """The tile of keys at place `index`: in a group of heads those come first that most queries see."""
    head, place, group = kv_place(index, batch, kv_heads, kv_len, head_group, BN)
    b = head // kv_heads
    row = b.to(gl.int64) * gl.cdiv(kv_len, BN) + place
    tile = gl.load(counts_ptr + 3 * row + 2)
    return index + by_rank * (tile - place) * group


@gluon.jit
def _queries_of(col0, b, counts_ptr, tiles_ptr, num_q_tiles, kv_len, BN: gl.constexpr):
    """The tiles of queries for the tile of keys at col0: num_tiles, the first num_mixed of which need the mask."""
    row = b.to(gl.int64) * gl.cdiv(kv_len, BN) + (col0 // BN)
    num_mixed = gl.load(counts_ptr + 3 * row)
    num_tiles = num_mixed + gl.load(counts_ptr + 3 * row + 1)
    row_tiles_ptr = tiles_ptr + row * num_q_tiles
    return num_tiles, num_mixed, row_tiles_ptr


@gluon.jit
def _query_tile(i, num_mixed, row_tiles_ptr, num_q_tiles, BM: gl.constexpr):
    """The first query of tile i, mixed tiles before full ones."""
    # Mixed tiles stand at the front of the row, full ones at its end.
    place = gl.where(i < num_mixed, i, num_q_tiles - 1 - (i - num_mixed))
    start = gl.load(row_tiles_ptr + place) * BM
    return start


@gluon.jit
def _backward_producer(
    q_desc,
    do_desc,
    k_desc,
    v_desc,
    lse_desc,
    delta_desc,
    counter_ptr,
    scheduler,
    shared,
    barriers,
    counts_ptr,
    tiles_ptr,
    num_q_tiles,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    STAGES: gl.constexpr,
):
    # One warp: brings tiles of K and V into shared memory by TMA, and for each the tiles of Q and dO that see it and
    # their rows' lse and delta, as soon as the consumers make room.
    batch, heads, kv_heads, kv_len, num_rows, head_group, by_rank = sizes
    q_s, do_s, k_s, v_s, lse_s, delta_s = shared
    k_full, k_empty, v_full, v_empty, q_full, do_full, rows_full, empty = barriers
    num_kv_tiles = gl.cdiv(kv_len, BN) * batch * kv_heads
    index = gl.program_id(0)
    ticket = 0  # tiles of keys so far
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    while index < num_kv_tiles:
        tile = _ranked(index, by_rank, counts_ptr, batch, kv_heads, kv_len, head_group, BN)
        scheduler.announce(ticket, tile)
        b, kv_h, col0 = kv_tile(tile, batch, kv_heads, kv_len, head_group, BN)
        mbarrier.wait(v_empty, ticket & 1 ^ 1)
        mbarrier.expect(v_full, 2 * v_desc.block_type.nbytes)
        for c in gl.static_range(2):
            tma_load(v_desc, [b, kv_h, col0 + 64 * c, 0], v_full, v_s.index(c))
        mbarrier.wait(k_empty, ticket & 1 ^ 1)
        mbarrier.expect(k_full, 2 * k_desc.block_type.nbytes)
        for c in gl.static_range(2):
            tma_load(k_desc, [b, kv_h, col0 + 64 * c, 0], k_full, k_s.index(c))
        for h in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
            num_tiles, num_mixed, row_tiles_ptr = _queries_of(col0, b, counts_ptr, tiles_ptr, num_q_tiles, kv_len, BN)
            first_row = (b * heads + h) * num_rows
            for i in range(num_tiles):
                start = _query_tile(i, num_mixed, row_tiles_ptr, num_q_tiles, BM)
                stage, phase = slot_of(n, STAGES)
                mbarrier.wait(empty.index(stage), phase ^ 1)
                mbarrier.expect(q_full.index(stage), q_desc.block_type.nbytes)
                tma_load(q_desc, [b, h, start, 0], q_full.index(stage), q_s.index(stage))
                mbarrier.expect(do_full.index(stage), do_desc.block_type.nbytes)
                tma_load(do_desc, [b, h, start, 0], do_full.index(stage), do_s.index(stage))
                mbarrier.expect(rows_full.index(stage), 8 * BM)
                tma_load(lse_desc, [first_row + start], rows_full.index(stage), lse_s.index(stage))
                tma_load(delta_desc, [first_row + start], rows_full.index(stage), delta_s.index(stage))
                n += 1
        ticket += 1
        # Whoever is done takes the next tile.
        index = gl.atomic_add(counter_ptr, 1) + gl.num_programs(0)
    scheduler.announce(ticket, index)
    reset_counter(counter_ptr)


@gluon.jit
def _backward_consumer(
    CONSUMER: gl.constexpr,
    scheduler,
    shared,
    barriers,
    dq_sums,
    dk_desc,
    dv_desc,
    counts_ptr,
    tiles_ptr,
    num_q_tiles,
    is_global_ptr,
    stride_is_global_0,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    STAGES: gl.constexpr,
    FUSE_DQ: gl.constexpr,
    DELAY_DQ: gl.constexpr,
):
    # Four warps: 64 keys of each tile. Tiles of scores are transposed, [64, BM], so that P and dS enter the products
    # for dV and dK from registers; for dQ both consumers put dS into shared memory, and each makes one half of its
    # columns or rows.
    # They meet at named barriers. 8: both have dS of a tile in shared memory. Where dQ is made one tile later, 8 + 2 *
    # consumer for its even tiles and the next one for its odd tiles. 12: both have read dS, or dK and dV are out of its
    # room.
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group = sizes
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
    zero = gl.zeros([64, BM], gl.float32, scores_layout)
    zero_dq = gl.zeros([64, 64], gl.float32, dq_layout)
    k_tile = k_s.index(CONSUMER).reshape([64, HEAD_DIM])
    v_tile = v_s.index(CONSUMER).reshape([64, V_HEAD_DIM])
    num_kv_tiles = gl.cdiv(kv_len, BN) * batch * kv_heads
    ticket = 0  # tiles of keys so far
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    index = scheduler.take(ticket)
    while index < num_kv_tiles:
        dk = gl.zeros([64, HEAD_DIM], gl.float32, dk_layout)
        dv = gl.zeros([64, V_HEAD_DIM], gl.float32, dv_layout)
        b, kv_h, col0 = kv_tile(index, batch, kv_heads, kv_len, head_group, BN)
        cols = col0 + 64 * CONSUMER + gl.arange(0, 64, layout=col_layout)
        # Keys beyond the last are taken as the last: they read what exists.
        k = gl.minimum(cols, kv_len - 1)[:, None]
        if THROUGH_DS:
            # dK and dV of the last keys are out of the room of dS.
            tma.store_wait(0)
            barrier_sync(12)
        if FUSE_DQ > 0 and DELAY_DQ:
            # As if there had been a tile before the first, with dS = 0.
            last_at = (b * heads + kv_h * (heads // kv_heads)) * num_rows * (HEAD_DIM // 64) + 64 * CONSUMER
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
            is_global_base = is_global_ptr + b.to(gl.int64) * stride_is_global_0
            is_global_b_k = gl.load(is_global_base + k)
            num_tiles, num_mixed, row_tiles_ptr = _queries_of(col0, b, counts_ptr, tiles_ptr, num_q_tiles, kv_len, BN)
            first_row = (b * heads + h) * num_rows

            # Mixed tiles.
            i = 0
            while i < num_mixed:
                start = _query_tile(i, num_mixed, row_tiles_ptr, num_q_tiles, BM)
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
                qk = gl.where(
                    _visible_by_key(q, k, is_global_b_k, is_global_base) & (cols < kv_len)[:, None], qk, -float("inf")
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
            while i < num_tiles:
                start = _query_tile(i, num_mixed, row_tiles_ptr, num_q_tiles, BM)
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
        b, kv_h, col0 = kv_tile(opaque(index), batch, opaque(kv_heads), opaque(kv_len), opaque(head_group), BN)
        dv_tile, dk_tile = dv_s.index(CONSUMER), dk_s.index(dk_s.type.shape[0] - 2 + CONSUMER)
        tma.store_wait(0)
        dv_tile.reshape([64, V_HEAD_DIM]).store(dv.to(v_s.dtype))
        fence_async_shared()
        tma_store(dv_desc, [b, kv_h, col0 + 64 * CONSUMER, 0], dv_tile)
        if not THROUGH_DS:
            tma.store_wait(0)
        dk_tile.reshape([64, HEAD_DIM]).store((dk * scale).to(k_s.dtype))
        fence_async_shared()
        tma_store(dk_desc, [b, kv_h, col0 + 64 * CONSUMER, 0], dk_tile)
        ticket += 1
        index = scheduler.take(ticket)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "heads",
        "kv_heads",
        "q_len",
        "kv_len",
        "head_dim",
        "v_head_dim",
        "num_q_tiles",
        "batch",
        "num_rows",
        "head_group",
        "by_rank",
    ]
)
def _backward_kv_sm90(
    q_desc,
    do_desc,
    k_desc,
    v_desc,
    lse_desc,
    delta_desc,
    dq_sums,
    dk_desc,
    dv_desc,
    counter_ptr,
    counts_ptr,
    tiles_ptr,
    num_q_tiles,
    is_global_ptr,
    stride_is_global_0,
    scale,
    batch,
    heads,
    kv_heads,
    q_len,
    kv_len,
    num_rows,
    head_group,
    by_rank,
    BM: gl.constexpr,
    BN: gl.constexpr,
    STAGES: gl.constexpr,
    FUSE_DQ: gl.constexpr,
    DELAY_DQ: gl.constexpr,
):
    # Grid: at most as many programs as the GPU holds at once; they share the tiles of BN = 128 keys of all heads of K
    # and V. For each tile they walk along the queries that see some of its keys, head by head of those that share them:
    # p = exp2(logit - lse), dv = p^T d_out,
    # ds = p * (d_out v^T - delta), dk = scale ds^T q. lse and delta are what _delta writes, num_rows for each head.
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
    loads = (batch, heads, kv_heads, kv_len, num_rows, head_group, by_rank)
    computes = (scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    # fmt: off
    gl.warp_specialize([
        (_backward_consumer, (
            0, scheduler, shared, barriers, dq_sums, dk_desc, dv_desc, counts_ptr, tiles_ptr, num_q_tiles,
            is_global_ptr, stride_is_global_0, computes, BM, BN, STAGES, FUSE_DQ, DELAY_DQ,
        )),
        (_backward_consumer, (
            1, scheduler, shared, barriers, dq_sums, dk_desc, dv_desc, counts_ptr, tiles_ptr, num_q_tiles,
            is_global_ptr, stride_is_global_0, computes, BM, BN, STAGES, FUSE_DQ, DELAY_DQ,
        )),
        (_backward_producer, (
            q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, counter_ptr, scheduler,
            (q_s, do_s, k_s, v_s, lse_s, delta_s), barriers, counts_ptr, tiles_ptr, num_q_tiles, loads, BM, BN, STAGES,
        )),
    ], [4, 1], [240, 24])
    # fmt: on


@gluon.jit
def _wide_producer(
    q_desc,
    do_desc,
    k_desc,
    v_desc,
    lse_desc,
    delta_desc,
    shared,
    kv_full,
    q_channel,
    do_channel,
    counts_ptr,
    tiles_ptr,
    num_q_tiles,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    STAGES: gl.constexpr,
):
    # One warp: brings the program's tile of K and V into shared memory by TMA, then the tiles of Q and dO that see it
    # and their rows' lse and delta as soon as the consumers make room.
    batch, heads, kv_heads, kv_len, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s, lse_s, delta_s = shared
    b, kv_h, col0 = kv_tile(gl.program_id(0), batch, kv_heads, kv_len, head_group, BN)
    mbarrier.expect(kv_full, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma_load(k_desc, [b, kv_h, col0, 0], kv_full, k_s)
    tma_load(v_desc, [b, kv_h, col0, 0], kv_full, v_s)
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    for h in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        num_tiles, num_mixed, row_tiles_ptr = _queries_of(col0, b, counts_ptr, tiles_ptr, num_q_tiles, kv_len, BN)
        first_row = (b * heads + h) * num_rows
        for i in range(num_tiles):
            start = _query_tile(i, num_mixed, row_tiles_ptr, num_q_tiles, BM)
            slot = slot_of(n, STAGES)
            do_full = do_channel.acquire(slot)
            mbarrier.expect(do_full, do_desc.block_type.nbytes + 4 * BM)
            tma_load(do_desc, [b, h, start, 0], do_full, do_s.index(slot[0]))
            tma_load(delta_desc, [first_row + start], do_full, delta_s.index(slot[0]))
            q_full = q_channel.acquire(slot)
            mbarrier.expect(q_full, q_desc.block_type.nbytes + 4 * BM)
            tma_load(q_desc, [b, h, start, 0], q_full, q_s.index(slot[0]))
            tma_load(lse_desc, [first_row + start], q_full, lse_s.index(slot[0]))
            n += 1


@gluon.jit
def _wide_dv_consumer(
    shared,
    kv_full,
    q_channel,
    do_channel,
    p_full,
    dv_desc,
    counts_ptr,
    tiles_ptr,
    num_q_tiles,
    is_global_ptr,
    stride_is_global_0,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    # Four warps: S^T = K Q^T, P^T = exp2(logit - lse), dV += P^T dO. Tiles are transposed, [64, BM], so that P enters
    # its product from registers. P goes to shared memory too, in float32, for those who make dK.
    scale, batch, heads, kv_heads, q_len, kv_len, head_group = sizes
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
    b, kv_h, col0 = kv_tile(gl.program_id(0), batch, kv_heads, kv_len, head_group, BN)
    cols = col0 + gl.arange(0, BN, layout=col_layout)
    # Keys beyond the last are taken as the last: they read what exists.
    k = gl.minimum(cols, kv_len - 1)[:, None]
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    mbarrier.wait(kv_full, 0)
    for _ in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        qk_scale = scale * 1.4426950408889634
        is_global_base = is_global_ptr + b.to(gl.int64) * stride_is_global_0
        is_global_b_k = gl.load(is_global_base + k)
        num_tiles, num_mixed, row_tiles_ptr = _queries_of(col0, b, counts_ptr, tiles_ptr, num_q_tiles, kv_len, BN)

        # Mixed tiles.
        for i in range(0, num_mixed):
            start = _query_tile(i, num_mixed, row_tiles_ptr, num_q_tiles, BM)
            slot = slot_of(n, STAGES)
            stage = slot[0]
            q_channel.wait(slot)
            scores = start_scores((k_tile,), (q_s.index(stage).reshape([BM, WIDTH]),), zero, MAIN, REST)
            qk = warpgroup_mma_wait(0, deps=(scores,))
            rows = start + gl.arange(0, BM, layout=row_layout)
            # Rows beyond the last are taken as the last: they read what exists.
            q = (gl.minimum(rows, q_len - 1) + (kv_len - q_len))[None, :]
            lse = lse_s.index(stage).load(row_layout)[None, :]
            qk = gl.where(
                _visible_by_key(q, k, is_global_b_k, is_global_base) & (cols < kv_len)[:, None], qk, -float("inf")
            )
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
    tma_store(dv_desc, [b, kv_h, col0, 0], v_s)
    tma.store_wait(0)


@gluon.jit
def _wide_dk_consumer(
    shared,
    kv_full,
    q_channel,
    do_channel,
    p_full,
    dk_desc,
    counts_ptr,
    tiles_ptr,
    num_q_tiles,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    # Four warps: dP^T = V dO^T, dS^T = P^T (dP^T - delta) with P of the others, dK += dS^T Q.
    scale, batch, heads, kv_heads, kv_len, head_group = sizes
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
    b, kv_h, col0 = kv_tile(gl.program_id(0), batch, kv_heads, kv_len, head_group, BN)
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    mbarrier.wait(kv_full, 0)
    for _ in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        num_tiles, _, _ = _queries_of(col0, b, counts_ptr, tiles_ptr, num_q_tiles, kv_len, BN)
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
    tma_store(dk_desc, [b, kv_h, col0, 0], k_s)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "heads",
        "kv_heads",
        "q_len",
        "kv_len",
        "head_dim",
        "v_head_dim",
        "num_q_tiles",
        "batch",
        "num_rows",
        "head_group",
    ]
)
def _backward_kv_wide_sm90(
    q_desc,
    do_desc,
    k_desc,
    v_desc,
    lse_desc,
    delta_desc,
    dk_desc,
    dv_desc,
    counts_ptr,
    tiles_ptr,
    num_q_tiles,
    is_global_ptr,
    stride_is_global_0,
    scale,
    batch,
    heads,
    kv_heads,
    q_len,
    kv_len,
    num_rows,
    head_group,
    BM: gl.constexpr,
    BN: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    # Grid: one program for each tile of BN = 64 keys of each head of K and V of each batch element. It walks along the
    # queries as _backward_kv_sm90 does and leaves dq to _backward_q: a thread holds 64 x 256 of either dk or dv.
    # One warp loads (_wide_producer), four warps make p and dv (_wide_dv_consumer), four ds and dk (_wide_dk_consumer).
    # Channels say when a tile has arrived in shared memory, and when all who read it are done.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up; what lies beyond reads as zero.
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
    loads = (batch, heads, kv_heads, kv_len, num_rows, head_group)
    # fmt: off
    gl.warp_specialize([
        (_wide_dv_consumer, (
            for_dv, kv_full, q_channel, do_channel, p_full, dv_desc, counts_ptr, tiles_ptr, num_q_tiles, is_global_ptr,
            stride_is_global_0, (scale, batch, heads, kv_heads, q_len, kv_len, head_group), BM, BN, HEAD_DIM,
            V_HEAD_DIM, STAGES,
        )),
        (_wide_dk_consumer, (
            for_dk, kv_full, q_channel, do_channel, p_full, dk_desc, counts_ptr, tiles_ptr, num_q_tiles,
            (scale, batch, heads, kv_heads, kv_len, head_group), BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
        )),
        (_wide_producer, (
            q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, (q_s, do_s, k_s, v_s, lse_s, delta_s), kv_full,
            q_channel, do_channel, counts_ptr, tiles_ptr, num_q_tiles, loads, BM, BN, STAGES,
        )),
    ], [4, 1], [240, 24])
    # fmt: on


def _inputs(q, sizes, is_global):
    """The inputs as kernels read them, checked against the sizes of a call."""
    batch = sizes.batch
    kv_len = sizes.kv_len
    is_global = runtime.check_input("is_global", is_global, "[batch, kv_len]", (batch, kv_len), torch.bool, q)
    return is_global


def _launch(q, k, v, is_global, scale, config, counts, tiles):
    """The operator: check the arguments, choose the config, launch. Returns out and lse."""
    call = runtime.prepare(q, k, v, scale)
    is_global = _inputs(call.q, call.sizes, is_global)
    out, lse = runtime.outputs(call)
    if runtime.is_empty(call):
        return runtime.nothing_seen(out, lse)
    config = runtime.choose_config(config, CONFIGS, call)
    if counts is None:
        counts, tiles = _schedule(call, is_global, config)
    else:
        runtime.check_plan(counts, tiles, runtime.state_shape(call, config, True, False), call.q)
    if config.backend == "hopper":
        runtime.relaunch(
            _forward_sm90, (call.layout, config),
            call.q, call.k, call.v, out, lse, runtime.tile_counter(call),
            counts, tiles, tiles.shape[-1], is_global, is_global.stride(0),
            rest=lambda: runtime.Rest(
                runtime.hopper_programs(call, config),
                call.strides, call.scale, call.sizes.batch, call.lengths, runtime.head_group(call),
                **runtime.hopper_blocks(call, config), **runtime.options(config),
            ),
        )  # fmt: skip
        return out, lse
    runtime.relaunch(
        _forward, (call.layout, config),
        call.q, call.k, call.v, out, lse,
        counts, tiles, tiles.shape[-1], is_global, is_global.stride(0),
        rest=lambda: runtime.Rest(
            -(-call.sizes.q_len // config.BM) * call.sizes.batch * call.sizes.heads,
            call.strides, call.scale, call.lengths,
            **call.blocks(config), STAGES=config.num_stages, **runtime.options(config),
        ),
    )  # fmt: skip
    return out, lse


def _schedule(call, is_global, config, by_key=False):
    """Which tiles of keys each tile of queries needs, or where `by_key` the other way round: see runtime.Plan."""
    shape = runtime.state_shape(call, config, by_batch=True, by_head=False)
    batch, heads, q_tiles, kv_tiles = shape
    states = torch.empty(shape, dtype=torch.int8, device=call.q.device)
    # Long chunks share work, short ones keep the GPU busy.
    chunk = 32 if states.numel() > 1 << 17 else 8
    runtime.launch(
        _classify, -(-kv_tiles // chunk) * q_tiles * batch * heads,
        states,
        is_global, is_global.stride(0),
        call.sizes.q_len, call.sizes.kv_len, kv_tiles,
        BM=config.BM, BN=config.BN, CHUNK=chunk, num_warps=max(1, config.BM * config.BN // 2048),
    )  # fmt: skip
    return runtime.compact(runtime.by_key(states, call.sizes.q_len % config.BM != 0) if by_key else states)


def _launch_backward(
    d_out, d_lse, q, k, v, is_global, out, lse, scale, config, deterministic, key_counts, key_tiles, needs
):  # fmt: skip
    """The backward operator. Returns the gradients of q, k, v; None for one that `needs` does not ask for."""
    call = runtime.prepare(q, k, v, scale)
    is_global = _inputs(call.q, call.sizes, is_global)
    if runtime.is_empty(call):
        return runtime.no_gradients(q, k, v)
    needs_q, needs_k, needs_v = needs[:3]
    fuse_dq = needs_q and (needs_k or needs_v) and not runtime.is_deterministic(deterministic)
    kv_config, q_config = runtime.backward_configs(config, BACKWARD_KV, BACKWARD_Q, call, fuse_dq)
    dq_sums = runtime.hopper_query_sums(call, kv_config)
    incoming = _incoming(call, out, lse, d_out, d_lse, dq_sums, kv_config)
    dq = dk = dv = None
    if needs_k or needs_v:
        key_plan = runtime.key_plan(key_counts, key_tiles, call, kv_config, True, False)
        if kv_config.backend == "hopper":
            dq, dk, dv = _launch_backward_kv_hopper(call, incoming, dq_sums, is_global, kv_config, key_plan)
        else:
            dq, dk, dv = _launch_backward_kv(call, incoming, is_global, kv_config, key_plan)
    if needs_q and dq is None:
        if q_config.backend == "hopper":
            dq = _launch_backward_q_hopper(call, incoming, is_global, q_config)
        else:
            dq = _launch_backward_q(call, incoming, is_global, q_config)
    return (
        runtime.for_scale(dq, scale), dk, dv,
    )  # fmt: skip


def _incoming(call, out, lse, d_out, d_lse, dq_sums, config):
    """What the backward kernels need of each row: d_out, lse in units of log2, and delta. Clears dq_sums."""
    incoming = runtime.incoming(call, d_out)
    runtime.relaunch(
        _delta, (call.layout, config),
        out, incoming.d_out, lse, d_lse, incoming.lse, incoming.delta, dq_sums,
        incoming.strides, (0, 0, 0) if d_lse is None else d_lse.stride(),
        rest=lambda: runtime.Rest(
            runtime.delta_programs(call, incoming),
            call.sizes.heads, call.sizes.q_len, incoming.num_rows, call.sizes.v_head_dim,
            **runtime.delta_blocks(call, dq_sums),
        ),
    )  # fmt: skip
    return incoming


def _launch_backward_kv(call, incoming, is_global, config, key_plan=None):
    """dk and dv, and dq where the config fuses, else None. Returns dq, dk, dv."""
    dq_sums = runtime.query_sums(call) if config.fuse_dq else None
    dk, dv = runtime.key_gradients(call)
    counts, tiles = key_plan or _schedule(call, is_global, config, by_key=True)
    runtime.relaunch(
        _backward_kv, (call.layout, incoming.strides, config),
        call.q, call.k, call.v, incoming.d_out, incoming.lse, incoming.delta, dq_sums, dk, dv,
        counts, tiles, tiles.shape[-1], is_global, is_global.stride(0),
        rest=lambda: runtime.Rest(
            -(-call.sizes.kv_len // config.BN) * call.sizes.batch * call.sizes.heads,
            call.strides, incoming.strides, incoming.num_rows, 0 if dq_sums is None else dq_sums.stride(2),
            call.scale, call.lengths,
            **call.blocks(config), FUSE_DQ=config.fuse_dq, STAGES=config.num_stages, **runtime.options(config),
        ),
    )  # fmt: skip
    dq = runtime.from_sums(call, dq_sums) if config.fuse_dq else None
    return dq, runtime.sum_of_groups(call, dk), runtime.sum_of_groups(call, dv)


def _launch_backward_kv_hopper(call, incoming, dq_sums, is_global, config, key_plan=None):
    """The same by a Hopper kernel: wide heads have one of their own, with tiles of 64 keys and without dq.

    The other one adds to dq_sums, if there are any.
    """
    dq = None
    dk, dv = runtime.hopper_key_gradients(call)
    counts, tiles = key_plan or _schedule(call, is_global, config, by_key=True)
    if config.wide:
        runtime.relaunch(
            _backward_kv_wide_sm90, (call.layout, incoming.strides, config),
            call.q, incoming.d_out, call.k, call.v, incoming.lse_by_tile, incoming.delta, dk, dv,
            counts, tiles, tiles.shape[-1], is_global, is_global.stride(0),
            rest=lambda: runtime.Rest(
                runtime.hopper_backward_programs(call, config),
                call.scale, call.sizes.batch, call.sizes.heads, call.sizes.kv_heads, call.sizes.q_len,
                call.sizes.kv_len, incoming.num_rows, runtime.key_head_group(call, config),
                tilings=runtime.hopper_wide_tiles(call, incoming, dk, dv, config),
                **runtime.hopper_wide_blocks(call, config), **runtime.options(config),
            ),
        )  # fmt: skip
        return None, dk, dv
    runtime.relaunch(
        _backward_kv_sm90, (call.layout, incoming.strides, config),
        call.q, incoming.d_out, call.k, call.v, incoming.lse_by_tile, incoming.delta, dq_sums, dk, dv,
        runtime.tile_counter(call),
        counts, tiles, tiles.shape[-1], is_global, is_global.stride(0),
        rest=lambda: runtime.Rest(
            runtime.hopper_backward_programs_at_once(call, config),
            call.scale, call.sizes.batch, call.sizes.heads, call.sizes.kv_heads, call.sizes.q_len,
            call.sizes.kv_len, incoming.num_rows, runtime.key_head_group(call, config), 0 if config.all_heads else 1,
            tilings=runtime.hopper_backward_tiles(call, incoming, dq_sums, dk, dv, config),
            BM=config.BM, BN=config.BN, STAGES=config.num_stages, FUSE_DQ=config.fuse_dq, DELAY_DQ=config.delay_dq,
            **runtime.options(config),
        ),
    )  # fmt: skip
    if dq_sums is not None:
        dq = runtime.query_gradient(call)
        runtime.relaunch(
            collect_dq, (call.layout, config),
            dq_sums, dq,
            rest=lambda: runtime.Rest(
                dq_sums.numel() // 4096,
                call.scale, call.sizes.q_len, incoming.num_rows, call.sizes.head_dim,
                HEAD_DIM=8192 // config.BM,
            ),
        )  # fmt: skip
    return dq, dk, dv


def _launch_backward_q(call, incoming, is_global, config):
    """dq."""
    dq = runtime.query_gradient(call)
    counts, tiles = _schedule(call, is_global, config)
    runtime.relaunch(
        _backward_q, (call.layout, incoming.strides, config),
        call.q, call.k, call.v, incoming.d_out, incoming.lse, incoming.delta, dq,
        counts, tiles, tiles.shape[-1], is_global, is_global.stride(0),
        rest=lambda: runtime.Rest(
            -(-call.sizes.q_len // config.BM) * call.sizes.batch * call.sizes.heads,
            call.strides, incoming.strides, incoming.num_rows, call.scale, call.lengths,
            **call.blocks(config), STAGES=config.num_stages, **runtime.options(config),
        ),
    )  # fmt: skip
    return dq


def _launch_backward_q_hopper(call, incoming, is_global, config):
    """The same by the Hopper kernel."""
    dq = runtime.query_gradient(call)
    counts, tiles = _schedule(call, is_global, config)
    runtime.relaunch(
        _backward_q_sm90, (call.layout, incoming.strides, config),
        call.q, incoming.d_out, call.k, call.v, dq, incoming.lse, incoming.delta,
        counts, tiles, tiles.shape[-1], is_global, is_global.stride(0),
        rest=lambda: runtime.Rest(
            -(-call.sizes.q_len // config.BM) * call.sizes.batch * call.sizes.heads,
            call.scale, call.sizes.batch, call.sizes.heads, call.sizes.kv_heads, call.sizes.q_len,
            call.sizes.kv_len, incoming.num_rows, runtime.head_group(call),
            tilings=runtime.hopper_query_tiles(call, incoming, dq, config),
            **runtime.hopper_query_blocks(call, config), **runtime.options(config),
        ),
    )  # fmt: skip
    return dq


OPERATOR = runtime.attention_operator(
    IDENTITY,
    "Tensor is_global",
    _launch,
    _launch_backward,
    inputs=_inputs,
    planned=True,
)


def attention(
    q,
    k,
    v,
    *,
    is_global,
    scale=None,
    return_lse=False,
    plan=None,
    config=None,
    backward_config=None,
    deterministic=None,
):
    """A window of 256 keys to each side; tokens marked global see every key and are seen by every query.

    q [batch, heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len, v_head_dim]:
    float16, bfloat16 or float32, heads a multiple of kv_heads; under torch.autocast they are cast to its dtype. k and v
    of batch 1 serve all batch elements. Inputs of other dtypes are converted: floats to floats, integers to integers or
    bools.
    Returns out [batch, heads, q_len, v_head_dim] in q's dtype; with return_lse also the natural log-sum-exp of each
    row, float32 [batch, heads, q_len], minus infinity where a row sees no key. Differentiable in q, k and v.

    is_global: bool [batch, kv_len].
    scale: factor of the dot products, 1/sqrt(head_dim) by default.
    plan: what plan(...) returned for the same inputs and lengths; otherwise it is made on each call.
    config: tile sizes and launch options instead of the recorded ones.
    backward_config: the same for the backward pass, {"backward_kv": config, "backward_q": config}.
    deterministic: gradients with the same bits on every run; None asks torch.are_deterministic_algorithms_enabled().

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit.
    """
    runtime.check_types(q, k, v, scale, deterministic, is_global=is_global)
    is_global = runtime.as_dtype(is_global, torch.bool)
    q, k, v = runtime.autocast(q, k, v)
    k, v = runtime.over_batch(q, k, v)
    parts, config, backward_config = runtime.plan_parts(plan, config, backward_config)
    out, lse = OPERATOR(
        q, k, v, is_global, scale, runtime.config_text(config), *parts,
        deterministic, runtime.backward_config_text(backward_config),
    )  # fmt: skip
    return (out, lse) if return_lse else out


def plan(q, k, v, *, is_global, config=None):
    """The schedule for these inputs and lengths, for attention(..., plan=...). Arguments as attention takes them.

    Where one of them requires a gradient it has a part for the backward pass too.
    """
    runtime.check_types(q, k, v, is_global=is_global)
    is_global = runtime.as_dtype(is_global, torch.bool)
    q, k, v = runtime.autocast(q, k, v)
    k, v = runtime.over_batch(q, k, v)
    call = runtime.prepare(q, k, v, None)
    is_global = _inputs(call.q, call.sizes, is_global)
    config = runtime.choose_config(runtime.config_text(config), CONFIGS, call)
    backward = None
    if runtime.wants_gradients(q, k, v):
        kv_config = runtime.choose_config(None, BACKWARD_KV, call)
        backward = runtime.Plan(*_schedule(call, is_global, kv_config, by_key=True), kv_config)
    return runtime.Plan(*_schedule(call, is_global, config), config, backward)


def reference(q, k, v, *, is_global, scale=None, return_lse=False):
    """The same in eager PyTorch, the whole score matrix in memory; in float64 where q is float64."""
    is_global = runtime.as_dtype(is_global, torch.bool)

    def formula(score, b, h, kv_h, q, k):
        return score, (abs(q - k) <= 256) | is_global[b, k] | is_global[b, q.clamp(min=0)]

    return runtime.eager_attention(q, k, v, formula, bottom_right=True, scale=scale, return_lse=return_lse)
