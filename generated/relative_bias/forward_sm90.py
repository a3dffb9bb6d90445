"""relative_bias: out and lse, for Hopper.

Generated from variants/relative_bias.yaml by

    flashgen build variants/relative_bias.yaml

Do not edit: change the spec and build again.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma_wait

from flashgen.runtime.device.sm90.barriers import make_channel
from flashgen.runtime.device.sm90.forward_steps import (
    ForwardShape, allocate_forward, begin_steps, describe_output, finish_product, load_queries, start_step,
    store_output, zero_acc,
)
from flashgen.runtime.device.sm90.paged_keys import (
    bring_keys, bring_values, count_query_tiles, describe_keys, find_tile, next_query_tile, no_keys,
)
from flashgen.runtime.device.sm90.scheduler import TilesInTurn, make_scheduler
from flashgen.runtime.device.sm90.sequences import (
    describe_sequences, first_stat, hide_if_none, last_row, some_keys, tma_place,
)
from flashgen.runtime.device.sm90.softmax import packed, softmax_step_natural
from flashgen.runtime.device.sm90.tiles import tile_at
from flashgen.runtime.device.sm90.work_tiles import other_range, query_tile

from .pair import _is_uniform, _score, _uniform_score


@gluon.jit
def _work(work_tile, batch, heads, q_len, kv_len, sequences, BM: gl.constexpr):
    """What `query_tile` says of a tile of queries, its first row, its keys."""
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, _ = sequences
    b, h, tile, begin_q, q_len = query_tile(work_tile, cu_seqlens_q_ptr, q_len, batch, heads, None, BM)
    begin_k, num_keys = other_range(work_tile, cu_seqlens_k_ptr, b, kv_len)
    row0 = tile * BM
    return b, h, row0, begin_q, q_len, begin_k, num_keys


@gluon.jit
def _is_uniform_key_tile(i, num_tiles, kv_len, q_first, q_last, BN: gl.constexpr):
    """Whether there is a tile i, all of whose pairs read at one place."""
    k_first = (num_tiles - 1 - i) * BN
    k_last = gl.minimum(k_first + BN, kv_len) - 1
    return (i < num_tiles) & (q_first <= q_last) & _is_uniform(k_first, k_last, q_first, q_last)


@gluon.jit
def _producer(
    tensors, strides, shared, scheduler, channels, sizes, sequences, shape, BM: gl.constexpr, BN: gl.constexpr,
):
    # One warp: brings the tiles of Q, K and V into shared memory by TMA as soon as the consumers have made room.
    q_ptr, k_ptr, v_ptr = tensors
    q_strides, k_strides, v_strides = strides
    batch, heads, kv_heads, longest_q, longest_k, head_dim, v_head_dim = sizes
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, pages = sequences
    q_s, k_s, v_s = shared[:3]
    q_channel, k_channel, v_channel = channels
    k_descs = describe_keys(pages, cu_seqlens_k_ptr, k_ptr, batch, kv_heads, longest_k, head_dim, k_strides, k_s, shape)
    q_descs = describe_sequences(
        cu_seqlens_q_ptr, q_ptr, batch, heads, longest_q, head_dim, q_strides, q_s, shape.SPLIT
    )
    v_descs = describe_keys(
        pages, cu_seqlens_k_ptr, v_ptr, batch, kv_heads, longest_k, v_head_dim, v_strides, v_s, shape
    )
    num_q_tiles = count_query_tiles(pages, cu_seqlens_q_ptr, num_seqs, total_q, longest_q, batch, heads, BM)
    num_tiles = gl.cdiv(longest_k, BN)
    work_tile = next_query_tile(sequences, gl.program_id(0), None, longest_q, longest_k, heads, BM)
    ticket = 0  # tiles of queries so far
    # Tiles of keys so far. V comes after K of the tile that follows, also
    # where that is the first of the next tile of queries: there is room for K sooner.
    n = 0
    v_b, v_head, v_row = no_keys(pages)
    while work_tile[0] < num_q_tiles:
        scheduler.announce(ticket, work_tile)
        _, h, row0, begin_q, q_len, begin_k, num_keys = _work(
            work_tile, batch, heads, longest_q, longest_k, sequences, BM
        )
        kv_h = h // (heads // kv_heads)
        if cu_seqlens_k_ptr is not None:
            num_tiles = gl.cdiv(some_keys(cu_seqlens_k_ptr, num_keys), BN)
        for i in range(num_tiles):
            k_b, k_row = find_tile(pages, cu_seqlens_k_ptr, begin_k, num_keys, (num_tiles - 1 - i) * BN, shape)
            bring_keys(pages, k_descs, k_b, kv_h, k_row, n, k_s, k_channel, v_channel, shape)
            if n > 0:
                bring_values(pages, v_descs, v_b, v_head, v_row, n - 1, v_s, k_channel, v_channel, shape)
            v_b, v_head, v_row = k_b, kv_h, k_row
            if i == 0:
                # An earlier tile may still read Q when there is room for keys already.
                load_queries(q_descs, cu_seqlens_q_ptr, begin_q, q_len, h, row0, ticket, q_s, q_channel, shape)
            n += 1
        ticket += 1
        work_tile = next_query_tile(sequences, work_tile[0] + gl.num_programs(0), None, longest_q, longest_k, heads, BM)
    scheduler.announce(ticket, work_tile)
    if cu_seqlens_q_ptr is None or n > 0:
        bring_values(pages, v_descs, v_b, v_head, v_row, n - 1, v_s, k_channel, v_channel, shape)


@gluon.jit
def _consumer(
    CONSUMER: gl.constexpr, shared, scheduler, channels, outputs, rel_ptr, stride_rel_0, sizes, sequences, shape,
    BM: gl.constexpr, BN: gl.constexpr,
):
    # Four warps: ROWS rows of each tile of queries.
    # q [ROWS, 1]: positions of the tile's rows; k [1, BN]: positions of a tile's keys. m, l, p: see
    # softmax_step_natural.
    # acc: the sums for the columns of V, in one part or two, see ForwardShape.
    out_desc, lse_ptr, max_ptr, residue_ptr = outputs
    scale, batch, heads, longest_q, longest_k = sizes
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, pages = sequences
    q_s, out_s = shared[0], shared[3]
    q_channel, k_channel, v_channel = channels
    ROWS: gl.constexpr = shape.ROWS
    qk_layout: gl.constexpr = shape.qk_layout
    row_layout: gl.constexpr = gl.SliceLayout(1, qk_layout)
    col_layout: gl.constexpr = gl.SliceLayout(0, qk_layout)
    zero = gl.zeros([ROWS, BN], gl.float32, qk_layout)
    num_q_tiles = count_query_tiles(pages, cu_seqlens_q_ptr, num_seqs, total_q, longest_q, batch, heads, BM)
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
    l = gl.zeros([ROWS, 8], gl.float32, shape.l_layout)
    pairs = packed(zero, out_s.dtype)
    acc = zero_acc(shape)
    begin_steps(channels, CONSUMER, shape)
    index = gl.program_id(0) - gl.num_programs(0)
    while index < num_q_tiles:
        work_tile = scheduler.take(ticket, index)
        index = work_tile[0]
        begins = index < num_q_tiles
        finishes = ticket > 0

        # Start the first scores of this tile and the last product of the one before.
        last = v_channel.slot(n - 1 + 2 * shape.STAGES)  # that of n - 1, and a place where n is 0
        slot = k_channel.slot(n)
        q_slot = q_channel.slot(ticket, CONSUMER)
        q_tile = tile_at(q_s, q_slot[0], shape.SPLIT)
        q_channel.wait(q_slot, begins)
        scores, product = start_step(
            q_tile, zero, pairs, acc, slot, last, shared, channels, CONSUMER, shape, begins, finishes
        )

        # Beside them: by what to scale the sums of the tile before, and its lse.
        if cu_seqlens_q_ptr is not None:
            _, b, h, tile, begin_q, q_len, _, _ = scheduler.take_again(ticket - 1, work_tile, finishes)
            row0 = tile * BM + CONSUMER * ROWS
        l = gl.convert_layout(gl.sum(l, 1), row_layout)
        empty = l == 0
        factor = 1.0 / gl.where(empty, 1.0, l)
        lse = m + gl.log2(l) * 0.6931471805599453
        rows = row0 + gl.arange(0, ROWS, layout=row_layout)
        stat_rows = first_stat(cu_seqlens_q_ptr, b, h, heads, begin_q, q_len, total_q) + rows
        # Beside it what it has lost of log(l), all of it in a row of huge scores, for the backward pass.
        residue = gl.log2(l) * 0.6931471805599453 - (lse - m)
        exist = (rows < q_len) & finishes
        gl.store(lse_ptr + stat_rows, gl.where(empty, -float("inf"), lse), mask=exist)
        gl.store(residue_ptr + stat_rows, gl.where(empty, 0.0, residue), mask=exist)
        if max_ptr is not None:  # NaN where a logit is
            largest = gl.where((l == l) | (m == float("inf")), m, l)
            gl.store(max_ptr + stat_rows, gl.where(empty, -float("inf"), largest), mask=exist)
        out_b, out_row0 = tma_place(cu_seqlens_q_ptr, begin_q, q_len, row0)
        out_h = h

        # The tile that begins.
        b, h, row0, begin_q, q_len, begin_k, num_keys = _work(
            work_tile, batch, heads, longest_q, longest_k, sequences, BM
        )
        kv_len = some_keys(cu_seqlens_k_ptr, num_keys)
        if cu_seqlens_k_ptr is not None:
            num_tiles = gl.cdiv(kv_len, BN)
        row0 += CONSUMER * ROWS
        rows = row0 + gl.arange(0, ROWS, layout=row_layout)
        # Rows beyond the last are taken as the last: they read what exists.
        q = (gl.minimum(rows, last_row(cu_seqlens_k_ptr, num_keys, q_len)) + (kv_len - q_len))[:, None]
        q_first = row0 + (kv_len - q_len)
        q_last = gl.minimum(row0 + ROWS, q_len) - 1 + (kv_len - q_len)
        rel_base = rel_ptr + h.to(gl.int64) * stride_rel_0

        # Its first tile of keys, as if it were mixed.
        # Always 0, which the compiler does not know: it would compute the keys' positions once and keep them all.
        i = gl.where(ticket < 0, 1, 0)
        start = (num_tiles - 1 - i) * BN
        qk = warpgroup_mma_wait(shape.PRODUCTS, deps=(scores,))
        k_channel.release(slot, begins)
        col = start + gl.arange(0, BN, layout=col_layout)[None, :]
        k = gl.minimum(col, kv_len - 1)
        x = _score(qk, q, k, rel_base, scale)
        x = gl.where(col < kv_len, x, -float("inf"))
        x = hide_if_none(cu_seqlens_k_ptr, num_keys, x)

        # A finite floor for the maximum: -inf - floor is -inf, so that a row that sees no key stays at l = 0.
        m = gl.full([ROWS], -3.4028234663852886e38, gl.float32, row_layout)
        l = gl.zeros([ROWS, 8], gl.float32, shape.l_layout)
        p, alpha, m, l = softmax_step_natural(x, m, l)

        # The output of the tile before, which TMA writes as far as there are rows and columns.
        acc = finish_product(product, factor, last, v_channel, shape, finishes)
        if finishes:
            store_output(out_desc, out_s, acc, out_b, out_h, out_row0, CONSUMER, shape)
        acc = zero_acc(shape)
        pairs = packed(p, out_s.dtype)

        # The other tiles: each row sees each key.
        # Runs of uniform ones, all of whose pairs read at one place, and of others.
        i = gl.where(begins, 1, num_tiles)
        while i < num_tiles:
            while _is_uniform_key_tile(i, num_tiles, kv_len, q_first, q_last, BN):
                # Start the scores of this tile and the product of the last one; the softmax runs beside the product.
                last = v_channel.slot(n)
                n += 1
                slot = k_channel.slot(n)
                scores, product = start_step(q_tile, zero, pairs, acc, slot, last, shared, channels, CONSUMER, shape)
                start = (num_tiles - 1 - i) * BN
                qk = warpgroup_mma_wait(shape.PRODUCTS, deps=(scores,))
                k_channel.release(slot)
                x = _uniform_score(qk, start, q_first, rel_base, scale)
                p, alpha, m, l = softmax_step_natural(x, m, l)
                acc = finish_product(product, alpha, last, v_channel, shape)
                pairs = packed(p, out_s.dtype)
                i += 1
            while (i < num_tiles) & ~_is_uniform_key_tile(i, num_tiles, kv_len, q_first, q_last, BN):
                # Start the scores of this tile and the product of the last one; the softmax runs beside the product.
                last = v_channel.slot(n)
                n += 1
                slot = k_channel.slot(n)
                scores, product = start_step(q_tile, zero, pairs, acc, slot, last, shared, channels, CONSUMER, shape)
                start = (num_tiles - 1 - i) * BN
                qk = warpgroup_mma_wait(shape.PRODUCTS, deps=(scores,))
                k_channel.release(slot)
                k = start + gl.arange(0, BN, layout=col_layout)[None, :]
                x = _score(qk, q, k, rel_base, scale)
                p, alpha, m, l = softmax_step_natural(x, m, l)
                acc = finish_product(product, alpha, last, v_channel, shape)
                pairs = packed(p, out_s.dtype)
                i += 1

        q_channel.release(q_slot)
        n += 1
        ticket += 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "batch", "num_seqs", "total_q", "total_k",
    "stride_table", "num_blocks", "step_page", "step_slot",
])
def _forward_sm90(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, max_ptr, residue_ptr, rel_ptr, stride_rel_0,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    scale, batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    block_table_ptr, stride_table, items_ptr, count_ptr, num_blocks, step_page, step_slot,
    BM: gl.constexpr, BN: gl.constexpr, HEAD_DIM: gl.constexpr, V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr, CONSUMERS: gl.constexpr, PING_PONG: gl.constexpr, SPLIT: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
):
    # Grid: at most as many programs as the GPU holds at once; they share the tiles of BM query rows of all heads.
    # Packed sequences are where cu_seqlens are not None; see work_tiles.py for both. Keys lie in pages of BLOCK_SIZE
    # slots where block_table is not None, see paged_keys.py.
    # One warp loads (_producer), CONSUMERS groups of four warps compute (_consumer). A channel says
    # when a tile has arrived in shared memory, and when all who read it are done.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up; what lies beyond reads as zero.
    shape = ForwardShape(BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES, CONSUMERS, PING_PONG, SPLIT, BLOCK_SIZE)
    shared = allocate_forward(q_ptr.dtype.element_ty, shape, cu_seqlens_q_ptr is not None)
    out_desc = describe_output(cu_seqlens_q_ptr, out_ptr, batch, heads, q_len, v_head_dim, shared[3])
    scheduler = make_scheduler(CONSUMERS, True) if cu_seqlens_q_ptr is not None else TilesInTurn()
    q_channel = make_channel(shape.Q_SLOTS, 1, CONSUMERS)
    k_channel = make_channel(STAGES, CONSUMERS, NAMED=shape.K_NAMED)
    v_channel = make_channel(STAGES, CONSUMERS, NAMED=shape.V_NAMED)
    channels = (q_channel, k_channel, v_channel)
    pages = (block_table_ptr, stride_table, items_ptr, count_ptr, num_blocks, step_page, step_slot)
    sequences = (cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, pages)
    tensors = (q_ptr, k_ptr, v_ptr)
    strides = ((stride_qb, stride_qh, stride_qm), (stride_kb, stride_kh, stride_kn), (stride_vb, stride_vh, stride_vn))
    outputs = (out_desc, lse_ptr, max_ptr, residue_ptr)
    loads = (batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim)
    computes = (scale, batch, heads, q_len, kv_len)
    # A thread has as many registers as ForwardShape says; the launch gives their mean.
    # fmt: off
    if CONSUMERS == 2:
        gl.warp_specialize([
            (_consumer, (
                0, shared, scheduler, channels, outputs, rel_ptr, stride_rel_0, computes, sequences, shape, BM, BN,
            )),
            (_consumer, (
                1, shared, scheduler, channels, outputs, rel_ptr, stride_rel_0, computes, sequences, shape, BM, BN,
            )),
            (_producer, (tensors, strides, shared, scheduler, channels, loads, sequences, shape, BM, BN)),
        ], [4, 1], [shape.REGISTERS, shape.PRODUCER_REGISTERS])
    else:
        gl.warp_specialize([
            (_consumer, (
                0, shared, scheduler, channels, outputs, rel_ptr, stride_rel_0, computes, sequences, shape, BM, BN,
            )),
            (_consumer, (
                1, shared, scheduler, channels, outputs, rel_ptr, stride_rel_0, computes, sequences, shape, BM, BN,
            )),
            (_consumer, (
                2, shared, scheduler, channels, outputs, rel_ptr, stride_rel_0, computes, sequences, shape, BM, BN,
            )),
            (_producer, (tensors, strides, shared, scheduler, channels, loads, sequences, shape, BM, BN)),
        ], [4, 4, 1], [shape.REGISTERS, shape.REGISTERS, shape.PRODUCER_REGISTERS])
    # fmt: on
