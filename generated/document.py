"""Causal attention within each of the documents packed into one sequence.

    out = softmax(score over visible keys) v, score = scale q k^T
    key k is visible to query q where (k <= q) & (doc[b, q] == doc[b, k])
    query i stands at key position i + kv_len - q_len

Inputs:
    doc [batch, kv_len] int32

Generated from variants/document.yaml by

    flashgen build variants/document.yaml

Do not edit: change the spec and build again.
"""

import torch
import triton
import triton.language as tl

from flashgen import runtime

IDENTITY = runtime.Identity(
    variant="document",
    spec="a26eedc95a7b",
    templates={"forward": "f7c22c95e304", "backward_q": "2a49b8f805ea", "backward_kv": "3ed03cabd371"},
    source="variants/document.yaml",
    arguments={"doc": "int32"},
)
CONFIGS = runtime.Lookup(
    IDENTITY,
    "forward",
    runtime.default_scheduled_config,
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
def _visible(q, k, doc_b_q, doc_base):
    """k <= q and doc[b, q] == doc[b, k]."""
    return (k <= q) & (doc_b_q == tl.load(doc_base + k))


@triton.jit
def _online_softmax(qk, qk_scale, v_tile, acc, m, l):
    """One step of the online softmax (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1).

    m [BM] is the running maximum of the logits in units of log2, l [BM] the running sum of exp2(logit - m),
    acc [BM, V_HEAD_DIM] the running sum of exp2(logit - m) * v.
    """
    # qk_scale >= 0, so that the maximum may be taken before the multiplication: one FMA a score.
    m_new = tl.maximum(m, tl.max(qk, 1) * qk_scale)
    p = tl.exp2(qk * qk_scale - m_new[:, None])
    alpha = tl.exp2(m - m_new)
    l = l * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None], input_precision="ieee")
    return acc, m_new, l


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
    doc_ptr,
    stride_doc_0,
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
    # q, k: positions of the tile's rows [BM, 1] and of a tile's keys [1, BN]. m, l, acc: see _online_softmax.
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
    doc_base = doc_ptr + b.to(tl.int64) * stride_doc_0
    doc_b_q = tl.load(doc_base + tl.maximum(q, 0))

    # What the schedule says of this tile of queries: which tiles of keys are mixed and which are full.
    row = b.to(tl.int64) * num_tiles + tile
    num_mixed = tl.load(counts_ptr + 2 * row)
    num_full = tl.load(counts_ptr + 2 * row + 1)
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
        acc, m, l = _online_softmax(qk, qk_scale, v_tile, acc, m, l)

    # Mixed tiles, few: a shorter pipeline leaves shared memory for the mask.
    for i in tl.range(0, num_mixed, num_stages=STAGES - 1 if STAGES > 1 else 1):
        start = tl.load(tiles_ptr + i) * BN
        k_tile = k_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        col = start + tl.arange(0, BN)[None, :]
        k = tl.minimum(col, kv_len - 1)
        qk = tl.where(_visible(q, k, doc_b_q, doc_base) & (col < kv_len), qk, -float("inf"))
        v_tile = v_desc.load([start, 0])
        acc, m, l = _online_softmax(qk, qk_scale, v_tile, acc, m, l)

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


