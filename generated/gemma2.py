"""The local layers of Gemma 2, softcapped scores in a causal window of 4096 keys.

    out = softmax(score over visible keys) v, score = scale q k^T
    score = 50.0 * tanh(score / 50.0)
    key k is visible to query q where (k >= q - 4095) & (k <= q)
    query i stands at key position i + kv_len - q_len

In this file:
    _forward, _forward_hopper          out and lse: the portable kernel, and that for Hopper
    _delta                             what the backward kernels need of each row
    _backward_q, _backward_q_hopper    dq
    _backward_kv, _backward_kv_hopper  dk and dv, dq too where a config fuses it; _wide: for wide heads
    _decode, _decode_paged             out and lse of few queries over many keys, and of those in a paged cache
    attention, attention_paged, referencewhat callers use, after the launches of the kernels

Generated from variants/gemma2.yaml by

    flashgen build variants/gemma2.yaml

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
from flashgen.runtime.device.pages import as_factor, beside_cache, page_of
from flashgen.runtime.device.plan import query_range
from flashgen.runtime.device.rows import finished
from flashgen.runtime.gluon import tma_add, tma_load, tma_store

IDENTITY = runtime.Identity(
    variant="gemma2",
    spec="d9e364344148",
    templates={"forward": "1bbab6cdcf21", "backward_q": "8cd0226c1867", "backward_kv": "62607e36f3b3"},
    source="variants/gemma2.yaml",
    arguments={},
)
CONFIGS = runtime.Lookup(
    IDENTITY,
    "forward",
    runtime.default_config,
    runtime.shipped_root(__file__),
)
BACKWARD_Q = runtime.Lookup(
    IDENTITY,
    "backward_q",
    runtime.default_backward_q_config,
    runtime.shipped_root(__file__),
)
BACKWARD_KV = runtime.Lookup(
    IDENTITY,
    "backward_kv",
    runtime.default_backward_kv_config,
    runtime.shipped_root(__file__),
)


@triton.jit
def _tanh(x, PRECISE: tl.constexpr):
    """tanh within an absolute error of 3e-7; where PRECISE, small arguments too within a relative one of 2e-7."""
    # 1 - 2 / (exp(2 x) + 1) is right at both ends, where exp2 overflows or vanishes.
    result = 1.0 - 2.0 / (tl.exp2(x * 2.8853900817779268) + 1.0)
    if PRECISE:
        # Near zero the difference cancels: an odd polynomial instead (Cephes, tanhf).
        s = x * x
        p = (-5.70498872745e-3 * s + 2.06390887954e-2) * s - 5.37397155531e-2
        p = (p * s + 1.33314422036e-1) * s - 3.33332819422e-1
        result = tl.where(tl.abs(x) < 0.625, p * s * x + x, result)
    return result


@triton.jit
def _tanh_approx(x):
    """tanh by an instruction of the GPU, within a relative error of 2**-11 (PTX ISA, tanh.approx.f32)."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def _score(qk, PRECISE: tl.constexpr, qk_scale):
    """50.0 * tanh(score / 50.0), in units of log2."""
    return _tanh(qk * qk_scale, PRECISE) * 72.13475204444816


@triton.jit
def _visible(q, k, r):
    """k >= q - 4095 and k <= q."""
    return (k >= r) & (k <= q)


@triton.jit
def _online_softmax(x, v_tile, acc, m, l):
    """One step of the online softmax (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1).

    m [BM] is the running maximum of the logits in units of log2, l [BM] the running sum of exp2(logit - m),
    acc [BM, V_HEAD_DIM] the running sum of exp2(logit - m) * v.
    """
    m_new = tl.maximum(m, tl.max(x, 1))
    p = tl.exp2(x - m_new[:, None])
    alpha = tl.exp2(m - m_new)
    l = l * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="ieee")
    return acc, m_new, l


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim"])
def _forward(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
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
):
    # Grid: one program for each tile of BM query rows of each head of each batch element.
    # q, k: positions of the tile's rows [BM, 1] and of a tile's keys [1, BN]. m, l, acc: see _online_softmax.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up to powers of two; what lies beyond reads as zero.
    # Functions that have a fast and an exact form take the exact one for float32.
    PRECISE: tl.constexpr = q_ptr.dtype.element_ty == tl.float32
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
    q_first = row0 + (kv_len - q_len)
    q_last = tl.minimum(row0 + BM, q_len) - 1 + (kv_len - q_len)
    qk_scale = scale * 0.02
    r = q - 4095

    # Keys [first, stop) are seen by some row of the tile, [full_start, full_end) by each row.
    first = tl.maximum(q_first - 4095, 0) // BN * BN
    stop = tl.maximum(q_last + 1, first)
    full_start = tl.minimum(tl.cdiv(tl.maximum(q_last - 4095, 0), BN), tl.cdiv(stop, BN)) * BN
    full_end = tl.maximum(tl.maximum(q_first + 1, 0) // BN * BN, full_start)

    q_tile = q_desc.load([row0, 0])
    # A finite floor for the maximum: -inf - floor is -inf, so that a row that sees no key stays at l = 0, without NaN.
    m = tl.full([BM], -3.0e38, tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, V_HEAD_DIM], tl.float32)

    # Full tiles run without the mask. The mixed ones on both sides share their loop: there are so few that filling the
    # pipeline anew would cost more than the branch.
    for start in tl.range(first, stop, BN):
        k_tile = k_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        k = start + tl.arange(0, BN)[None, :]
        x = _score(qk, PRECISE, qk_scale)
        if (start < full_start) | (start >= full_end):
            x = tl.where(_visible(q, k, r), x, -float("inf"))
        v_tile = v_desc.load([start, 0])
        acc, m, l = _online_softmax(x, v_tile, acc, m, l)

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
def _hopper_score(qk, qk_scale):
    """50.0 * tanh(score / 50.0), in units of log2, over 72.13475204444816."""
    return _tanh_approx(qk * qk_scale)


