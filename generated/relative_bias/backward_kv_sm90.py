"""relative_bias: dk and dv, and dq where a config fuses it, for Hopper.

Generated from variants/relative_bias.yaml by

    flashgen build variants/relative_bias.yaml

Do not edit: change the spec and build again.
"""

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

from flashgen.runtime.gluon import tma_add, tma_load, tma_store

from .pair import _add, _flat_score, _is_flat, _score


@gluon.jit
def _place_of(index, batch, kv_heads, kv_len, head_group, BN: gl.constexpr):
    """Tile `index` of keys: its head in the batch, its place along the keys, and the size of its group.

    The heads are taken in groups of head_group, whose Q and dO stay in the L2 cache.
    """
    num_tiles = gl.cdiv(kv_len, BN)
    first = index // (num_tiles * head_group) * head_group
    group = gl.minimum(head_group, batch * kv_heads - first)
    turn = index - first * num_tiles
    return first + turn % group, turn // group, group


@gluon.jit
def _keys_of(index, batch, kv_heads, kv_len, head_group, BN: gl.constexpr):
    """Tile `index` of keys: its batch element, head of K and V, and first key."""
    head, place, _ = _place_of(index, batch, kv_heads, kv_len, head_group, BN)
    return head // kv_heads, head % kv_heads, place * BN


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
def _is_flat_query_tile(i, num_tiles, k_first, k_last, kv_len, q_len, BM: gl.constexpr):
    """Whether there is a tile i, all of whose pairs read at one place."""
    start = _query_tile(i, num_tiles, BM)
    q_first = start + (kv_len - q_len)
    q_last = gl.minimum(start + BM, q_len) - 1 + (kv_len - q_len)
    return (i < num_tiles) & _is_flat(k_first, k_last, q_first, q_last)


@gluon.jit
def _issue_dq(ds_s, buffer, k_s, zero, CONSUMER: gl.constexpr):
    """Start dS K, from the dS^T of both consumers in a buffer, for this one's 64 rows or columns of it."""
    HEAD_DIM: gl.constexpr = k_s.type.shape[-1]
    dq = zero
    for c in gl.static_range(2):
        ds = ds_s.index(2 * buffer + c)
        keys = k_s.index(c).reshape([64, HEAD_DIM])
        if HEAD_DIM == 128:
            keys = keys.slice(64 * CONSUMER, 64, 1)
        else:
            ds = ds.slice(64 * CONSUMER, 64, 1)
        dq = warpgroup_mma(ds.permute((1, 0)), keys, dq, use_acc=c > 0, is_async=True)
    return dq