@triton.jit(do_not_specialize=["q_len", "kv_len", "num_k_tiles"])
def _classify(
    states_ptr,
    doc_ptr,
    stride_doc_0,
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
    doc_base = doc_ptr + b.to(tl.int64) * stride_doc_0
    doc_b_q = tl.load(doc_base + tl.maximum(q, 0))
    doc_b_q_min = tl.min(doc_b_q)
    doc_b_q_max = tl.max(doc_b_q)
    tiles = chunk + tl.arange(0, CHUNK)

    # What the corners of each tile say of all its pairs, for the whole chunk at once.
    k_first = tl.minimum(tiles, num_k_tiles - 1) * BN
    k_last = tl.minimum(k_first + BN, kv_len) - 1
    k = tl.minimum(k_first[:, None] + tl.arange(0, BN)[None, :], kv_len - 1)
    doc_b_k = tl.load(doc_base + k)
    doc_b_k_max = tl.max(doc_b_k, 1)
    doc_b_k_min = tl.min(doc_b_k, 1)
    some = (k_first <= q_last) & ((doc_b_q_min <= doc_b_k_max) & (doc_b_k_min <= doc_b_q_max))
    every = (k_last <= q_first) & ((doc_b_q_min == doc_b_k_max) & (doc_b_k_min == doc_b_q_max))
    state = tl.zeros([CHUNK], tl.int32) + some.to(tl.int32) + every.to(tl.int32)

    # Pair by pair where that leaves doubt.
    for i in tl.range(0, tl.minimum(CHUNK, num_k_tiles - chunk)):
        if tl.sum(tl.where(tiles == chunk + i, state, 0)) == 1:
            keys = tl.minimum((chunk + i) * BN + tl.arange(0, BN), kv_len - 1)[None, :]
            shown = _visible(q, keys, doc_b_q, doc_base).to(tl.int32)
            state = tl.where(tiles == chunk + i, tl.max(shown) + tl.min(shown), state)

    # A ragged tile always needs the mask.
    state = tl.where((tiles + 1) * BN > kv_len, tl.minimum(state, 1), state)
    tl.store(states_ptr + row.to(tl.int64) * num_k_tiles + tiles, state.to(tl.int8), mask=tiles < num_k_tiles)


@triton.jit(do_not_specialize=["heads", "q_len", "v_head_dim"])
def _delta(
    out_ptr,
    d_out_ptr,
    lse_ptr,
    d_lse_ptr,
    row_lse_ptr,
    delta_ptr,
    stride_ob,
    stride_oh,
    stride_om,
    stride_lb,
    stride_lh,
    stride_lm,
    heads,
    q_len,
    v_head_dim,
    BM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
):
    # Grid: one program for each tile of BM rows of each head of each batch element. Writes for each row
    # delta = sum(d_out * out) - d_lse (FlashAttention-2, algorithm 2) and its log-sum-exp in units of log2: infinity
    # for a row that sees no key, so that all its p are 0.
    num_tiles = tl.cdiv(q_len, BM)
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
    lse = tl.load(lse_ptr + at, mask=in_range, other=0.0)
    lse = tl.where(lse == -float("inf"), float("inf"), lse * 1.4426950408889634)
    tl.store(row_lse_ptr + at, lse, mask=in_range)
    tl.store(delta_ptr + at, delta, mask=in_range)


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_k_tiles"])
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
    doc_ptr,
    stride_doc_0,
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
    # lse and delta are what _delta writes.
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
    in_range = rows < q_len
    # Rows beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
    qk_scale = scale * 1.4426950408889634
    doc_base = doc_ptr + b.to(tl.int64) * stride_doc_0
    doc_b_q = tl.load(doc_base + tl.maximum(q, 0))

    # What the schedule says of this tile of queries: which tiles of keys are mixed and which are full.
    row = b.to(tl.int64) * num_tiles + tile
    num_mixed = tl.load(counts_ptr + 2 * row)
    num_full = tl.load(counts_ptr + 2 * row + 1)
    tiles_ptr += row * num_k_tiles

    q_tile = q_desc.load([row0, 0])
    do_tile = do_desc.load([row0, 0])
    row = head.to(tl.int64) * q_len + rows
    lse = tl.load(lse_ptr + row, mask=in_range, other=float("inf"))[:, None]
    delta = tl.load(delta_ptr + row, mask=in_range, other=0.0)[:, None]
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
        qk = tl.where(_visible(q, k, doc_b_q, doc_base) & (col < kv_len), qk, -float("inf"))
        p = tl.exp2(qk * qk_scale - lse)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta)
        dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision="ieee")

    dims = tl.arange(0, HEAD_DIM)
    tl.store(
        dq_ptr + row[:, None] * head_dim + dims[None, :],
        (dq * scale).to(dq_ptr.dtype.element_ty),
        mask=in_range[:, None] & (dims < head_dim)[None, :],
    )


@triton.jit
def _visible_by_key(q, k, doc_b_k, doc_base):
    """k <= q and doc[b, q] == doc[b, k]."""
    return (k <= q) & (tl.load(doc_base + tl.maximum(q, 0)) == doc_b_k)


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_q_tiles"])
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
    doc_ptr,
    stride_doc_0,
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
    # lse and delta are what _delta writes. Where FUSE_DQ, each tile's part of dq = scale ds^T k is added in memory,
    # in float32 and in no fixed order.
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
    row0 = head.to(tl.int64) * q_len
    if FUSE_DQ:
        dq_desc = tl.make_tensor_descriptor(
            dq_ptr + row0 * stride_dqm, [q_len, head_dim], [stride_dqm, 1], [BM, HEAD_DIM]
        )

    cols = col0 + tl.arange(0, BN)
    # Keys beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    k = tl.minimum(cols, kv_len - 1)[:, None]
    qk_scale = scale * 1.4426950408889634
    doc_base = doc_ptr + b.to(tl.int64) * stride_doc_0
    doc_b_k = tl.load(doc_base + k)

    # What the schedule says of this tile of keys: which tiles of queries are mixed and which are full.
    row = b.to(tl.int64) * num_tiles + tile
    num_mixed = tl.load(counts_ptr + 2 * row)
    num_full = tl.load(counts_ptr + 2 * row + 1)
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
        lse = tl.load(lse_ptr + row0 + rows, mask=rows < q_len, other=float("inf"))[None, :]
        qk = tl.dot(k_tile, q_tile.T, input_precision="ieee")
        if i < num_mixed:
            qk = tl.where(_visible_by_key(q, k, doc_b_k, doc_base) & (cols < kv_len)[:, None], qk, -float("inf"))
        p = tl.exp2(qk * qk_scale - lse)
        do_tile = do_desc.load([start, 0])
        dv = tl.dot(p.to(do_tile.dtype), do_tile, dv, input_precision="ieee")
        dp = tl.dot(v_tile, do_tile.T, input_precision="ieee")
        delta = tl.load(delta_ptr + row0 + rows, mask=rows < q_len, other=0.0)[None, :]
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