@gluon.jit
def _work(index, batch, heads, q_len, kv_len, BM: gl.constexpr, BN: gl.constexpr):
    """Tile `index` of queries: its batch element, head and first row; how many tiles of keys it sees, and which.

    Of num_tiles tiles of keys, the first num_mixed need the mask; see _key_tile.
    """
    num_q_tiles = gl.cdiv(q_len, BM)
    # What comes after the last tile is asked for, but not done.
    index = gl.minimum(index, num_q_tiles * batch * heads - 1)
    head = index // num_q_tiles
    row0 = index % num_q_tiles * BM
    b = head // heads
    h = head % heads
    q_first = row0 + (kv_len - q_len)
    q_last = gl.minimum(row0 + BM, q_len) - 1 + (kv_len - q_len)

    # Keys [first, stop) are seen by some row of the tile, [full_start, full_end) by each row.
    first = gl.maximum(q_first - 4095, 0) // BN * BN
    stop = gl.maximum(q_last + 1, first)
    full_start = gl.minimum(gl.cdiv(gl.maximum(q_last - 4095, 0), BN), gl.cdiv(stop, BN)) * BN
    full_end = gl.maximum(gl.maximum(q_first + 1, 0) // BN * BN, full_start)
    num_right = gl.cdiv(stop - full_end, BN)
    num_mixed = num_right + (full_start - first) // BN
    num_tiles = gl.maximum(num_mixed + (full_end - full_start) // BN, 1)
    return b, h, row0, num_tiles, num_mixed, num_right, full_start, full_end


@gluon.jit
def _key_tile(i, num_mixed, num_right, full_start, full_end, BN: gl.constexpr):
    """The first key of tile i: mixed tiles come before full ones."""
    right = full_end + (num_right - 1 - i) * BN
    left = full_start - (i - num_right + 1) * BN
    full = full_end - (i - num_mixed + 1) * BN
    return gl.maximum(gl.where(i < num_right, right, gl.where(i < num_mixed, left, full)), 0)


@gluon.jit
def _softmax_step(x, m, l):
    """One step of the online softmax; m as in _online_softmax. Returns p, alpha = exp2(old m - m), m and l.

    l [ROWS, 8] are the sums of every eighth column, which each thread has of its own: they meet after the last step.
    """
    factor: gl.constexpr = 72.13475204444816  # of all logits, x * factor
    m_new = gl.maximum(m, gl.max(x, 1) * factor)
    p = gl.exp2(x * factor - m_new[:, None])
    alpha = gl.exp2(m - m_new)
    layout: gl.constexpr = l.type.layout
    sums = gl.sum(gl.reshape(p, [p.shape[0], p.shape[1] // 8, 8]), 1)
    alpha_l = gl.convert_layout(alpha, gl.SliceLayout(1, layout), assert_trivial=True)
    l = l * alpha_l[:, None] + gl.convert_layout(sums, layout, assert_trivial=True)
    return p, alpha, m_new, l


@gluon.jit
def _keys(start, BN: gl.constexpr, layout: gl.constexpr):
    """The positions [1, BN] of the keys of a tile that needs the mask.

    LLVM must not see what they are: it would compare all pairs as one vector and pack the bits.
    """
    keys = start + gl.arange(0, BN, layout=layout)
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [keys], gl.int32, False, 1)[None, :]


@gluon.jit
def _tile(parts, i, SPLIT: gl.constexpr):
    """Tile i, [rows, columns], in one part or in two."""
    main = parts[0].index(i).reshape([parts[0].type.shape[-2], parts[0].type.shape[-1]])
    if SPLIT:
        return main, parts[1].index(i).reshape([parts[1].type.shape[-2], parts[1].type.shape[-1]])
    else:
        return (main,)


@gluon.jit
def _rest(tile, MAIN: gl.constexpr, REST: gl.constexpr, SPLIT: gl.constexpr):
    """The REST columns of a tile, those after the MAIN ones."""
    if SPLIT:
        return tile[1]
    else:
        return tile[0].slice(MAIN, REST, 1)


@gluon.jit
def _start_scores(q_tile, k_tile, sums, MAIN: gl.constexpr, REST: gl.constexpr, SPLIT: gl.constexpr):
    """Start Q K^T over MAIN columns and, where head_dim is no power of two, REST more."""
    k_main = k_tile[0].slice(0, MAIN, 1).permute((1, 0))
    q_main = q_tile[0] if REST == 0 else q_tile[0].slice(0, MAIN, 1)
    scores = warpgroup_mma(q_main, k_main, sums, use_acc=False, is_async=True)
    if REST > 0:
        k_rest = _rest(k_tile, MAIN, REST, SPLIT).permute((1, 0))
        scores = warpgroup_mma(_rest(q_tile, MAIN, REST, SPLIT), k_rest, scores, is_async=True)
    return scores


@gluon.jit
def _start_product(p, v_tile, acc, MAIN: gl.constexpr, REST: gl.constexpr, SPLIT: gl.constexpr):
    """Start acc + P V, for the MAIN and the REST columns of V."""
    main = warpgroup_mma(p, v_tile[0].slice(0, MAIN, 1), acc[0], is_async=True)
    if REST > 0:
        return main, warpgroup_mma(p, _rest(v_tile, MAIN, REST, SPLIT), acc[1], is_async=True)
    else:
        return (main,)


@gluon.jit
def _paired(p, dtype: gl.constexpr):
    """p rounded to dtype, the neighbours of a row in one int32: [ROWS, BN] becomes [ROWS, BN / 2].

    So a loop carries them in the very registers that the next product reads; two of 16 bits each would change places
    twice in between.
    """
    pairs = gl.reshape(p.to(dtype).to(gl.int16, bitcast=True), [p.shape[0], p.shape[1] // 2, 2])
    low, high = gl.split(pairs)
    return gl.inline_asm_elementwise("mov.b32 $0, {$1, $2};", "=r,h,h", [low, high], gl.int32, True, 1)


@gluon.jit
def _unpaired(pairs, dtype: gl.constexpr, layout: gl.constexpr):
    """p [ROWS, BN] as an operand of a product."""
    low, high = gl.inline_asm_elementwise("mov.b32 {$0, $1}, $2;", "=h,=h,r", [pairs], (gl.int16, gl.int16), True, 1)
    p = gl.reshape(gl.join(low, high), [pairs.shape[0], 2 * pairs.shape[1]])
    return gl.convert_layout(p.to(dtype, bitcast=True), layout, assert_trivial=True)


@gluon.jit
def _await_pv(product, REST: gl.constexpr):
    """The sums of a product that was started."""
    if REST > 0:
        return warpgroup_mma_wait(0, deps=(product[0], product[1]))
    else:
        return (warpgroup_mma_wait(0, deps=(product[0],)),)


@gluon.jit
def _scaled(acc, factor, REST: gl.constexpr):
    """acc with each row times its factor."""
    main = acc[0] * gl.convert_layout(factor, gl.SliceLayout(1, acc[0].type.layout))[:, None]
    if REST > 0:
        return main, acc[1] * gl.convert_layout(factor, gl.SliceLayout(1, acc[1].type.layout))[:, None]
    else:
        return (main,)


@gluon.jit
def _no_sums(
    ROWS: gl.constexpr, MAIN: gl.constexpr, REST: gl.constexpr, main_layout: gl.constexpr, rest_layout: gl.constexpr
):
    """acc before the first product."""
    main = gl.zeros([ROWS, MAIN], gl.float32, main_layout)
    if REST > 0:
        return main, gl.zeros([ROWS, REST], gl.float32, rest_layout)
    else:
        return (main,)


@gluon.jit
def _await_turn(CONSUMER: gl.constexpr, PING_PONG: gl.constexpr):
    """Ping-pong: a consumer issues its products when the others have issued theirs and are at their softmax.

    Named barrier 8 + CONSUMER holds the turn of a consumer: its 128 threads wait there, 128 of another one arrive.
    """
    if PING_PONG:
        barrier = gl.full([128], 8 + CONSUMER, gl.int32, layout=gl.BlockedLayout([1], [32], [4], [0]))
        gl.inline_asm_elementwise("bar.sync $1, 256; mov.b32 $0, $1;", "=r,r", [barrier], gl.int32, False, 1)


@gluon.jit
def _pass_turn(CONSUMER: gl.constexpr, CONSUMERS: gl.constexpr, PING_PONG: gl.constexpr):
    """Ping-pong: the next consumer's turn."""
    if PING_PONG:
        barrier = gl.full([128], 8 + (CONSUMER + 1) % CONSUMERS, gl.int32, layout=gl.BlockedLayout([1], [32], [4], [0]))
        gl.inline_asm_elementwise("bar.arrive $1, 256; mov.b32 $0, $1;", "=r,r", [barrier], gl.int32, False, 1)


@gluon.jit
def _load(descs, b, head, row, tiles, i, full, SPLIT: gl.constexpr):
    """Bring tile i of a head, from `row` on."""
    if SPLIT:
        mbarrier.expect(full, descs[0].block_type.nbytes + descs[1].block_type.nbytes)
        tma_load(descs[1], [b, head, row, descs[0].block_type.shape[3]], full, tiles[1].index(i))
    else:
        mbarrier.expect(full, descs[0].block_type.nbytes)
    tma_load(descs[0], [b, head, row, 0], full, tiles[0].index(i))


@gluon.jit
def _load_v(v_descs, b, kv_h, start, n, v_s, k_empty, v_full, v_empty, SPLIT: gl.constexpr):
    """Bring tile n of V into its stage once that is free: it may be that of K, which has been read then."""
    STAGES: gl.constexpr = v_s[0].type.shape[0]
    stage = n % STAGES
    if SPLIT:
        mbarrier.wait(k_empty.index(stage), n // STAGES & 1)
    else:
        mbarrier.wait(v_empty.index(stage), (n // STAGES & 1) ^ 1)
    _load(v_descs, b, kv_h, start, v_s, stage, v_full.index(stage), SPLIT)


@gluon.jit
def _described(ptr, shape, strides, tiles, SPLIT: gl.constexpr):
    """How TMA sees a tensor [batch, heads, length, dim] whose tiles, or both parts of them, lie in shared memory."""
    one, two, three = strides
    block: gl.constexpr = tiles[0].index(0).type.shape
    descs = (tma.make_tensor_descriptor(ptr, shape, [one, two, three, 1], block, tiles[0].type.layout),)
    if SPLIT:
        rest: gl.constexpr = tiles[1].index(0).type.shape
        rest_desc = tma.make_tensor_descriptor(ptr, shape, [one, two, three, 1], rest, tiles[1].type.layout)
        descs = (descs[0], rest_desc)
    return descs


@gluon.jit
def _producer(
    q_ptr,
    k_ptr,
    v_ptr,
    q_strides,
    k_strides,
    v_strides,
    shared,
    barriers,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
    SPLIT: gl.constexpr,
):
    # One warp: brings the tiles of Q, K and V into shared memory by TMA as soon as the consumers have made room.
    batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim = sizes
    q_s, k_s, v_s = shared
    k_descs = _described(k_ptr, [batch, kv_heads, kv_len, head_dim], k_strides, k_s, SPLIT)
    q_descs = _described(q_ptr, [batch, heads, q_len, head_dim], q_strides, q_s, SPLIT)
    v_descs = _described(v_ptr, [batch, kv_heads, kv_len, v_head_dim], v_strides, v_s, SPLIT)
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    ROWS: gl.constexpr = BM // CONSUMERS
    Q_SLOTS: gl.constexpr = q_s[0].type.shape[0] // CONSUMERS
    num_q_tiles = gl.cdiv(q_len, BM) * batch * heads
    # What shares its stage with V waits for V of STAGES tiles before.
    room_for_k = v_empty if SPLIT else k_empty
    index = gl.program_id(0)
    turn = 0  # tiles of queries so far
    # Tiles of keys so far; K of the next one goes to stage n % STAGES. V comes after K of the tile that follows, also
    # where that is the first of the next tile of queries: there is room for K sooner.
    n = 0
    v_b = 0
    v_head = 0
    v_start = 0
    while index < num_q_tiles:
        b, h, row0, num_tiles, num_mixed, num_right, full_start, full_end = _work(
            index, batch, heads, q_len, kv_len, BM, BN
        )
        kv_h = h // (heads // kv_heads)
        for i in range(num_tiles):
            start = _key_tile(i, num_mixed, num_right, full_start, full_end, BN)
            stage = n % STAGES
            mbarrier.wait(room_for_k.index(stage), (n // STAGES & 1) ^ 1)
            _load(k_descs, b, kv_h, start, k_s, stage, k_full.index(stage), SPLIT)
            if n > 0:
                _load_v(v_descs, v_b, v_head, v_start, n - 1, v_s, k_empty, v_full, v_empty, SPLIT)
            v_b, v_head, v_start = b, kv_h, start
            if i == 0:
                # An earlier tile may still read Q when there is room for keys already.
                for each in gl.static_range(CONSUMERS):
                    slot = turn % Q_SLOTS * CONSUMERS + each
                    mbarrier.wait(q_empty.index(slot), (turn // Q_SLOTS & 1) ^ 1)
                    _load(q_descs, b, h, row0 + each * ROWS, q_s, slot, q_full.index(slot), SPLIT)
            n += 1
        turn += 1
        index += gl.num_programs(0)
    _load_v(v_descs, v_b, v_head, v_start, n - 1, v_s, k_empty, v_full, v_empty, SPLIT)


@gluon.jit
def _consumer(
    CONSUMER: gl.constexpr,
    out_desc,
    out_s,
    shared,
    barriers,
    lse_ptr,
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
    # q, k: positions of the tile's rows [ROWS, 1] and of a tile's keys [1, BN]. m, l, p: see _softmax_step.
    # acc: the sums for the MAIN and the REST columns of V.
    scale, batch, heads, q_len, kv_len = sizes
    q_s, k_s, v_s = shared
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
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
    Q_SLOTS: gl.constexpr = q_s[0].type.shape[0] // CONSUMERS
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
    num_q_tiles = gl.cdiv(q_len, BM) * batch * heads
    # A round begins a tile of queries and finishes that of the round before. The first one has nothing to finish, the
    # last one nothing to begin: their products are of what lies in shared memory, and nobody reads them.
    turn = 0
    n = 0  # tiles of keys so far; the next one is in stage n % STAGES
    b = 0
    h = 0
    row0 = 0
    m = gl.zeros([ROWS], gl.float32, row_layout)
    l = gl.zeros([ROWS, 8], gl.float32, l_layout)
    pairs = _paired(zero, out_s.dtype)
    acc = _no_sums(ROWS, V_MAIN, V_REST, acc_layout, rest_layout)
    if CONSUMER == CONSUMERS - 1:
        _pass_turn(CONSUMER, CONSUMERS, PING_PONG)
    index = gl.program_id(0) - gl.num_programs(0)
    while index < num_q_tiles:
        index = index + gl.num_programs(0)
        begins = index < num_q_tiles
        finishes = turn > 0

        # Start the first scores of this tile and the last product of the one before.
        last = (n + STAGES - 1) % STAGES
        stage = n % STAGES
        slot = turn % Q_SLOTS * CONSUMERS + CONSUMER
        q_tile = _tile(q_s, slot, SPLIT)
        mbarrier.wait(q_full.index(slot), turn // Q_SLOTS & 1, pred=begins)
        mbarrier.wait(k_full.index(stage), n // STAGES & 1, pred=begins)
        _await_turn(CONSUMER, PING_PONG)
        scores = _start_scores(q_tile, _tile(k_s, stage, SPLIT), zero, MAIN, REST, SPLIT)
        mbarrier.wait(v_full.index(last), (n - 1) // STAGES & 1, pred=finishes)
        p = _unpaired(pairs, out_s.dtype, p_layout)
        product = _start_product(p, _tile(v_s, last, SPLIT), acc, V_MAIN, V_REST, SPLIT)
        _pass_turn(CONSUMER, CONSUMERS, PING_PONG)

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
        b, h, row0, num_tiles, num_mixed, num_right, full_start, full_end = _work(
            index, batch, heads, q_len, kv_len, BM, BN
        )
        row0 += CONSUMER * ROWS
        rows = row0 + gl.arange(0, ROWS, layout=row_layout)
        # Rows beyond the last are taken as the last: they read what exists.
        q = (gl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
        q_first = row0 + (kv_len - q_len)
        q_last = gl.minimum(row0 + ROWS, q_len) - 1 + (kv_len - q_len)
        qk_scale = scale * 0.02
        r = q - 4095

        # Its first tile of keys, as if it were mixed.
        i = 0
        start = _key_tile(i, num_mixed, num_right, full_start, full_end, BN)
        qk = warpgroup_mma_wait(PRODUCTS, deps=(scores,))
        mbarrier.arrive(k_empty.index(stage), pred=begins)
        x = _hopper_score(qk, qk_scale)
        if start + BN > q_first + 1:
            x = gl.where(_keys(start, BN, col_layout) <= q, x, -float("inf"))
        if start < q_last - 4095:
            x = gl.where(_keys(start, BN, col_layout) >= r, x, -float("inf"))

        # A finite floor for the maximum: -inf - floor is -inf, so that a row that sees no key stays at l = 0.
        m = gl.full([ROWS], -3.0e38, gl.float32, row_layout)
        l = gl.zeros([ROWS, 8], gl.float32, l_layout)
        p, alpha, m, l = _softmax_step(x, m, l)

        # The output of the tile before, which TMA writes as far as there are rows and columns.
        acc = _scaled(_await_pv(product, V_REST), factor, V_REST)
        mbarrier.arrive(v_empty.index(last), pred=finishes)
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
        acc = _no_sums(ROWS, V_MAIN, V_REST, acc_layout, rest_layout)
        pairs = _paired(p, out_s.dtype)

        # The other mixed tiles.
        for i in range(1, gl.where(begins, num_mixed, 0)):
            # Start the scores of this tile and the product of the last one; the softmax runs beside the product.
            last = n % STAGES
            last_phase = n // STAGES & 1
            n += 1
            stage = n % STAGES
            mbarrier.wait(k_full.index(stage), n // STAGES & 1)
            _await_turn(CONSUMER, PING_PONG)
            scores = _start_scores(q_tile, _tile(k_s, stage, SPLIT), zero, MAIN, REST, SPLIT)
            mbarrier.wait(v_full.index(last), last_phase)
            p = _unpaired(pairs, out_s.dtype, p_layout)
            product = _start_product(p, _tile(v_s, last, SPLIT), acc, V_MAIN, V_REST, SPLIT)
            _pass_turn(CONSUMER, CONSUMERS, PING_PONG)
            start = _key_tile(i, num_mixed, num_right, full_start, full_end, BN)
            qk = warpgroup_mma_wait(PRODUCTS, deps=(scores,))
            mbarrier.arrive(k_empty.index(stage))
            x = _hopper_score(qk, qk_scale)
            if start + BN > q_first + 1:
                x = gl.where(_keys(start, BN, col_layout) <= q, x, -float("inf"))
            if start < q_last - 4095:
                x = gl.where(_keys(start, BN, col_layout) >= r, x, -float("inf"))

            p, alpha, m, l = _softmax_step(x, m, l)
            acc = _await_pv(product, V_REST)
            mbarrier.arrive(v_empty.index(last))
            acc = _scaled(acc, alpha, V_REST)
            pairs = _paired(p, out_s.dtype)

        # Full tiles: each row sees each key, no mask.
        if HOLD_Q:
            q_tile = (q_tile[0].load(q_layout),)
        for _ in range(gl.maximum(num_mixed, 1), gl.where(begins, num_tiles, 0)):
            # Start the scores of this tile and the product of the last one; the softmax runs beside the product.
            last = n % STAGES
            last_phase = n // STAGES & 1
            n += 1
            stage = n % STAGES
            mbarrier.wait(k_full.index(stage), n // STAGES & 1)
            _await_turn(CONSUMER, PING_PONG)
            scores = _start_scores(q_tile, _tile(k_s, stage, SPLIT), zero, MAIN, REST, SPLIT)
            mbarrier.wait(v_full.index(last), last_phase)
            p = _unpaired(pairs, out_s.dtype, p_layout)
            product = _start_product(p, _tile(v_s, last, SPLIT), acc, V_MAIN, V_REST, SPLIT)
            _pass_turn(CONSUMER, CONSUMERS, PING_PONG)
            qk = warpgroup_mma_wait(PRODUCTS, deps=(scores,))
            mbarrier.arrive(k_empty.index(stage))
            x = _hopper_score(qk, qk_scale)

            p, alpha, m, l = _softmax_step(x, m, l)
            acc = _await_pv(product, V_REST)
            mbarrier.arrive(v_empty.index(last))
            acc = _scaled(acc, alpha, V_REST)
            pairs = _paired(p, out_s.dtype)

        mbarrier.arrive(q_empty.index(slot))
        n += 1
        turn += 1
    tma.store_wait(0)


@gluon.jit
def _room(dtype: gl.constexpr, count: gl.constexpr, rows: gl.constexpr, width: gl.constexpr):
    """Shared memory for tiles of so many rows and columns, as TMA and the products want them."""
    block: gl.constexpr = [1, 1, rows, width]
    return gl.allocate_shared_memory(dtype, [count] + block, gl.NVMMASharedLayout.get_default_for(block, dtype))


@gluon.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "batch"])
def _forward_hopper(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
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
    BM: gl.constexpr,
    BN: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
    PING_PONG: gl.constexpr,
):
    # Grid: at most as many programs as the GPU holds at once; they share the tiles of BM query rows of all heads.
    # One warp loads (_producer), CONSUMERS groups of four warps compute (_consumer). They meet at barriers in shared
    # memory: `full` when a tile has arrived, `empty` when all who read it are done.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up; what lies beyond reads as zero.
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    ROWS: gl.constexpr = BM // CONSUMERS
    WIDTH: gl.constexpr = triton.next_power_of_2(HEAD_DIM)
    V_WIDTH: gl.constexpr = triton.next_power_of_2(V_HEAD_DIM)
    # The output leaves through shared memory, 128 columns at a time.
    OUT_WIDTH: gl.constexpr = V_WIDTH if V_WIDTH <= 128 else 128
    # Wide tiles whose width is no power of two lie in two parts, and V of a tile takes the place of its K.
    SPLIT: gl.constexpr = BN * HEAD_DIM > 16384 and HEAD_DIM < WIDTH and HEAD_DIM == V_HEAD_DIM
    MAIN: gl.constexpr = WIDTH // 2 if SPLIT else WIDTH
    REST: gl.constexpr = HEAD_DIM - MAIN
    # Q of the next tile waits beside that of this one where there is room.
    Q_SLOTS: gl.constexpr = 2 if WIDTH <= 128 else 1
    q_s = (_room(dtype, Q_SLOTS * CONSUMERS, ROWS, MAIN),)
    k_s = (_room(dtype, STAGES, BN, MAIN),)
    if SPLIT:
        q_s = (q_s[0], _room(dtype, Q_SLOTS * CONSUMERS, ROWS, REST))
        k_s = (k_s[0], _room(dtype, STAGES, BN, REST))
        v_s = k_s
    else:
        v_s = (_room(dtype, STAGES, BN, V_WIDTH),)
    out_s = _room(dtype, CONSUMERS, ROWS, OUT_WIDTH)
    out_strides = (q_len.to(gl.int64) * v_head_dim * heads, q_len.to(gl.int64) * v_head_dim, v_head_dim)
    (out_desc,) = _described(out_ptr, [batch, heads, q_len, v_head_dim], out_strides, (out_s,), False)
    q_full = gl.allocate_shared_memory(gl.int64, [Q_SLOTS * CONSUMERS, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [Q_SLOTS * CONSUMERS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(Q_SLOTS * CONSUMERS):
        mbarrier.init(q_full.index(each), count=1)
        mbarrier.init(q_empty.index(each), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=CONSUMERS)
        mbarrier.init(v_empty.index(stage), count=CONSUMERS)
    shared = (q_s, k_s, v_s)
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty)
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
                0, out_desc, out_s, shared, barriers, lse_ptr, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_consumer, (
                1, out_desc, out_s, shared, barriers, lse_ptr, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_producer, (
                q_ptr, k_ptr, v_ptr, q_strides, k_strides, v_strides, shared, barriers, loads, BM, BN, STAGES,
                CONSUMERS, SPLIT,
            )),
        ], [4, 1], [240, 24])
    else:
        gl.warp_specialize([
            (_consumer, (
                0, out_desc, out_s, shared, barriers, lse_ptr, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_consumer, (
                1, out_desc, out_s, shared, barriers, lse_ptr, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_consumer, (
                2, out_desc, out_s, shared, barriers, lse_ptr, computes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG, SPLIT,
            )),
            (_producer, (
                q_ptr, k_ptr, v_ptr, q_strides, k_strides, v_strides, shared, barriers, loads, BM, BN, STAGES,
                CONSUMERS, SPLIT,
            )),
        ], [4, 4, 1], [160, 160, 24])
    # fmt: on


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


@triton.jit
def _score_and_slope(qk, PRECISE: tl.constexpr, qk_scale):
    """50.0 * tanh(score / 50.0), in units of log2, and its derivative by score."""
    t = _tanh(qk * qk_scale, PRECISE)
    return t * 72.13475204444816, 1.0 - t * t


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_rows"])
def _backward_q(
    q_ptr,
    k_ptr,
    v_ptr,
    d_out_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
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
):
    # Grid: one program for each tile of BM query rows of each head of each batch element.
    # It walks along the keys as _forward does: p = exp2(logit - lse), ds = p * (d_out v^T - delta) * slope, dq = scale
    # ds k.
    # lse and delta are what _delta writes, num_rows for each head.
    PRECISE: tl.constexpr = q_ptr.dtype.element_ty == tl.float32
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
    q_first = row0 + (kv_len - q_len)
    q_last = tl.minimum(row0 + BM, q_len) - 1 + (kv_len - q_len)
    qk_scale = scale * 0.02
    r = q - 4095

    # Keys [first, stop) are seen by some row of the tile, [full_start, full_end) by each row.
    first = tl.maximum(q_first - 4095, 0) // BN * BN
    stop = tl.maximum(q_last + 1, first)
    full_start = tl.minimum(tl.cdiv(tl.maximum(q_last - 4095, 0), BN), tl.cdiv(stop, BN)) * BN
    full_end = tl.maximum(tl.maximum(q_first + 1, 0) // BN * BN, full_start)

    q_tile = q_desc.load([row0, 0])
    do_tile = do_desc.load([row0, 0])
    row = head.to(tl.int64) * num_rows + rows
    lse = tl.load(lse_ptr + row)[:, None]
    delta = tl.load(delta_ptr + row)[:, None]
    dq = tl.zeros([BM, HEAD_DIM], tl.float32)

    # The mixed tiles on both sides share the loop of the full ones.
    for start in tl.range(first, stop, BN):
        k_tile = k_desc.load([start, 0])
        v_tile = v_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        k = start + tl.arange(0, BN)[None, :]
        x, slope = _score_and_slope(qk, PRECISE, qk_scale)
        if (start < full_start) | (start >= full_end):
            shown = _visible(q, k, r)
            x = tl.where(shown, x, -float("inf"))
            slope = tl.where(shown, slope, 0.0)
        p = tl.exp2(x - lse)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta) * slope
        dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision="ieee")

    out_rows = head.to(tl.int64) * q_len + rows
    dims = tl.arange(0, HEAD_DIM)
    tl.store(
        dq_ptr + out_rows[:, None] * head_dim + dims[None, :],
        (dq * scale).to(dq_ptr.dtype.element_ty),
        mask=(rows < q_len)[:, None] & (dims < head_dim)[None, :],
    )


@triton.jit
def _score_and_slope_by_query(qk, qk_scale):
    """50.0 * tanh(score / 50.0), in units of log2, and its derivative by score."""
    t = _tanh_approx(qk * qk_scale)
    return t * 72.13475204444816, 1.0 - t * t


@gluon.jit
def _issue_qk(q_tile, k_tile, zero, MAIN: gl.constexpr, REST: gl.constexpr):
    """_start_scores for tiles in one part."""
    return _start_scores((q_tile,), (k_tile,), zero, MAIN, REST, False)


@gluon.jit
def _issue_pv(p, v_tile, acc, MAIN: gl.constexpr, REST: gl.constexpr):
    """_start_product for a tile in one part."""
    return _start_product(p, (v_tile,), acc, MAIN, REST, False)


@gluon.jit
def _v_stage(i, num_rows, V_STAGES: gl.constexpr):
    """Where tile i of V is, and the phase of the barriers there."""
    if V_STAGES == 1:
        # Always 0, which the compiler does not know: it would keep the addresses of all parts of V's tile, and of dO's.
        return (i + num_rows) >> 31, i & 1
    else:
        return i % V_STAGES, i // V_STAGES & 1


@gluon.jit
def _await_dq(product, PENDING: gl.constexpr, REST: gl.constexpr):
    """The sums of dQ from a product that was started before the last PENDING ones."""
    if REST > 0:
        return warpgroup_mma_wait(PENDING, deps=(product[0], product[1]))
    else:
        return (warpgroup_mma_wait(PENDING, deps=(product[0],)),)


@gluon.jit
def _dq_producer(
    q_desc,
    do_desc,
    k_desc,
    v_desc,
    shared,
    barriers,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
):
    # One warp: brings the tile of Q and dO into shared memory by TMA, then the tiles of K and V that it sees as soon as
    # the consumers make room.
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows = sizes
    q_s, do_s, k_s, v_s = shared
    q_full, do_full, k_full, k_empty, v_full, v_empty = barriers
    V_STAGES: gl.constexpr = v_s.type.shape[0]
    b, h, row0, num_tiles, num_mixed, num_right, full_start, full_end = _work(
        gl.program_id(0), batch, heads, q_len, kv_len, BM, BN
    )
    kv_h = h // (heads // kv_heads)
    for each in gl.static_range(CONSUMERS):
        mbarrier.expect(q_full.index(each), q_desc.block_type.nbytes)
        tma_load(q_desc, [b, h, row0 + 64 * each, 0], q_full.index(each), q_s.index(each))
    for i in range(num_tiles):
        start = _key_tile(i, num_mixed, num_right, full_start, full_end, BN)
        stage = i % STAGES
        mbarrier.wait(k_empty.index(stage), (i // STAGES & 1) ^ 1)
        mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
        tma_load(k_desc, [b, kv_h, start, 0], k_full.index(stage), k_s.index(stage))
        if i == 0:
            for each in gl.static_range(CONSUMERS):
                mbarrier.expect(do_full.index(each), do_desc.block_type.nbytes)
                tma_load(do_desc, [b, h, row0 + 64 * each, 0], do_full.index(each), do_s.index(each))
        v_stage, v_phase = _v_stage(i, num_rows, V_STAGES)
        mbarrier.wait(v_empty.index(v_stage), v_phase ^ 1)
        mbarrier.expect(v_full.index(v_stage), v_desc.block_type.nbytes)
        tma_load(v_desc, [b, kv_h, start, 0], v_full.index(v_stage), v_s.index(v_stage))


@gluon.jit
def _dq_consumer(
    CONSUMER: gl.constexpr,
    dq_desc,
    shared,
    barriers,
    lse_ptr,
    delta_ptr,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
    PING_PONG: gl.constexpr,
):
    # Four warps: 64 rows of the tile of queries. dP = dO V^T is made as Q K^T is, dQ += dS K as P V is in _consumer.
    # q, k: positions of the rows [64, 1] and of a tile's keys [1, BN]. dq: the sums for MAIN and REST columns.
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows = sizes
    q_s, do_s, k_s, v_s = shared
    q_full, do_full, k_full, k_empty, v_full, v_empty = barriers
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
    b, h, row0, num_tiles, num_mixed, num_right, full_start, full_end = _work(
        gl.program_id(0), batch, heads, q_len, kv_len, BM, BN
    )
    row0 += 64 * CONSUMER
    rows = row0 + gl.arange(0, 64, layout=row_layout)
    # Rows beyond the last are taken as the last: they read what exists.
    q = (gl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
    qk_scale = scale * 0.02
    r = q - 4095
    at = (b * heads + h).to(gl.int64) * num_rows + rows
    lse = gl.load(lse_ptr + at, mask=rows < q_len, other=float("inf"))[:, None]
    delta = gl.load(delta_ptr + at, mask=rows < q_len, other=0.0)[:, None]
    dq = (gl.zeros([64, MAIN], gl.float32, dq_layout),)
    if REST > 0:
        dq = (dq[0], gl.zeros([64, REST], gl.float32, rest_layout))

    # The first tile of keys, as if it were mixed.
    i = 0
    stage = 0
    v_stage = 0
    if CONSUMER == CONSUMERS - 1:
        _pass_turn(CONSUMER, CONSUMERS, PING_PONG)
    mbarrier.wait(q_full.index(CONSUMER), 0)
    mbarrier.wait(k_full.index(0), 0)
    scores = _issue_qk(q_tile, k_s.index(0).reshape([BN, WIDTH]), zero, MAIN, REST)
    mbarrier.wait(do_full.index(CONSUMER), 0)
    mbarrier.wait(v_full.index(0), 0)
    do_tile = do_s.index(CONSUMER).reshape([64, V_WIDTH])
    products = _issue_qk(do_tile, v_s.index(0).reshape([BN, V_WIDTH]), zero, V_MAIN, V_REST)
    qk = warpgroup_mma_wait(DP_PRODUCTS, deps=(scores,))
    start = _key_tile(i, num_mixed, num_right, full_start, full_end, BN)
    k = start + gl.arange(0, BN, layout=col_layout)[None, :]
    x, slope = _score_and_slope_by_query(qk, qk_scale)
    shown = _visible(q, k, r)
    x = gl.where(shown, x, -float("inf"))
    slope = gl.where(shown, slope, 0.0)
    p = gl.exp2(x - lse)
    p = p * slope
    # K is there; to look again keeps the compiler from putting exponentials behind the wait for dP.
    mbarrier.wait(k_full.index(stage), 0)
    dp = warpgroup_mma_wait(0, deps=(products,))
    mbarrier.arrive(v_empty.index(v_stage))
    ds = gl.convert_layout((p * (dp - delta)).to(dq_desc.dtype), ds_layout)

    # The other mixed tiles.
    for i in range(1, num_mixed):
        # Start the last tile's part of dQ and this tile's S, then dP; P is computed while dP runs.
        last = stage
        stage = i % STAGES
        v_stage, v_phase = _v_stage(i, num_rows, V_STAGES)
        _await_turn(CONSUMER, PING_PONG)
        product = _issue_pv(ds, k_s.index(last).reshape([BN, WIDTH]), dq, MAIN, REST)
        mbarrier.wait(k_full.index(stage), i // STAGES & 1)
        scores = _issue_qk(q_tile, k_s.index(stage).reshape([BN, WIDTH]), zero, MAIN, REST)
        dq = _await_dq(product, S_PRODUCTS, REST)
        mbarrier.arrive(k_empty.index(last))
        mbarrier.wait(v_full.index(v_stage), v_phase)
        own = CONSUMER + v_stage if V_STAGES == 1 else CONSUMER  # CONSUMER, see _v_stage
        do_tile = do_s.index(own).reshape([64, V_WIDTH])
        products = _issue_qk(do_tile, v_s.index(v_stage).reshape([BN, V_WIDTH]), zero, V_MAIN, V_REST)
        _pass_turn(CONSUMER, CONSUMERS, PING_PONG)
        qk = warpgroup_mma_wait(DP_PRODUCTS, deps=(scores,))
        start = _key_tile(i, num_mixed, num_right, full_start, full_end, BN)
        k = start + gl.arange(0, BN, layout=col_layout)[None, :]
        x, slope = _score_and_slope_by_query(qk, qk_scale)
        shown = _visible(q, k, r)
        x = gl.where(shown, x, -float("inf"))
        slope = gl.where(shown, slope, 0.0)
        p = gl.exp2(x - lse)
        p = p * slope
        # K is there; to look again keeps the compiler from putting exponentials behind the wait for dP.
        mbarrier.wait(k_full.index(stage), i // STAGES & 1)
        dp = warpgroup_mma_wait(0, deps=(products,))
        mbarrier.arrive(v_empty.index(v_stage))
        ds = gl.convert_layout((p * (dp - delta)).to(dq_desc.dtype), ds_layout)

    # Full tiles: each row sees each key, no mask.
    for i in range(gl.maximum(num_mixed, 1), num_tiles):
        # Start the last tile's part of dQ and this tile's S, then dP; P is computed while dP runs.
        last = stage
        stage = i % STAGES
        v_stage, v_phase = _v_stage(i, num_rows, V_STAGES)
        _await_turn(CONSUMER, PING_PONG)
        product = _issue_pv(ds, k_s.index(last).reshape([BN, WIDTH]), dq, MAIN, REST)
        mbarrier.wait(k_full.index(stage), i // STAGES & 1)
        scores = _issue_qk(q_tile, k_s.index(stage).reshape([BN, WIDTH]), zero, MAIN, REST)
        dq = _await_dq(product, S_PRODUCTS, REST)
        mbarrier.arrive(k_empty.index(last))
        mbarrier.wait(v_full.index(v_stage), v_phase)
        own = CONSUMER + v_stage if V_STAGES == 1 else CONSUMER  # CONSUMER, see _v_stage
        do_tile = do_s.index(own).reshape([64, V_WIDTH])
        products = _issue_qk(do_tile, v_s.index(v_stage).reshape([BN, V_WIDTH]), zero, V_MAIN, V_REST)
        _pass_turn(CONSUMER, CONSUMERS, PING_PONG)
        qk = warpgroup_mma_wait(DP_PRODUCTS, deps=(scores,))
        x, slope = _score_and_slope_by_query(qk, qk_scale)
        p = gl.exp2(x - lse)
        p = p * slope
        # K is there; to look again keeps the compiler from putting exponentials behind the wait for dP.
        mbarrier.wait(k_full.index(stage), i // STAGES & 1)
        dp = warpgroup_mma_wait(0, deps=(products,))
        mbarrier.arrive(v_empty.index(v_stage))
        ds = gl.convert_layout((p * (dp - delta)).to(dq_desc.dtype), ds_layout)

    # The last tile's part of dQ. All is done with Q, whose place dQ takes; TMA writes the rows and columns that exist.
    product = _issue_pv(ds, k_s.index(stage).reshape([BN, WIDTH]), dq, MAIN, REST)
    dq = _await_dq(product, 0, REST)
    q_tile.slice(0, MAIN, 1).store((dq[0] * scale).to(dq_desc.dtype))
    if REST > 0:
        q_tile.slice(MAIN, REST, 1).store((dq[1] * scale).to(dq_desc.dtype))
    fence_async_shared()
    tma_store(dq_desc, [b, h, row0, 0], q_s.index(CONSUMER))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "batch", "num_rows"])
def _backward_q_hopper(
    q_desc,
    do_desc,
    k_desc,
    v_desc,
    dq_desc,
    lse_ptr,
    delta_ptr,
    scale,
    batch,
    heads,
    kv_heads,
    q_len,
    kv_len,
    num_rows,
    BM: gl.constexpr,
    BN: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
    V_STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
    PING_PONG: gl.constexpr,
):
    # Grid: one program for each tile of BM query rows of each head of each batch element.
    # It walks along the keys as _forward_hopper does: p = exp2(logit - lse), ds = p * (d_out v^T - delta) * slope,
    # dq = scale ds k.
    # lse and delta are what _delta writes, num_rows for each head.
    # One warp loads (_dq_producer), CONSUMERS groups of four warps compute (_dq_consumer). They meet at barriers in
    # shared memory: `full` when a tile has arrived, `empty` when all who read it are done. A tile of K is read again,
    # for dQ, when the next one is there: those of K have STAGES places, those of V one less, V_STAGES.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up; what lies beyond reads as zero.
    q_s = gl.allocate_shared_memory(q_desc.dtype, [CONSUMERS] + q_desc.block_type.shape, q_desc.layout)
    do_s = gl.allocate_shared_memory(do_desc.dtype, [CONSUMERS] + do_desc.block_type.shape, do_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, [V_STAGES] + v_desc.block_type.shape, v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    do_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [V_STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [V_STAGES, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(CONSUMERS):
        mbarrier.init(q_full.index(each), count=1)
        mbarrier.init(do_full.index(each), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=CONSUMERS)
    for stage in gl.static_range(V_STAGES):
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_empty.index(stage), count=CONSUMERS)
    shared = (q_s, do_s, k_s, v_s)
    barriers = (q_full, do_full, k_full, k_empty, v_full, v_empty)
    sizes = (scale, batch, heads, kv_heads, q_len, kv_len, num_rows)
    # Registers a thread: 240 for two consumers, 160 for three, 24 for the producer; the launch gives their mean.
    # fmt: off
    if CONSUMERS == 2:
        gl.warp_specialize([
            (_dq_consumer, (
                0, dq_desc, shared, barriers, lse_ptr, delta_ptr, sizes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG,
            )),
            (_dq_consumer, (
                1, dq_desc, shared, barriers, lse_ptr, delta_ptr, sizes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG,
            )),
            (_dq_producer, (q_desc, do_desc, k_desc, v_desc, shared, barriers, sizes, BM, BN, STAGES, CONSUMERS)),
        ], [4, 1], [240, 24])
    else:
        gl.warp_specialize([
            (_dq_consumer, (
                0, dq_desc, shared, barriers, lse_ptr, delta_ptr, sizes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG,
            )),
            (_dq_consumer, (
                1, dq_desc, shared, barriers, lse_ptr, delta_ptr, sizes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG,
            )),
            (_dq_consumer, (
                2, dq_desc, shared, barriers, lse_ptr, delta_ptr, sizes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES,
                CONSUMERS, PING_PONG,
            )),
            (_dq_producer, (q_desc, do_desc, k_desc, v_desc, shared, barriers, sizes, BM, BN, STAGES, CONSUMERS)),
        ], [4, 4, 1], [160, 160, 24])
    # fmt: on


@triton.jit
def _visible_by_key(q, k):
    """k >= q - 4095 and k <= q."""
    return (k >= q - 4095) & (k <= q)


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_rows"])
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
):
    # Grid: one program for each tile of BN keys of each query head of each batch element. It walks along the queries
    # that see some of its keys. Tiles are transposed, [BN, BM], so that p and ds enter the products for dk and dv
    # from registers: p = exp2(logit - lse), dv = p d_out, ds = p * (v d_out^T - delta) * slope, dk = scale ds q.
    # lse and delta are what _delta writes, num_rows for each head. Where FUSE_DQ, each tile's part of dq = scale ds^T k
    # is added in memory, in float32 and in no fixed order.
    PRECISE: tl.constexpr = q_ptr.dtype.element_ty == tl.float32
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
    k_first = col0
    k_last = tl.minimum(col0 + BN, kv_len) - 1
    qk_scale = scale * 0.02

    # Rows [first, stop) see some key of the tile, rows [full_start, full_end) each of them.
    first = tl.maximum(k_first + q_len - kv_len, 0) // BM * BM
    full_start = tl.where(col0 + BN > kv_len, q_len, k_last + q_len - kv_len)
    stop = tl.minimum(k_last + q_len - kv_len + 4096, q_len)
    full_end = tl.minimum(k_first + q_len - kv_len + 4096, q_len)

    k_tile = k_desc.load([col0, 0])
    v_tile = v_desc.load([col0, 0])
    dk = tl.zeros([BN, HEAD_DIM], tl.float32)
    dv = tl.zeros([BN, V_HEAD_DIM], tl.float32)
    for start in tl.range(first, stop, BM):
        q_tile = q_desc.load([start, 0])
        rows = start + tl.arange(0, BM)
        q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[None, :]
        lse = tl.load(lse_ptr + row0 + rows)[None, :]
        qk = tl.dot(k_tile, q_tile.T, input_precision="ieee")
        x, slope = _score_and_slope(qk, PRECISE, qk_scale)
        if (start < full_start) | (start + BM > full_end):
            shown = _visible_by_key(q, k) & (cols < kv_len)[:, None] & (rows < q_len)[None, :]
            x = tl.where(shown, x, -float("inf"))
            slope = tl.where(shown, slope, 0.0)
        p = tl.exp2(x - lse)
        do_tile = do_desc.load([start, 0])
        dv = tl.dot(p.to(do_tile.dtype), do_tile, dv, input_precision="ieee")
        dp = tl.dot(v_tile, do_tile.T, input_precision="ieee")
        delta = tl.load(delta_ptr + row0 + rows)[None, :]
        ds = (p * (dp - delta) * slope).to(q_tile.dtype)
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


@triton.jit
def _score_and_slope_by_key(qk, qk_scale):
    """50.0 * tanh(score / 50.0), in units of log2, and its derivative by score."""
    t = _tanh_approx(qk * qk_scale)
    return t * 72.13475204444816, 1.0 - t * t


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
def _rows_from(first, BM: gl.constexpr, layout: gl.constexpr):
    """Which rows of a tile come from place `first` on, [1, BM] or for each key [64, BM].

    A row's place is taken apart: multiples of 8 are constants of the code, the rest is the same in all of a thread's.
    """
    places = gl.arange(0, BM, layout=layout)[None, :]
    return (places & -8) >= first - (places & 7)


@gluon.jit
def _rows_to(last, BM: gl.constexpr, layout: gl.constexpr):
    """The same up to place `last`."""
    places = gl.arange(0, BM, layout=layout)[None, :]
    return (places & -8) <= last - (places & 7)


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
def _backward_producer(
    q_desc,
    do_desc,
    k_desc,
    v_desc,
    lse_desc,
    delta_desc,
    shared,
    barriers,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    STAGES: gl.constexpr,
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
        num_tiles, num_mixed, num_left, num_right, first = _queries_of(col0, q_len, kv_len, BM, BN)
        first_row = (b * heads + h) * num_rows
        for i in range(num_tiles):
            start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
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
    CONSUMER: gl.constexpr,
    shared,
    barriers,
    dq_sums,
    dk_desc,
    dv_desc,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    STAGES: gl.constexpr,
    FUSE_DQ: gl.constexpr,
    DELAY_DQ: gl.constexpr,
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
    if FUSE_DQ > 0 and DELAY_DQ:
        # As if there had been a tile before the first, with dS = 0.
        last_at = (b * heads + kv_h * (heads // kv_heads)) * num_rows * (HEAD_DIM // 64) + 64 * CONSUMER
        ds_s.index(2 * ((n - 1) & (BUFFERS - 1)) + CONSUMER).store(gl.zeros([64, BM], k_s.dtype, scores_layout))
        fence_async_shared()
        _be_there(8 + 2 * CONSUMER + (n + 1 & 1))
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
        first_row = (b * heads + h) * num_rows

        # Mixed tiles.
        i = 0
        while i < num_mixed:
            start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
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
            x, slope = _score_and_slope_by_key(qk, qk_scale)
            shown = _rows_from(seen_from - start, BM, row_layout) & _rows_to(seen_to - start, BM, row_layout)
            x = gl.where(shown, x, -float("inf"))
            slope = gl.where(shown, slope, 0.0)
            p = gl.exp2(x - lse)
            dp = warpgroup_mma_wait(0, deps=(products,))
            p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
            p = p * slope
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

        # Full tiles: each row sees each key, no mask.
        while i < num_tiles:
            start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
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
            x, slope = _score_and_slope_by_key(qk, qk_scale)
            p = gl.exp2(x - lse)
            dp = warpgroup_mma_wait(0, deps=(products,))
            p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
            p = p * slope
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


@gluon.jit(
    do_not_specialize=[
        "heads",
        "kv_heads",
        "q_len",
        "kv_len",
        "head_dim",
        "v_head_dim",
        "batch",
        "num_rows",
        "head_group",
    ]
)
def _backward_kv_hopper(
    q_desc,
    do_desc,
    k_desc,
    v_desc,
    lse_desc,
    delta_desc,
    dq_sums,
    dk_desc,
    dv_desc,
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
    STAGES: gl.constexpr,
    FUSE_DQ: gl.constexpr,
    DELAY_DQ: gl.constexpr,
):
    # Grid: one program for each tile of BN = 128 keys of each head of K and V of each batch element. It walks along the
    # queries that see some of its keys, head by head of those that share them: p = exp2(logit - lse), dv = p^T d_out,
    # ds = p * (d_out v^T - delta) * slope, dk = scale ds^T q. lse and delta are what _delta writes, num_rows for each
    # head.
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
            0, shared, barriers, dq_sums, dk_desc, dv_desc, sizes, BM, BN, STAGES, FUSE_DQ, DELAY_DQ,
        )),
        (_backward_consumer, (
            1, shared, barriers, dq_sums, dk_desc, dv_desc, sizes, BM, BN, STAGES, FUSE_DQ, DELAY_DQ,
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


@gluon.jit
def _leave_p(p_s, p):
    """Put a tile [64, 64] into shared memory in the order in which threads hold it, 16 bytes a thread:

    by eight columns, warp and lane, and a thread's four values of these columns, rows 0 and 8 by columns 0 and 1.
    """
    p_s.store(p.reshape([4, 2, 8, 8, 4, 2]).permute((3, 0, 2, 4, 1, 5)).reshape([32, 128]))


@gluon.jit
def _take_p(p_s, layout: gl.constexpr):
    """What the same threads of the other consumer put there."""
    p = p_s.load(gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])).reshape([8, 4, 8, 4, 2, 2])
    return gl.convert_layout(p.permute((1, 4, 2, 0, 3, 5)).reshape([64, 64]), layout, assert_trivial=True)


@gluon.jit
def _wide_producer(
    q_desc,
    do_desc,
    k_desc,
    v_desc,
    lse_desc,
    delta_desc,
    shared,
    barriers,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    STAGES: gl.constexpr,
):
    # One warp: brings the program's tile of K and V into shared memory by TMA, then the tiles of Q and dO that see it
    # and their rows' lse and delta as soon as the consumers make room.
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s, lse_s, delta_s, p_s = shared
    kv_full, q_full, do_full, p_full, q_empty, do_empty = barriers
    b, kv_h, col0 = _keys_of(gl.program_id(0), batch, kv_heads, kv_len, head_group, BN)
    mbarrier.expect(kv_full, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma_load(k_desc, [b, kv_h, col0, 0], kv_full, k_s)
    tma_load(v_desc, [b, kv_h, col0, 0], kv_full, v_s)
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    for h in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        num_tiles, num_mixed, num_left, num_right, first = _queries_of(col0, q_len, kv_len, BM, BN)
        first_row = (b * heads + h) * num_rows
        for i in range(num_tiles):
            start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
            stage, phase = _stage_of(n, STAGES)
            mbarrier.wait(do_empty.index(stage), phase ^ 1)
            mbarrier.expect(do_full.index(stage), do_desc.block_type.nbytes + 4 * BM)
            tma_load(do_desc, [b, h, start, 0], do_full.index(stage), do_s.index(stage))
            tma_load(delta_desc, [first_row + start], do_full.index(stage), delta_s.index(stage))
            mbarrier.wait(q_empty.index(stage), phase ^ 1)
            mbarrier.expect(q_full.index(stage), q_desc.block_type.nbytes + 4 * BM)
            tma_load(q_desc, [b, h, start, 0], q_full.index(stage), q_s.index(stage))
            tma_load(lse_desc, [first_row + start], q_full.index(stage), lse_s.index(stage))
            n += 1


@gluon.jit
def _wide_dv_consumer(
    shared,
    barriers,
    dv_desc,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    # Four warps: S^T = K Q^T, P^T = exp2(logit - lse), dV += P^T dO. Tiles are transposed, [64, BM], so that P enters
    # its product from registers. P times slope goes to shared memory too, in float32, for those who make dK.
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s, lse_s, delta_s, p_s = shared
    kv_full, q_full, do_full, p_full, q_empty, do_empty = barriers
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
    b, kv_h, col0 = _keys_of(gl.program_id(0), batch, kv_heads, kv_len, head_group, BN)
    cols = col0 + gl.arange(0, BN, layout=col_layout)
    # Keys beyond the last are taken as the last: they read what exists.
    k = gl.minimum(cols, kv_len - 1)[:, None]
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    mbarrier.wait(kv_full, 0)
    for _ in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        qk_scale = scale * 0.02
        # The rows that see each key, as far as these are one interval.
        seen_from = gl.where((cols < kv_len)[:, None], gl.maximum(k + q_len - kv_len, 0), 1 << 30)
        seen_to = gl.minimum(gl.maximum(k + q_len - kv_len + 4095, -1), q_len - 1)
        num_tiles, num_mixed, num_left, num_right, first = _queries_of(col0, q_len, kv_len, BM, BN)

        # Mixed tiles.
        for i in range(0, num_mixed):
            start = _query_tile(i, num_tiles, num_mixed, num_left, num_right, first, BM)
            stage, phase = _stage_of(n, STAGES)
            mbarrier.wait(q_full.index(stage), phase)
            scores = _issue_qk(k_tile, q_s.index(stage).reshape([BM, WIDTH]), zero, MAIN, REST)
            qk = warpgroup_mma_wait(0, deps=(scores,))
            lse = lse_s.index(stage).load(row_layout)[None, :]
            x, slope = _score_and_slope_by_key(qk, qk_scale)
            shown = _rows_from(seen_from - start, BM, row_layout) & _rows_to(seen_to - start, BM, row_layout)
            x = gl.where(shown, x, -float("inf"))
            slope = gl.where(shown, slope, 0.0)
            p = gl.exp2(x - lse)
            _leave_p(p_s.index(stage), p * slope)
            mbarrier.arrive(p_full.index(stage))
            p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
            mbarrier.wait(do_full.index(stage), phase)
            product = _issue_pv(p_operand, do_s.index(stage).reshape([BM, V_WIDTH]), dv, V_MAIN, V_REST)
            dv = _await_pv(product, V_REST)
            mbarrier.arrive(do_empty.index(stage))
            n += 1

        # Full tiles: each row sees each key, no mask.
        for _ in range(num_mixed, num_tiles):
            stage, phase = _stage_of(n, STAGES)
            mbarrier.wait(q_full.index(stage), phase)
            scores = _issue_qk(k_tile, q_s.index(stage).reshape([BM, WIDTH]), zero, MAIN, REST)
            qk = warpgroup_mma_wait(0, deps=(scores,))
            lse = lse_s.index(stage).load(row_layout)[None, :]
            x, slope = _score_and_slope_by_key(qk, qk_scale)
            p = gl.exp2(x - lse)
            _leave_p(p_s.index(stage), p * slope)
            mbarrier.arrive(p_full.index(stage))
            p_operand = gl.convert_layout(p.to(k_s.dtype), dv_operand)
            mbarrier.wait(do_full.index(stage), phase)
            product = _issue_pv(p_operand, do_s.index(stage).reshape([BM, V_WIDTH]), dv, V_MAIN, V_REST)
            dv = _await_pv(product, V_REST)
            mbarrier.arrive(do_empty.index(stage))
            n += 1

    # Epilogue. When V has been read for the last time it takes dV, which TMA writes as far as there are keys.
    _meet(8)
    v_tile.slice(0, V_MAIN, 1).store(dv[0].to(v_s.dtype))
    if V_REST > 0:
        v_tile.slice(V_MAIN, V_REST, 1).store(dv[1].to(v_s.dtype))
    fence_async_shared()
    tma_store(dv_desc, [b, kv_h, col0, 0], v_s)
    tma.store_wait(0)


@gluon.jit
def _wide_dk_consumer(
    shared,
    barriers,
    dk_desc,
    sizes,
    BM: gl.constexpr,
    BN: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    V_HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    # Four warps: dP^T = V dO^T, dS^T = P^T (dP^T - delta) with P times slope of the others, dK += dS^T Q.
    scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group = sizes
    q_s, do_s, k_s, v_s, lse_s, delta_s, p_s = shared
    kv_full, q_full, do_full, p_full, q_empty, do_empty = barriers
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
    b, kv_h, col0 = _keys_of(gl.program_id(0), batch, kv_heads, kv_len, head_group, BN)
    n = 0  # tiles of queries so far: n % STAGES is the stage of the next
    mbarrier.wait(kv_full, 0)
    for _ in range(kv_h * (heads // kv_heads), (kv_h + 1) * (heads // kv_heads)):
        num_tiles, num_mixed, num_left, num_right, first = _queries_of(col0, q_len, kv_len, BM, BN)
        for _ in range(num_tiles):
            stage, phase = _stage_of(n, STAGES)
            mbarrier.wait(do_full.index(stage), phase)
            products = _issue_qk(v_tile, do_s.index(stage).reshape([BM, V_WIDTH]), zero, V_MAIN, V_REST)
            dp = warpgroup_mma_wait(0, deps=(products,))
            dp -= delta_s.index(stage).load(row_layout)[None, :]
            mbarrier.arrive(do_empty.index(stage))
            mbarrier.wait(p_full.index(stage), phase)
            ds = _take_p(p_s.index(stage), scores_layout) * dp
            mbarrier.wait(q_full.index(stage), phase)
            ds_operand = gl.convert_layout(ds.to(k_s.dtype), dk_operand)
            product = _issue_pv(ds_operand, q_s.index(stage).reshape([BM, WIDTH]), dk, MAIN, REST)
            dk = _await_pv(product, REST)
            mbarrier.arrive(q_empty.index(stage))
            n += 1
    _be_there(8)

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
        "batch",
        "num_rows",
        "head_group",
    ]
)
def _backward_kv_hopper_wide(
    q_desc,
    do_desc,
    k_desc,
    v_desc,
    lse_desc,
    delta_desc,
    dk_desc,
    dv_desc,
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
    # queries as _backward_kv_hopper does and leaves dq to _backward_q: a thread holds 64 x 256 of either dk or dv.
    # One warp loads (_wide_producer), four warps make p and dv (_wide_dv_consumer), four ds and dk (_wide_dk_consumer).
    # They meet at barriers in shared memory: `full` when a tile has arrived, `empty` when all who read it are done.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up; what lies beyond reads as zero.
    q_s = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + q_desc.block_type.shape, q_desc.layout)
    do_s = gl.allocate_shared_memory(do_desc.dtype, [STAGES] + do_desc.block_type.shape, do_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, k_desc.block_type.shape, k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, v_desc.block_type.shape, v_desc.layout)
    lse_s = gl.allocate_shared_memory(gl.float32, [STAGES, BM], lse_desc.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, [STAGES, BM], delta_desc.layout)
    p_s = gl.allocate_shared_memory(gl.float32, [STAGES, 32, 128], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    kv_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    do_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    p_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    do_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(q_full.index(stage), count=1)
        mbarrier.init(do_full.index(stage), count=1)
        mbarrier.init(p_full.index(stage), count=1)
        # The product for dK, the last that reads Q and P, comes after all that the others do with them.
        mbarrier.init(q_empty.index(stage), count=1)
        mbarrier.init(do_empty.index(stage), count=2)
    shared = (q_s, do_s, k_s, v_s, lse_s, delta_s, p_s)
    barriers = (kv_full, q_full, do_full, p_full, q_empty, do_empty)
    sizes = (scale, batch, heads, kv_heads, q_len, kv_len, num_rows, head_group)
    # fmt: off
    gl.warp_specialize([
        (_wide_dv_consumer, (shared, barriers, dv_desc, sizes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES)),
        (_wide_dk_consumer, (shared, barriers, dk_desc, sizes, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES)),
        (_wide_producer, (
            q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc, shared, barriers, sizes, BM, BN, STAGES,
        )),
    ], [4, 1], [240, 24])
    # fmt: on


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "num_splits"])
def _decode(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    acc_ptr,
    m_ptr,
    l_ptr,
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
    num_splits,
    BM: tl.constexpr,
    BN: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
):
    # Grid: one program for each split of the keys of each tile of rows of each KV head of each batch element.
    # A tile has BM rows, each a query and a head of those that share the KV head: h and q [BM, 1] differ from row to
    # row; k [1, BN]: positions of a tile's keys. m, l, acc: see _online_softmax.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up to powers of two; what lies beyond reads as zero.
    # Functions that have a fast and an exact form take the exact one for float32.
    PRECISE: tl.constexpr = q_ptr.dtype.element_ty == tl.float32
    kv_h = tl.program_id(0) % kv_heads
    item = tl.program_id(0) // kv_heads
    group = heads // kv_heads
    num_tiles = tl.cdiv(q_len * group, BM)
    split = item % num_splits
    tile = item // num_splits % num_tiles
    b = item // num_splits // num_tiles

    # Rows beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    rows = tile * BM + tl.arange(0, BM)
    in_range = rows < q_len * group
    rows = tl.minimum(rows, q_len * group - 1)
    query = rows // group
    head = kv_h * group + rows % group
    q = (query + (kv_len - q_len))[:, None]
    q_first = tile * BM // group + (kv_len - q_len)
    q_last = (tl.minimum(tile * BM + BM, q_len * group) - 1) // group + (kv_len - q_len)
    q_rows = q_ptr + b.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh + query.to(tl.int64) * stride_qm
    k_base = k_ptr + b.to(tl.int64) * stride_kb + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + b.to(tl.int64) * stride_vb + kv_h.to(tl.int64) * stride_vh
    dims = tl.arange(0, HEAD_DIM)
    v_dims = tl.arange(0, V_HEAD_DIM)
    qk_scale = scale * 0.02
    r = q - 4095

    # Keys [first, stop) are seen by some row of the tile, [full_start, full_end) by each row.
    first = tl.maximum(q_first - 4095, 0) // BN * BN
    stop = tl.maximum(q_last + 1, first)
    full_start = tl.minimum(tl.cdiv(tl.maximum(q_last - 4095, 0), BN), tl.cdiv(stop, BN)) * BN
    full_end = tl.maximum(tl.maximum(q_first + 1, 0) // BN * BN, full_start)

    # This program's split of these keys, whole tiles.
    per_split = tl.cdiv(tl.cdiv(stop - first, BN), num_splits) * BN
    split_start = first + split * per_split
    split_end = tl.minimum(split_start + per_split, stop)

    q_tile = tl.load(q_rows[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)
    # A finite floor for the maximum: -inf - floor is -inf, so that a row that sees no key stays at l = 0, without NaN.
    m = tl.full([BM], -3.0e38, tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, V_HEAD_DIM], tl.float32)

    # Full tiles run without the mask.
    for start in tl.range(split_start, split_end, BN):
        at = tl.minimum(start + tl.arange(0, BN), kv_len - 1)
        k_rows = k_base + at.to(tl.int64) * stride_kn
        v_rows = v_base + at.to(tl.int64) * stride_vn
        k_tile = tl.load(k_rows[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        k = start + tl.arange(0, BN)[None, :]
        x = _score(qk, PRECISE, qk_scale)
        if (start < full_start) | (start >= full_end):
            x = tl.where(_visible(q, k, r), x, -float("inf"))
        v_tile = tl.load(v_rows[:, None] + v_dims[None, :], mask=(v_dims < v_head_dim)[None, :], other=0.0)
        acc, m, l = _online_softmax(x, v_tile, acc, m, l)

    # Epilogue: the rows themselves, or where their keys are split this program's part of them.
    if num_splits == 1:
        factor, lse, _ = finished(m, l, 0.0, None, NATURAL=False)
        lse_rows = (b * heads + head).to(tl.int64) * q_len + query
        out_rows = out_ptr + lse_rows * v_head_dim
        tl.store(lse_ptr + lse_rows, lse, mask=in_range)
        tl.store(
            out_rows[:, None] + v_dims[None, :],
            (acc * factor[:, None]).to(out_ptr.dtype.element_ty),
            mask=in_range[:, None] & (v_dims < v_head_dim)[None, :],
        )
    else:
        part = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
        tl.store(m_ptr + part, m)
        tl.store(l_ptr + part, l)
        tl.store(acc_ptr + part[:, None] * V_HEAD_DIM + v_dims[None, :], acc)


@triton.jit(do_not_specialize=["heads", "kv_heads", "total_q", "max_q", "num_blocks", "max_keys", "batch"])
def _decode_paged(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    acc_ptr,
    m_ptr,
    l_ptr,
    items_ptr,
    count_ptr,
    block_table_ptr,
    seq_lens_ptr,
    cu_seqlens_q_ptr,
    k_scale_ptr,
    v_scale_ptr,
    stride_qm,
    stride_qh,
    stride_kp,
    stride_kn,
    stride_kh,
    stride_vp,
    stride_vn,
    stride_vh,
    stride_ksp,
    stride_ksn,
    stride_ksh,
    stride_vsp,
    stride_vsn,
    stride_vsh,
    stride_table,
    stride_om,
    stride_oh,
    scale,
    batch,
    total_q,
    max_q,
    heads,
    kv_heads,
    head_dim,
    v_head_dim,
    num_blocks,
    max_keys,
    BM: tl.constexpr,
    BN: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKEN_SCALES: tl.constexpr,
):
    # Grid: one program for each item of the plan and each KV head: one split of the keys of one tile of rows.
    # A tile has BM rows, each a query and a head of those that share the KV head: h and q [BM, 1] differ from row to
    # row; k [1, BN]: positions of a tile's keys. m, l, acc: see _online_softmax.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up to powers of two; what lies beyond reads as zero.
    # Functions that have a fast and an exact form take the exact one for float32.
    PRECISE: tl.constexpr = q_ptr.dtype.element_ty == tl.float32
    kv_h = tl.program_id(0) % kv_heads
    item = tl.program_id(0) // kv_heads
    group = heads // kv_heads
    # A cache of 8 bits has scales, which its dot products are multiplied by.
    QUANTIZED: tl.constexpr = k_ptr.dtype.element_ty != q_ptr.dtype.element_ty
    if item >= tl.load(count_ptr):
        return
    b = tl.load(items_ptr + 4 * item)
    tile = tl.load(items_ptr + 4 * item + 1)
    split = tl.load(items_ptr + 4 * item + 2)
    num_splits = tl.load(items_ptr + 4 * item + 3)
    if num_splits == 0:  # no keys: the merge writes these rows
        return
    first_query, q_len = query_range(cu_seqlens_q_ptr, b, batch, total_q, max_q)
    kv_len = tl.minimum(tl.maximum(tl.load(seq_lens_ptr + b), 0), max_keys)

    # Rows beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    rows = tile * BM + tl.arange(0, BM)
    in_range = rows < q_len * group
    rows = tl.minimum(rows, q_len * group - 1)
    query = rows // group
    head = kv_h * group + rows % group
    q = (query + (kv_len - q_len))[:, None]
    q_first = tile * BM // group + (kv_len - q_len)
    q_last = (tl.minimum(tile * BM + BM, q_len * group) - 1) // group + (kv_len - q_len)
    pages_ptr = block_table_ptr + b.to(tl.int64) * stride_table
    q_rows = q_ptr + (first_query + query).to(tl.int64) * stride_qm + head.to(tl.int64) * stride_qh
    k_base = k_ptr + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + kv_h.to(tl.int64) * stride_vh
    dims = tl.arange(0, HEAD_DIM)
    v_dims = tl.arange(0, V_HEAD_DIM)
    qk_scale = scale * 0.02
    r = q - 4095

    # Keys [first, stop) are seen by some row of the tile, [full_start, full_end) by each row.
    first = tl.maximum(q_first - 4095, 0) // BN * BN
    stop = tl.maximum(q_last + 1, first)
    full_start = tl.minimum(tl.cdiv(tl.maximum(q_last - 4095, 0), BN), tl.cdiv(stop, BN)) * BN
    full_end = tl.maximum(tl.maximum(q_first + 1, 0) // BN * BN, full_start)

    # This program's split of these keys, whole tiles.
    per_split = tl.cdiv(tl.cdiv(stop - first, BN), num_splits) * BN
    split_start = first + split * per_split
    split_end = tl.minimum(split_start + per_split, stop)

    q_tile = tl.load(q_rows[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)
    q_tile, k_factor = beside_cache(q_tile, k_ptr)
    if k_scale_ptr is not None and not TOKEN_SCALES:
        k_factor *= tl.load(k_scale_ptr + kv_h * stride_ksh)
    # A finite floor for the maximum: -inf - floor is -inf, so that a row that sees no key stays at l = 0, without NaN.
    m = tl.full([BM], -3.0e38, tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, V_HEAD_DIM], tl.float32)

    # Full tiles run without the mask.
    for start in tl.range(split_start, split_end, BN):
        at = tl.minimum(start + tl.arange(0, BN), kv_len - 1)
        page, place = page_of(pages_ptr, at, num_blocks, BLOCK_SIZE)
        k_rows = k_base + page * stride_kp + place * stride_kn
        v_rows = v_base + page * stride_vp + place * stride_vn
        k_tile = tl.load(k_rows[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)
        qk = tl.dot(q_tile, as_factor(k_tile, q_tile).T, input_precision="ieee")
        if QUANTIZED:
            qk *= k_factor[:, None]
            if TOKEN_SCALES:
                qk *= tl.load(k_scale_ptr + page * stride_ksp + place * stride_ksn + kv_h * stride_ksh)[None, :]
        k = start + tl.arange(0, BN)[None, :]
        x = _score(qk, PRECISE, qk_scale)
        if (start < full_start) | (start >= full_end):
            x = tl.where(_visible(q, k, r), x, -float("inf"))
        v_tile = tl.load(v_rows[:, None] + v_dims[None, :], mask=(v_dims < v_head_dim)[None, :], other=0.0)
        v_tile = as_factor(v_tile, q_tile)
        if TOKEN_SCALES:
            v_scale = tl.load(v_scale_ptr + page * stride_vsp + place * stride_vsn + kv_h * stride_vsh)
            v_tile = (v_tile.to(tl.float32) * v_scale[:, None]).to(q_ptr.dtype.element_ty)
        acc, m, l = _online_softmax(x, v_tile, acc, m, l)

    if v_scale_ptr is not None and not TOKEN_SCALES:
        acc *= tl.load(v_scale_ptr + kv_h * stride_vsh)

    # Epilogue: the rows themselves, or where their keys are split this program's part of them.
    if num_splits == 1:
        factor, lse, _ = finished(m, l, 0.0, None, NATURAL=False)
        out_rows = out_ptr + (first_query + query).to(tl.int64) * stride_om + head.to(tl.int64) * stride_oh
        lse_rows = head.to(tl.int64) * total_q + first_query + query
        tl.store(lse_ptr + lse_rows, lse, mask=in_range)
        tl.store(
            out_rows[:, None] + v_dims[None, :],
            (acc * factor[:, None]).to(out_ptr.dtype.element_ty),
            mask=in_range[:, None] & (v_dims < v_head_dim)[None, :],
        )
    else:
        part = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
        tl.store(m_ptr + part, m)
        tl.store(l_ptr + part, l)
        tl.store(acc_ptr + part[:, None] * V_HEAD_DIM + v_dims[None, :], acc)


def _launch(q, k, v, scale, config):
    """The operator: check the arguments, choose the config, launch. Returns out and lse."""
    call = runtime.prepare(q, k, v, scale)
    out, lse = runtime.outputs(call)
    if runtime.is_empty(call):
        return runtime.nothing_seen(out, lse)
    if config is None and runtime.few_queries(call.sizes):
        runtime.launch_decode(_decode, call, (out, lse), {}, span=4096)
        return out, lse
    config = runtime.choose_config(config, CONFIGS, call)
    if config.backend == "hopper":
        runtime.relaunch(
            _forward_hopper, (call.layout, config),
            call.q, call.k, call.v, out, lse,
            rest=lambda: runtime.Rest(
                runtime.hopper_programs(call, config),
                call.strides, call.scale, call.sizes.batch, call.lengths,
                **runtime.hopper_blocks(call, config), **runtime.options(config),
            ),
        )  # fmt: skip
        return out, lse
    runtime.relaunch(
        _forward, (call.layout, config),
        call.q, call.k, call.v, out, lse,
        rest=lambda: runtime.Rest(
            -(-call.sizes.q_len // config.BM) * call.sizes.batch * call.sizes.heads,
            call.strides, call.scale, call.lengths,
            **call.blocks(config), **runtime.options(config),
        ),
    )  # fmt: skip
    return out, lse


def _launch_backward(
    d_out, d_lse, q, k, v, out, lse, scale, config, deterministic, needs
):  # fmt: skip
    """The backward operator. Returns the gradients of q, k, v; None for one that `needs` does not ask for."""
    call = runtime.prepare(q, k, v, scale)
    if runtime.is_empty(call):
        return runtime.no_gradients(q, k, v)
    needs_q, needs_k, needs_v = needs[:3]
    fuse_dq = needs_q and (needs_k or needs_v) and not runtime.is_deterministic(deterministic)
    kv_config, q_config = runtime.backward_configs(config, BACKWARD_KV, BACKWARD_Q, call, fuse_dq)
    dq_sums = runtime.hopper_query_sums(call, kv_config)
    incoming = _incoming(call, out, lse, d_out, d_lse, dq_sums, kv_config)
    dq = dk = dv = None
    if needs_k or needs_v:
        if kv_config.backend == "hopper":
            dq, dk, dv = _launch_backward_kv_hopper(call, incoming, dq_sums, kv_config)
        else:
            dq, dk, dv = _launch_backward_kv(call, incoming, kv_config)
    if needs_q and dq is None:
        if q_config.backend == "hopper":
            dq = _launch_backward_q_hopper(call, incoming, q_config)
        else:
            dq = _launch_backward_q(call, incoming, q_config)
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


def _launch_backward_kv(call, incoming, config):
    """dk and dv, and dq where the config fuses, else None. Returns dq, dk, dv."""
    dq_sums = runtime.query_sums(call) if config.fuse_dq else None
    dk, dv = runtime.key_gradients(call)
    runtime.relaunch(
        _backward_kv, (call.layout, incoming.strides, config),
        call.q, call.k, call.v, incoming.d_out, incoming.lse, incoming.delta, dq_sums, dk, dv,
        rest=lambda: runtime.Rest(
            -(-call.sizes.kv_len // config.BN) * call.sizes.batch * call.sizes.heads,
            call.strides, incoming.strides, incoming.num_rows, 0 if dq_sums is None else dq_sums.stride(2),
            call.scale, call.lengths,
            **call.blocks(config), FUSE_DQ=config.fuse_dq, **runtime.options(config),
        ),
    )  # fmt: skip
    dq = runtime.from_sums(call, dq_sums) if config.fuse_dq else None
    return dq, runtime.sum_of_groups(call, dk), runtime.sum_of_groups(call, dv)


def _launch_backward_kv_hopper(call, incoming, dq_sums, config):
    """The same by a Hopper kernel: wide heads have one of their own, with tiles of 64 keys and without dq.

    The other one adds to dq_sums, if there are any.
    """
    dq = None
    dk, dv = runtime.hopper_key_gradients(call)
    if config.wide:
        runtime.relaunch(
            _backward_kv_hopper_wide, (call.layout, incoming.strides, config),
            call.q, incoming.d_out, call.k, call.v, incoming.lse_by_tile, incoming.delta, dk, dv,
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
        _backward_kv_hopper, (call.layout, incoming.strides, config),
        call.q, incoming.d_out, call.k, call.v, incoming.lse_by_tile, incoming.delta, dq_sums, dk, dv,
        rest=lambda: runtime.Rest(
            runtime.hopper_backward_programs(call, config),
            call.scale, call.sizes.batch, call.sizes.heads, call.sizes.kv_heads, call.sizes.q_len,
            call.sizes.kv_len, incoming.num_rows, runtime.key_head_group(call, config),
            tilings=runtime.hopper_backward_tiles(call, incoming, dq_sums, dk, dv, config),
            BM=config.BM, BN=config.BN, STAGES=config.num_stages, FUSE_DQ=config.fuse_dq, DELAY_DQ=config.delay_dq,
            **runtime.options(config),
        ),
    )  # fmt: skip
    if dq_sums is not None:
        dq = runtime.query_gradient(call)
        runtime.relaunch(
            _collect_dq, (call.layout, config),
            dq_sums, dq,
            rest=lambda: runtime.Rest(
                dq_sums.numel() // 4096,
                call.scale, call.sizes.q_len, incoming.num_rows, call.sizes.head_dim,
                HEAD_DIM=8192 // config.BM,
            ),
        )  # fmt: skip
    return dq, dk, dv


def _launch_backward_q(call, incoming, config):
    """dq."""
    dq = runtime.query_gradient(call)
    runtime.relaunch(
        _backward_q, (call.layout, incoming.strides, config),
        call.q, call.k, call.v, incoming.d_out, incoming.lse, incoming.delta, dq,
        rest=lambda: runtime.Rest(
            -(-call.sizes.q_len // config.BM) * call.sizes.batch * call.sizes.heads,
            call.strides, incoming.strides, incoming.num_rows, call.scale, call.lengths,
            **call.blocks(config), **runtime.options(config),
        ),
    )  # fmt: skip
    return dq


def _launch_backward_q_hopper(call, incoming, config):
    """The same by the Hopper kernel."""
    dq = runtime.query_gradient(call)
    runtime.relaunch(
        _backward_q_hopper, (call.layout, incoming.strides, config),
        call.q, incoming.d_out, call.k, call.v, dq, incoming.lse, incoming.delta,
        rest=lambda: runtime.Rest(
            -(-call.sizes.q_len // config.BM) * call.sizes.batch * call.sizes.heads,
            call.scale, call.sizes.batch, call.sizes.heads, call.sizes.kv_heads, call.sizes.q_len,
            call.sizes.kv_len, incoming.num_rows,
            tilings=runtime.hopper_query_tiles(call, incoming, dq, config),
            **runtime.hopper_query_blocks(call, config), **runtime.options(config),
        ),
    )  # fmt: skip
    return dq


OPERATOR = runtime.attention_operator(
    IDENTITY,
    "",
    _launch,
    _launch_backward,
)


def _launch_paged(
    q,
    k_cache,
    v_cache,
    block_table,
    seq_lens,
    cu_seqlens_q,
    k_scale,
    v_scale,
    items,
    count,
    out,
    lse,
    max_seqlen_q,
    max_seqlen_k,
    scale,
    batch_invariant,
    config,
):
    """The operator: check the arguments, plan unless there is a plan, launch. Writes out and lse."""
    call = runtime.prepare_paged(
        q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, max_seqlen_q, max_seqlen_k, scale, k_scale, v_scale
    )
    runtime.launch_paged(
        _decode_paged, call, out, lse, {},
        (items, count), batch_invariant, config, span=4096,
    )  # fmt: skip


PAGED_OPERATOR = runtime.paged_operator(IDENTITY, "", _launch_paged)


def attention(q, k, v, *, scale=None, return_lse=False, config=None, backward_config=None, deterministic=None):
    """The local layers of Gemma 2, softcapped scores in a causal window of 4096 keys.

    q [batch, heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len, v_head_dim]:
    float16, bfloat16 or float32, heads a multiple of kv_heads; under torch.autocast they are cast to its dtype. k and v
    of batch 1 serve all batch elements.
    Returns out [batch, heads, q_len, v_head_dim] in q's dtype; with return_lse also the natural log-sum-exp of each
    row, float32 [batch, heads, q_len], minus infinity where a row sees no key. Differentiable in q, k and v.

    scale: factor of the dot products, 1/sqrt(head_dim) by default.
    config: tile sizes and launch options instead of the recorded ones.
    backward_config: the same for the backward pass, {"backward_kv": config, "backward_q": config}.
    deterministic: gradients with the same bits on every run; None asks torch.are_deterministic_algorithms_enabled().

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit.
    """
    runtime.check_types(q, k, v, scale, deterministic)
    q, k, v = runtime.autocast(q, k, v)
    k, v = runtime.over_batch(q, k, v)
    out, lse = OPERATOR(
        q, k, v, scale, runtime.config_text(config),
        deterministic, runtime.backward_config_text(backward_config),
    )  # fmt: skip
    return (out, lse) if return_lse else out


def attention_paged(
    q,
    k_cache,
    v_cache,
    block_table,
    seq_lens,
    *,
    cu_seqlens_q=None,
    max_seqlen_q=1,
    max_seqlen_k=None,
    scale=None,
    k_scale=None,
    v_scale=None,
    return_lse=False,
    out=None,
    batch_invariant=False,
    plan=None,
    config=None,
):
    """Attention of new queries over a paged cache, which holds their own keys and values too. No gradients.

    q [total_q, heads, head_dim]: the queries of all sequences, one after the other; one a sequence without
    cu_seqlens_q. k_cache [num_blocks, block_size, kv_heads, head_dim] and v_cache [..., v_head_dim], any strides with a
    contiguous last dimension, block_size a multiple of 16: in q's dtype, float8_e4m3fn, float8_e5m2 or int8.
    block_table int32 [batch, max_blocks]: the pages of each sequence in their order. seq_lens int32 [batch]: its keys,
    the new ones included; what stands behind them counts for nothing.
    Returns out [total_q, heads, v_head_dim] in q's dtype; with return_lse also the natural log-sum-exp of each row,
    float32 [heads, total_q], minus infinity where a row sees no key. Never waits for the GPU: lengths may change from
    replay to replay of a graph, as far as max_seqlen_q, max_seqlen_k and the shapes allow.

    cu_seqlens_q: int32 [batch + 1], where the queries of each sequence begin, and their number.
    max_seqlen_q, max_seqlen_k: the most queries and keys of a sequence; keys as many as block_table has room for by
    default.
    scale: factor of the dot products, 1/sqrt(head_dim) by default.
    k_scale, v_scale: what an 8-bit cache is multiplied by, float32 [], [kv_heads] or [num_blocks, block_size,
    kv_heads].
    out: a tensor to write the result to.
    batch_invariant: a sequence's result has the same bits whatever else is in the batch.
    plan: what plan_paged(...) returned for the same sizes and lengths; otherwise it is made on each call.
    config: tile sizes and launch options instead of the built-in ones.

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit; of wrong numbers in block_table,
    seq_lens and cu_seqlens_q nothing is read or written out of bounds, and flashgen.runtime.serving.check says what
    they are.
    """
    items, count, batch_invariant, config = runtime.plan_arguments(
        plan, batch_invariant, runtime.config_text(config, "decode")
    )
    out, lse = runtime.empty_results(q, v_cache, out)
    PAGED_OPERATOR(
        q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, k_scale, v_scale,
        items, count, out, lse, max_seqlen_q, max_seqlen_k, scale, batch_invariant, config,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def plan_paged(
    q,
    k_cache,
    block_table,
    seq_lens,
    *,
    cu_seqlens_q=None,
    max_seqlen_q=1,
    max_seqlen_k=None,
    batch_invariant=False,
    config=None,
):
    """How to split the keys of these sequences evenly over the GPU, for attention_paged(..., plan=plan).

    Arguments as attention_paged takes them. Made on the device, once a step for all layers; a graph may capture it.
    """
    return runtime.paged_plan(
        q, k_cache, block_table, seq_lens, cu_seqlens_q, max_seqlen_q, max_seqlen_k, batch_invariant,
        runtime.config_text(config, "decode"), span=4096,
    )  # fmt: skip


def reference(q, k, v, *, scale=None, return_lse=False):
    """The same in eager PyTorch, the whole score matrix in memory; in float64 where q is float64."""

    def formula(score, b, h, kv_h, q, k):
        return 50.0 * torch.tanh(score / 50.0), (k >= q - 4095) & (k <= q)

    return runtime.eager_attention(q, k, v, formula, bottom_right=True, scale=scale, return_lse=return_lse)