@gluon.jit
def _add_dq(dq_sums, dq_s, at, dq, FUSE_DQ: gl.constexpr):
    """Add a tile [64, 64] to the sums in memory, from element 64 * at on, in the order in which the threads hold it:

    by eight columns, warp and lane, and a thread's four values of these columns, rows 0 and 8 by columns 0 and 1.
    FUSE_DQ 1: each thread adds what it holds. FUSE_DQ 2: TMA adds it from shared memory.
    """
    if FUSE_DQ == 1:
        layout: gl.constexpr = dq.type.layout
        rows = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
        cols = gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
        # The address of the first of a thread's four values; the others are not looked at.
        places = ((rows >> 4) * 128 + (rows & 7) * 16)[:, None] + ((cols >> 3) * 512 + (cols >> 1 & 3) * 4)[None, :]
        addresses = (dq_sums + at.to(gl.int64) * 64 + places).to(gl.int64)
        gl.inline_asm_elementwise(
            "red.global.add.v4.f32 [$4], {$8, $9, $10, $11}; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;",
            "=r,=r,=r,=r,l,l,l,l,f,f,f,f", [addresses, dq], gl.int32, False, 4,
        )  # fmt: skip
    else:
        # What was added before must be out of shared memory.
        tma.store_wait(0)
        dq_s.store(dq.reshape([4, 2, 8, 8, 4, 2]).permute((3, 0, 2, 4, 1, 5)).reshape([16, 256]))
        fence_async_shared()
        tma_add(dq_sums, [at // 4, 0], dq_s)


@gluon.jit
def _stage_of(n, STAGES: gl.constexpr):
    """The stage of the n-th tile, and the phase of the barriers there."""
    return (n.to(gl.uint32) % STAGES).to(gl.int32), (n.to(gl.uint32) // STAGES & 1).to(gl.int32)


@gluon.jit
def _anew(value):
    """The same value, of which the compiler does not know it: it keeps nothing in registers that follows from it."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], gl.int32, False, 1)


@gluon.jit
def _meet(BARRIER):
    """Wait at a named barrier until all 256 threads of the consumers are there or have been there.

    Barrier 8: both have dS of a tile in shared memory. Where dQ is made one tile later, 8 + 2 * consumer for its even
    tiles and the next one for its odd tiles. Barrier 12: both have read the keys.
    """
    barrier = gl.full([128], BARRIER, gl.int32, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise("bar.sync $1, 256; mov.b32 $0, $1;", "=r,r", [barrier], gl.int32, False, 1)


@gluon.jit
def _be_there(BARRIER):
    """Count as being at a named barrier, without waiting for others."""
    barrier = gl.full([128], BARRIER, gl.int32, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise("bar.arrive $1, 256; mov.b32 $0, $1;", "=r,r", [barrier], gl.int32, False, 1)


@gluon.jit
def _thread_sums(tile):
    """The sums of what each thread holds of a tile [64, BM]: [4, 8, 4], by warp and lane."""
    return gl.sum(gl.sum(gl.sum(tile.reshape([4, 2, 8, tile.shape[1] // 8, 4, 2]), 5), 3), 1)


@gluon.jit
def _add_thread_sums(sums_ptr, at, sums):
    """Add them to one element, a number for each warp."""
    value = gl.sum(gl.sum(sums, 2), 1)
    _add(sums_ptr, at + gl.zeros_like(value).to(gl.int32), value)


@gluon.jit
def _backward_producer(
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, shared, barriers, sizes,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
):
    # One warp: brings the program's tile of K and V into shared memory by TMA, then the tiles of Q and dO that see it
    # and their rows' lse and delta as soon as the consumers make room.
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, dq_s = shared
    kv_full, q_full, do_full, rows_full, empty = barriers
    b, kv_h, col0 = _keys_of(gl.program_id(0), batch, kv_heads, kv_len, head_group, BN)
    mbarrier.expect(kv_full, 2 * (k_desc.block_type.nbytes + v_desc.block_type.nbytes))
    for c in gl.static_range(2):
        tma_load(k_desc, [b, kv_h, col0 + 64 * c, 0], kv_full, k_s.index(c))
    for c in gl.static_range(2):
        tma_load(v_desc, [b, kv_h, col0 + 64 * c, 0], kv_full, v_s.index(c))
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    for h in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        num_tiles, num_mixed = _queries_of(col0, q_len, kv_len, BM, BN)
        first_row = (b * heads + h) * num_rows
        for i in range(num_tiles):
            start = _query_tile(i, num_tiles, BM)
            stage, phase = _stage_of(n, STAGES)
            mbarrier.wait(empty.index(stage), phase ^ 1)
            mbarrier.expect(q_full.index(stage), q_desc.block_type.nbytes)
            tma_load(q_desc, [b, h, start, 0], q_full.index(stage), q_s.index(stage))
            mbarrier.expect(do_full.index(stage), do_desc.block_type.nbytes)
            tma_load(do_desc, [b, h, start, 0], do_full.index(stage), do_s.index(stage))
            mbarrier.expect(rows_full.index(stage), 8 * BM)
            tma_load(lse_desc, [first_row + start], rows_full.index(stage), lse_s.index(stage))
            tma_load(delta_desc, [first_row + start], rows_full.index(stage), delta_s.index(stage))
            n += 1


@gluon.jit
def _backward_consumer(
    CONSUMER: gl.constexpr, shared, barriers, dq_sums, dk_desc, dv_desc, d_rel_ptr, rel_ptr, stride_rel_0, sizes,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, FUSE_DQ: gl.constexpr, DELAY_DQ: gl.constexpr,
    LEARNED: gl.constexpr,
):
    # Four warps: 64 keys. Tiles of scores are transposed, [64, BM], so that P and dS enter the products for dV and dK
    # from registers; for dQ both consumers put dS into shared memory, and each makes one half of its columns or rows.
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, dq_s = shared
    kv_full, q_full, do_full, rows_full, empty = barriers
    HEAD_DIM: gl.constexpr = k_s.type.shape[-1]
    V_HEAD_DIM: gl.constexpr = v_s.type.shape[-1]
    BUFFERS: gl.constexpr = ds_s.type.shape[0] // 2
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
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    dk = gl.zeros([64, HEAD_DIM], gl.float32, dk_layout)
    dv = gl.zeros([64, V_HEAD_DIM], gl.float32, dv_layout)
    b, kv_h, col0 = _keys_of(gl.program_id(0), batch, kv_heads, kv_len, head_group, BN)
    cols = col0 + 64 * CONSUMER + gl.arange(0, 64, layout=col_layout)
    # Keys beyond the last are taken as the last: they read what exists.
    k = gl.minimum(cols, kv_len - 1)[:, None]
    k_first = col0 + 64 * CONSUMER
    k_last = gl.minimum(col0 + 64 * CONSUMER + 64, kv_len) - 1
    if FUSE_DQ > 0 and DELAY_DQ:
        # As if there had been a tile before the first, with dS = 0.
        last_at = (b * heads + kv_h * (heads // kv_heads)) * num_rows * (HEAD_DIM // 64) + 64 * CONSUMER
        ds_s.index(2 * ((n - 1) & (BUFFERS - 1)) + CONSUMER).store(gl.zeros([64, BM], k_s.dtype, scores_layout))
        fence_async_shared()
        _be_there(8 + 2 * CONSUMER + (n + 1 & 1))
    nothing = _thread_sums(zero)
    d_rel_sums = nothing  # of the element d_rel_at
    d_rel_at = gl.to_tensor(0).to(gl.int64)
    mbarrier.wait(kv_full, 0)
    # At least one, or the compiler would keep for the epilogue what it computes for the loops.
    num_heads = gl.maximum(heads // kv_heads, 1)
    for each in range(num_heads):
        h = kv_h * num_heads + each
        rel_base = rel_ptr + h.to(gl.int64) * stride_rel_0
        num_tiles, num_mixed = _queries_of(col0, q_len, kv_len, BM, BN)
        first_row = (b * heads + h) * num_rows
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
                    _add_thread_sums(d_rel_ptr, d_rel_at, d_rel_sums)
                    d_rel_sums = nothing
                    d_rel_at = element
            stage, phase = _stage_of(n, STAGES)
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
            x = _score(qk, q, k, rel_base, scale)
            x = gl.where((cols < kv_len)[:, None] & (rows < q_len)[None, :], x, -float("inf"))
            p = gl.exp2((x - lse) * 1.4426950408889634)
            dp = warpgroup_mma_wait(0, deps=(products,))
            p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
            delta = delta_s.index(stage).load(row_layout)[None, :]
            ds_out = p * (dp - delta)
            if LEARNED:
                d_rel_sums += gl.where(d_rel_shared, _thread_sums(ds_out), 0.0)
            ds = ds_out.to(k_s.dtype)
            if FUSE_DQ > 0:
                ds_s.index(2 * (n & (BUFFERS - 1)) + CONSUMER).store(ds)
            next_dv = warpgroup_mma(p_operand, do_tile, dv, is_async=True)
            if FUSE_DQ > 0:
                fence_async_shared()
                at = (first_row + start) * (HEAD_DIM // 64) + 64 * CONSUMER
                if DELAY_DQ:
                    # The other consumer is done with the tile before; its own part of dS came with it.
                    _meet(8 + 2 * (1 - CONSUMER) + (n + 1 & 1))
                    next_dq = _issue_dq(ds_s, (n - 1) & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
                    at, last_at = last_at, at
                else:
                    _meet(8)
                    next_dq = _issue_dq(ds_s, n & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
            next_dk = warpgroup_mma(gl.convert_layout(ds, dk_operand), q_tile, dk, is_async=True)
            if FUSE_DQ > 0:
                # dQ leaves while the last product runs.
                dv, dq = warpgroup_mma_wait(1, deps=(next_dv, next_dq))
                _add_dq(dq_sums, dq_s.index(CONSUMER), at, dq, FUSE_DQ)
                dk = warpgroup_mma_wait(0, deps=(next_dk,))
            else:
                dv, dk = warpgroup_mma_wait(0, deps=(next_dv, next_dk))
            mbarrier.arrive(empty.index(stage))
            if FUSE_DQ > 0 and DELAY_DQ:
                _be_there(8 + 2 * CONSUMER + (n & 1))
            n = _anew(n + 1)
            i = _anew(i + 1)

        # Full tiles: each row sees each key, no mask. Runs of flat ones, which read at one place each, and of others.
        while i < num_tiles:
            while _is_flat_query_tile(i, num_tiles, k_first, k_last, kv_len, q_len, BM):
                start = _query_tile(i, num_tiles, BM)
                q_first = start + (kv_len - q_len)
                if LEARNED:
                    # d rel[h, clamp(q - k, -64, 64) + 64]
                    element = gl.cast(h_scaled + (gl.minimum(gl.maximum(q_first - k_first, -64), 64) + 64), gl.int64)
                    if element != d_rel_at:
                        _add_thread_sums(d_rel_ptr, d_rel_at, d_rel_sums)
                        d_rel_sums = nothing
                        d_rel_at = element
                stage, phase = _stage_of(n, STAGES)
                q_tile = q_s.index(stage).reshape([BM, HEAD_DIM])
                do_tile = do_s.index(stage).reshape([BM, V_HEAD_DIM])
                mbarrier.wait(q_full.index(stage), phase)
                scores = warpgroup_mma(k_tile, q_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
                mbarrier.wait(do_full.index(stage), phase)
                products = warpgroup_mma(v_tile, do_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
                qk = warpgroup_mma_wait(1, deps=(scores,))
                mbarrier.wait(rows_full.index(stage), phase)
                lse = lse_s.index(stage).load(row_layout)[None, :]
                x = _flat_score(qk, k_first, q_first, rel_base, scale)
                p = gl.exp2((x - lse) * 1.4426950408889634)
                if DELAY_DQ:
                    # There already: nothing moves across a wait, so that all exponentials run beside dP^T.
                    mbarrier.wait(rows_full.index(stage), phase)
                dp = warpgroup_mma_wait(0, deps=(products,))
                p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
                delta = delta_s.index(stage).load(row_layout)[None, :]
                ds_out = p * (dp - delta)
                if LEARNED:
                    d_rel_sums += _thread_sums(ds_out)
                ds = ds_out.to(k_s.dtype)
                if FUSE_DQ > 0:
                    ds_s.index(2 * (n & (BUFFERS - 1)) + CONSUMER).store(ds)
                next_dv = warpgroup_mma(p_operand, do_tile, dv, is_async=True)
                if FUSE_DQ > 0:
                    fence_async_shared()
                    at = (first_row + start) * (HEAD_DIM // 64) + 64 * CONSUMER
                    if DELAY_DQ:
                        # The other consumer is done with the tile before; its own part of dS came with it.
                        _meet(8 + 2 * (1 - CONSUMER) + (n + 1 & 1))
                        next_dq = _issue_dq(ds_s, (n - 1) & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
                        at, last_at = last_at, at
                    else:
                        _meet(8)
                        next_dq = _issue_dq(ds_s, n & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
                next_dk = warpgroup_mma(gl.convert_layout(ds, dk_operand), q_tile, dk, is_async=True)
                if FUSE_DQ > 0:
                    # dQ leaves while the last product runs.
                    dv, dq = warpgroup_mma_wait(1, deps=(next_dv, next_dq))
                    _add_dq(dq_sums, dq_s.index(CONSUMER), at, dq, FUSE_DQ)
                    dk = warpgroup_mma_wait(0, deps=(next_dk,))
                else:
                    dv, dk = warpgroup_mma_wait(0, deps=(next_dv, next_dk))
                mbarrier.arrive(empty.index(stage))
                if FUSE_DQ > 0 and DELAY_DQ:
                    _be_there(8 + 2 * CONSUMER + (n & 1))
                n = _anew(n + 1)
                i = _anew(i + 1)

            while (i < num_tiles) & ~_is_flat_query_tile(i, num_tiles, k_first, k_last, kv_len, q_len, BM):
                start = _query_tile(i, num_tiles, BM)
                stage, phase = _stage_of(n, STAGES)
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
                x = _score(qk, q, k, rel_base, scale)
                p = gl.exp2((x - lse) * 1.4426950408889634)
                if DELAY_DQ:
                    # There already: nothing moves across a wait, so that all exponentials run beside dP^T.
                    mbarrier.wait(rows_full.index(stage), phase)
                dp = warpgroup_mma_wait(0, deps=(products,))
                p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
                delta = delta_s.index(stage).load(row_layout)[None, :]
                ds_out = p * (dp - delta)
                ds = ds_out.to(k_s.dtype)
                if FUSE_DQ > 0:
                    ds_s.index(2 * (n & (BUFFERS - 1)) + CONSUMER).store(ds)
                next_dv = warpgroup_mma(p_operand, do_tile, dv, is_async=True)
                if FUSE_DQ > 0:
                    fence_async_shared()
                    at = (first_row + start) * (HEAD_DIM // 64) + 64 * CONSUMER
                    if DELAY_DQ:
                        # The other consumer is done with the tile before; its own part of dS came with it.
                        _meet(8 + 2 * (1 - CONSUMER) + (n + 1 & 1))
                        next_dq = _issue_dq(ds_s, (n - 1) & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
                        at, last_at = last_at, at
                    else:
                        _meet(8)
                        next_dq = _issue_dq(ds_s, n & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
                next_dk = warpgroup_mma(gl.convert_layout(ds, dk_operand), q_tile, dk, is_async=True)
                if FUSE_DQ > 0:
                    # dQ leaves while the last product runs.
                    dv, dq = warpgroup_mma_wait(1, deps=(next_dv, next_dq))
                    _add_dq(dq_sums, dq_s.index(CONSUMER), at, dq, FUSE_DQ)
                    dk = warpgroup_mma_wait(0, deps=(next_dk,))
                else:
                    dv, dk = warpgroup_mma_wait(0, deps=(next_dv, next_dk))
                mbarrier.arrive(empty.index(stage))
                if FUSE_DQ > 0 and DELAY_DQ:
                    _be_there(8 + 2 * CONSUMER + (n & 1))
                n = _anew(n + 1)
                i = _anew(i + 1)

    if LEARNED:
        _add_thread_sums(d_rel_ptr, d_rel_at, d_rel_sums)

    # Epilogue. The tiles of K and V have been read and take dK and dV, which TMA writes as far as there are keys.
    # Where these are is computed anew: it is not worth registers in the meantime.
    b, kv_h, col0 = _keys_of(_anew(gl.program_id(0)), batch, _anew(kv_heads), _anew(kv_len), _anew(head_group), BN)
    v_tile.store(dv.to(v_s.dtype))
    fence_async_shared()
    tma_store(dv_desc, [b, kv_h, col0 + 64 * CONSUMER, 0], v_s.index(CONSUMER))
    if FUSE_DQ > 0:
        if DELAY_DQ:
            _meet(8 + 2 * (1 - CONSUMER) + (n + 1 & 1))
            next_dq = _issue_dq(ds_s, (n - 1) & (BUFFERS - 1), k_s, zero_dq, CONSUMER)
            dq = warpgroup_mma_wait(0, deps=(next_dq,))
            _add_dq(dq_sums, dq_s.index(CONSUMER), last_at, dq, FUSE_DQ)
        # The other consumer has read this one's keys.
        _meet(12)
    k_tile.store((dk * scale).to(k_s.dtype))
    fence_async_shared()
    tma_store(dk_desc, [b, kv_h, col0 + 64 * CONSUMER, 0], k_s.index(CONSUMER))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "batch", "num_rows", "head_group",
])
def _backward_kv_hopper(
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, dq_sums, dk_desc, dv_desc, d_rel_ptr, rel_ptr, stride_rel_0,
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, FUSE_DQ: gl.constexpr, DELAY_DQ: gl.constexpr,
    LEARNED: gl.constexpr,
):
    # Grid: one program for each tile of BN = 128 keys of each head of K and V of each batch element. It walks along the
    # queries that see some of its keys, head by head of those that share them: p = exp(logit - lse), dv = p^T d_out,
    # ds = p * (d_out v^T - delta), dk = scale ds^T q. lse and delta are what _delta writes, num_rows for each head.
    # Where LEARNED, ds_out = p * (d_out v^T - delta) is added up for rel where all pairs of a tile share an element.
    # Where FUSE_DQ, each tile's part of dq = scale ds k is added in memory, in float32 and in no fixed order: without
    # the scale, in tiles of 64 x 64, each as _add_dq lays it out.
    # One warp loads (_backward_producer), two groups of four warps compute (_backward_consumer). They meet at barriers
    # in shared memory: `full` when a tile has arrived, `empty` when both consumers are done with it.
    q_s = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + q_desc.block_type.shape, q_desc.layout)
    do_s = gl.allocate_shared_memory(do_desc.dtype, [STAGES] + do_desc.block_type.shape, do_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, [2] + k_desc.block_type.shape, k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, [2] + v_desc.block_type.shape, v_desc.layout)
    lse_s = gl.allocate_shared_memory(gl.float32, [STAGES, BM], lse_desc.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, [STAGES, BM], delta_desc.layout)
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
    kv_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    do_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    rows_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(q_full.index(stage), count=1)
        mbarrier.init(do_full.index(stage), count=1)
        mbarrier.init(rows_full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    shared = (q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, dq_s)
    barriers = (kv_full, q_full, do_full, rows_full, empty)
    sizes = (scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    # fmt: off
    gl.warp_specialize([
        (_backward_consumer, (
            0, shared, barriers, dq_sums, dk_desc, dv_desc, d_rel_ptr, rel_ptr, stride_rel_0, sizes, BM, BN, STAGES,
            FUSE_DQ, DELAY_DQ, LEARNED,
        )),
        (_backward_consumer, (
            1, shared, barriers, dq_sums, dk_desc, dv_desc, d_rel_ptr, rel_ptr, stride_rel_0, sizes, BM, BN, STAGES,
            FUSE_DQ, DELAY_DQ, LEARNED,
        )),
        (_backward_producer, (
            q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, shared, barriers, sizes, BM, BN, STAGES,
        )),
    ], [4, 1], [240, 24])
    # fmt: on


@triton.jit(do_not_specialize=["q_len", "num_rows", "head_dim"])
def _collect_dq(sums_ptr, dq_ptr, scale, q_len, num_rows, head_dim, HEAD_DIM: tl.constexpr):
    # Grid: one program for each 64 x 64 tile of the sums of each head of each batch element: dq = scale * sums, from
    # the order of _add_dq to that of rows.
    tile = tl.program_id(0).to(tl.int64)
    dims = tile % (HEAD_DIM // 64) * 64 + tl.arange(0, 64)
    first = tile // (HEAD_DIM // 64) * 64
    head = first // num_rows
    rows = first % num_rows + tl.arange(0, 64)
    sums = tl.load(sums_ptr + tile * 4096 + tl.arange(0, 4096))
    # Dimensions: eight columns, warp, lane // 4, lane % 4, one of two rows, one of two columns.
    dq = sums.reshape(8, 4, 8, 4, 2, 2).permute(1, 4, 2, 0, 3, 5).reshape(64, 64) * scale
    tl.store(
        dq_ptr + (head * q_len + rows)[:, None] * head_dim + dims[None, :],
        dq.to(dq_ptr.dtype.element_ty),
        mask=(rows < q_len)[:, None] & (dims < head_dim)[None, :],
    )
