"""Plain softmax attention, where every query sees every key.

    out = softmax(score over visible keys) v, score = scale q k^T
    query i stands at key position i + kv_len - q_len


Generated from variants/full.yaml by

    flashgen build variants/full.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen import runtime

IDENTITY = runtime.Identity(
    variant="full",
    spec="d6b835c58129",
    templates={"forward": "49d2ef02bf1a", "backward_q": "704e715dec3e", "backward_kv": "9fc65301eac6"},
    source="variants/full.yaml",
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
    qk_scale = scale * 1.4426950408889634

    q_tile = q_desc.load([row0, 0])
    # A finite floor for the maximum: -inf - floor is -inf, so that a row that sees no key stays at l = 0, without NaN.
    m = tl.full([BM], -3.0e38, tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, V_HEAD_DIM], tl.float32)

    # Full tiles.
    full_end = kv_len // BN * BN
    for start in tl.range(0, full_end, BN):
        k_tile = k_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        v_tile = v_desc.load([start, 0])
        acc, m, l = _online_softmax(qk, qk_scale, v_tile, acc, m, l)

    # The ragged end.
    if full_end < kv_len:
        start = full_end
        k_tile = k_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        k = start + tl.arange(0, BN)[None, :]
        qk = tl.where(k < kv_len, qk, -float("inf"))
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


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim"])
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
    qk_scale = scale * 1.4426950408889634

    q_tile = q_desc.load([row0, 0])
    do_tile = do_desc.load([row0, 0])
    row = head.to(tl.int64) * q_len + rows
    lse = tl.load(lse_ptr + row, mask=in_range, other=float("inf"))[:, None]
    delta = tl.load(delta_ptr + row, mask=in_range, other=0.0)[:, None]
    dq = tl.zeros([BM, HEAD_DIM], tl.float32)

    # Full tiles.
    full_end = kv_len // BN * BN
    for start in tl.range(0, full_end, BN):
        k_tile = k_desc.load([start, 0])
        v_tile = v_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        p = tl.exp2(qk * qk_scale - lse)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta)
        dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision="ieee")

    # The ragged end.
    if full_end < kv_len:
        start = full_end
        k_tile = k_desc.load([start, 0])
        v_tile = v_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        k = start + tl.arange(0, BN)[None, :]
        qk = tl.where(k < kv_len, qk, -float("inf"))
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


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim"])
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
    qk_scale = scale * 1.4426950408889634

    # Rows below q_len see some key of the tile, those below full_end each of them.
    full_end = tl.where(col0 + BN > kv_len, 0, q_len)

    k_tile = k_desc.load([col0, 0])
    v_tile = v_desc.load([col0, 0])
    dk = tl.zeros([BN, HEAD_DIM], tl.float32)
    dv = tl.zeros([BN, V_HEAD_DIM], tl.float32)
    for start in tl.range(0, q_len, BM):
        q_tile = q_desc.load([start, 0])
        rows = start + tl.arange(0, BM)
        lse = tl.load(lse_ptr + row0 + rows, mask=rows < q_len, other=float("inf"))[None, :]
        qk = tl.dot(k_tile, q_tile.T, input_precision="ieee")
        if start + BM > full_end:
            qk = tl.where((cols < kv_len)[:, None], qk, -float("inf"))
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


def _launch(q, k, v, scale, config):
    """The operator: check the arguments, choose the config, launch. Returns out and lse."""
    call = runtime.prepare(q, k, v, scale)
    out, lse = runtime.outputs(call)
    if runtime.is_empty(call):
        return runtime.nothing_seen(out, lse)
    config = runtime.choose_config(config, CONFIGS, call)
    runtime.launch(
        _forward, -(-call.sizes.q_len // config.BM) * call.sizes.batch * call.sizes.heads,
        call.q, call.k, call.v, out, lse,
        *call.strides, call.scale, *call.lengths,
        **call.blocks(config), **runtime.options(config),
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
    incoming = _incoming(call, out, lse, d_out, d_lse)
    dq = dk = dv = None
    if needs_k or needs_v:
        dq_sums = runtime.query_sums(call) if kv_config.fuse_dq else None
        dk, dv = _launch_backward_kv(call, incoming, dq_sums, kv_config)
        dq = runtime.from_sums(call, dq_sums) if kv_config.fuse_dq else None
    if needs_q and dq is None:
        dq = _launch_backward_q(call, incoming, q_config)
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


def _launch_backward_kv(call, incoming, dq_sums, config):
    """dk and dv. Where the config fuses, dq without its scale is added to `dq_sums`."""
    dk, dv = runtime.key_gradients(call)
    runtime.launch(
        _backward_kv, -(-call.sizes.kv_len // config.BN) * call.sizes.batch * call.sizes.heads,
        call.q, call.k, call.v, incoming.d_out, incoming.lse, incoming.delta, dq_sums, dk, dv,
        *call.strides, *incoming.strides, 0 if dq_sums is None else dq_sums.stride(2), call.scale, *call.lengths,
        **call.blocks(config), FUSE_DQ=config.fuse_dq, **runtime.options(config),
    )  # fmt: skip
    return runtime.sum_of_groups(call, dk), runtime.sum_of_groups(call, dv)


def _launch_backward_q(call, incoming, config):
    """dq."""
    dq = runtime.query_gradient(call)
    runtime.launch(
        _backward_q, -(-call.sizes.q_len // config.BM) * call.sizes.batch * call.sizes.heads,
        call.q, call.k, call.v, incoming.d_out, incoming.lse, incoming.delta, dq,
        *call.strides, *incoming.strides, call.scale, *call.lengths,
        **call.blocks(config), **runtime.options(config),
    )  # fmt: skip
    return dq


OPERATOR = runtime.attention_operator(
    IDENTITY,
    "",
    _launch,
    _launch_backward,
)


def attention(q, k, v, *, scale=None, return_lse=False, config=None, backward_config=None, deterministic=None):
    """Plain softmax attention, where every query sees every key.

    q [batch, heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len, v_head_dim]:
    float16, bfloat16 or float32, heads a multiple of kv_heads; under torch.autocast they are cast to its dtype.
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
    out, lse = OPERATOR(
        q, k, v, scale, runtime.config_text(config),
        deterministic, runtime.backward_config_text(backward_config),
    )  # fmt: skip
    return (out, lse) if return_lse else out


def reference(q, k, v, *, scale=None, return_lse=False):
    """The same in eager PyTorch, the whole score matrix in memory; in float64 where q is float64."""

    def formula(score, b, h, kv_h, q, k):
        return score, None

    return runtime.eager_attention(q, k, v, formula, bottom_right=True, scale=scale, return_lse=return_lse)