def _inputs(q, sizes, doc):
    """The inputs as kernels read them, checked against the sizes of a call."""
    batch = sizes.batch
    kv_len = sizes.kv_len
    doc = runtime.check_input("doc", doc, "[batch, kv_len]", (batch, kv_len), torch.int32, q)
    return doc


def _launch(q, k, v, doc, scale, config, counts, tiles):
    """The operator: check the arguments, choose the config, launch. Returns out and lse."""
    call = runtime.prepare(q, k, v, scale)
    doc = _inputs(call.q, call.sizes, doc)
    out, lse = runtime.outputs(call)
    if runtime.is_empty(call):
        return runtime.nothing_seen(out, lse)
    config = runtime.choose_config(config, CONFIGS, call)
    if counts is None:
        counts, tiles = _schedule(call, doc, config)
    else:
        runtime.check_plan(counts, tiles, runtime.state_shape(call, config, True, False), call.q)
    runtime.launch(
        _forward, -(-call.sizes.q_len // config.BM) * call.sizes.batch * call.sizes.heads,
        call.q, call.k, call.v, out, lse,
        counts, tiles, tiles.shape[-1], doc, doc.stride(0),
        *call.strides, call.scale, *call.lengths,
        **call.blocks(config), STAGES=config.num_stages, **runtime.options(config),
    )  # fmt: skip
    return out, lse


def _schedule(call, doc, config, by_key=False):
    """Which tiles of keys each tile of queries needs, or where `by_key` the other way round: see runtime.Plan."""
    shape = runtime.state_shape(call, config, by_batch=True, by_head=False)
    batch, heads, q_tiles, kv_tiles = shape
    states = torch.empty(shape, dtype=torch.int8, device=call.q.device)
    # Long chunks share work, short ones keep the GPU busy.
    chunk = 32 if states.numel() > 1 << 17 else 8
    runtime.launch(
        _classify, -(-kv_tiles // chunk) * q_tiles * batch * heads,
        states,
        doc, doc.stride(0),
        call.sizes.q_len, call.sizes.kv_len, kv_tiles,
        BM=config.BM, BN=config.BN, CHUNK=chunk, num_warps=max(1, config.BM * config.BN // 2048),
    )  # fmt: skip
    return runtime.compact(runtime.by_key(states, call.sizes.q_len % config.BM != 0) if by_key else states)


def _launch_backward(
    d_out, d_lse, q, k, v, doc, out, lse, scale, config, deterministic, needs
):  # fmt: skip
    """The backward operator. Returns the gradients of q, k, v; None for one that `needs` does not ask for."""
    call = runtime.prepare(q, k, v, scale)
    doc = _inputs(call.q, call.sizes, doc)
    if runtime.is_empty(call):
        return runtime.no_gradients(q, k, v)
    needs_q, needs_k, needs_v = needs[:3]
    fuse_dq = needs_q and (needs_k or needs_v) and not runtime.is_deterministic(deterministic)
    kv_config, q_config = runtime.backward_configs(config, BACKWARD_KV, BACKWARD_Q, call, fuse_dq)
    incoming = _incoming(call, out, lse, d_out, d_lse)
    dq = dk = dv = None
    if needs_k or needs_v:
        dq_sums = runtime.query_sums(call) if kv_config.fuse_dq else None
        dk, dv = _launch_backward_kv(call, incoming, dq_sums, doc, kv_config)
        dq = runtime.from_sums(call, dq_sums) if kv_config.fuse_dq else None
    if needs_q and dq is None:
        dq = _launch_backward_q(call, incoming, doc, q_config)
    return (
        runtime.for_scale(dq, scale), dk, dv,
    )  # fmt: skip


def _incoming(call, out, lse, d_out, d_lse):
    """What the backward kernels need of each row: d_out, lse in units of log2, and delta."""
    incoming = runtime.incoming(call, d_out)
    BM = runtime.delta_rows(call)
    runtime.launch(
        _delta, -(-call.sizes.q_len // BM) * call.sizes.batch * call.sizes.heads,
        out, incoming.d_out, lse, d_lse, incoming.lse, incoming.delta,
        *incoming.strides, *((0, 0, 0) if d_lse is None else d_lse.stride()),
        call.sizes.heads, call.sizes.q_len, call.sizes.v_head_dim,
        BM=BM, V_HEAD_DIM=call.V_HEAD_DIM,
    )  # fmt: skip
    return incoming


def _launch_backward_kv(call, incoming, dq_sums, doc, config):
    """dk and dv. Where the config fuses, dq without its scale is added to `dq_sums`."""
    dk, dv = runtime.key_gradients(call)
    counts, tiles = _schedule(call, doc, config, by_key=True)
    runtime.launch(
        _backward_kv, -(-call.sizes.kv_len // config.BN) * call.sizes.batch * call.sizes.heads,
        call.q, call.k, call.v, incoming.d_out, incoming.lse, incoming.delta, dq_sums, dk, dv,
        counts, tiles, tiles.shape[-1], doc, doc.stride(0),
        *call.strides, *incoming.strides, 0 if dq_sums is None else dq_sums.stride(2), call.scale, *call.lengths,
        **call.blocks(config), FUSE_DQ=config.fuse_dq, STAGES=config.num_stages, **runtime.options(config),
    )  # fmt: skip
    return runtime.sum_of_groups(call, dk), runtime.sum_of_groups(call, dv)


def _launch_backward_q(call, incoming, doc, config):
    """dq."""
    dq = runtime.query_gradient(call)
    counts, tiles = _schedule(call, doc, config)
    runtime.launch(
        _backward_q, -(-call.sizes.q_len // config.BM) * call.sizes.batch * call.sizes.heads,
        call.q, call.k, call.v, incoming.d_out, incoming.lse, incoming.delta, dq,
        counts, tiles, tiles.shape[-1], doc, doc.stride(0),
        *call.strides, *incoming.strides, call.scale, *call.lengths,
        **call.blocks(config), STAGES=config.num_stages, **runtime.options(config),
    )  # fmt: skip
    return dq


OPERATOR = runtime.attention_operator(
    IDENTITY,
    "Tensor doc",
    _launch,
    _launch_backward,
    inputs=_inputs,
    planned=True,
)


def attention(
    q, k, v, *, doc, scale=None, return_lse=False, plan=None, config=None, backward_config=None, deterministic=None
):
    """Causal attention within each of the documents packed into one sequence.

    q [batch, heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len, v_head_dim]:
    float16, bfloat16 or float32, heads a multiple of kv_heads; under torch.autocast they are cast to its dtype.
    Returns out [batch, heads, q_len, v_head_dim] in q's dtype; with return_lse also the natural log-sum-exp of each
    row, float32 [batch, heads, q_len], minus infinity where a row sees no key. Differentiable in q, k and v.

    doc: int32 [batch, kv_len].
    scale: factor of the dot products, 1/sqrt(head_dim) by default.
    plan: what plan(...) returned for the same inputs and lengths; otherwise it is made on each call.
    config: tile sizes and launch options instead of the recorded ones.
    backward_config: the same for the backward pass, {"backward_kv": config, "backward_q": config}.
    deterministic: gradients with the same bits on every run; None asks torch.are_deterministic_algorithms_enabled().

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit.
    """
    runtime.check_types(q, k, v, scale, deterministic, doc=doc)
    q, k, v = runtime.autocast(q, k, v)
    counts, tiles, config = runtime.plan_parts(plan, config)
    out, lse = OPERATOR(
        q, k, v, doc, scale, runtime.config_text(config), counts, tiles,
        deterministic, runtime.backward_config_text(backward_config),
    )  # fmt: skip
    return (out, lse) if return_lse else out


def plan(q, k, v, *, doc, config=None):
    """The schedule for these inputs and lengths, for attention(..., plan=...). Arguments as attention takes them."""
    runtime.check_types(q, k, v, doc=doc)
    q, k, v = runtime.autocast(q, k, v)
    call = runtime.prepare(q, k, v, None)
    doc = _inputs(call.q, call.sizes, doc)
    config = runtime.choose_config(runtime.config_text(config), CONFIGS, call)
    return runtime.Plan(*_schedule(call, doc, config), config)


def reference(q, k, v, *, doc, scale=None, return_lse=False):
    """The same in eager PyTorch, the whole score matrix in memory; in float64 where q is float64."""

    def formula(score, b, h, kv_h, q, k):
        return score, (k <= q) & (doc[b, q.clamp(min=0)] == doc[b, k])

    return runtime.eager_attention(q, k, v, formula, bottom_right=True, scale=scale, return_lse=return_lse)
