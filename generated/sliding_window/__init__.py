"""Causal attention over the last 1024 keys, the query's own included.

    out = softmax(score over visible keys) v, score = scale q k^T
    key k is visible to query q where (k >= q - 1023) & (k <= q)
    query i stands at key position i + kv_len - q_len

Beside this file:
    pair.py                   what several kernels compute of a pair of query and key
    forward.py                out and lse
    forward_sm90.py           out and lse, for Hopper
    delta.py                  what the backward kernels need of each row
    backward_q.py             dq
    backward_q_sm90.py        dq, for Hopper
    backward_kv.py            dk and dv, and dq where a config fuses it
    backward_kv_sm90.py       dk and dv, and dq where a config fuses it, for Hopper
    backward_kv_wide_sm90.py  dk and dv of wide heads, for Hopper

Generated from variants/sliding_window.yaml by

    flashgen build variants/sliding_window.yaml

Do not edit: change the spec and build again.
"""

from flashgen import runtime
from flashgen.runtime.device.collect import collect_dq

from .backward_kv import _backward_kv
from .backward_kv_sm90 import _backward_kv_sm90
from .backward_kv_wide_sm90 import _backward_kv_wide_sm90
from .backward_q import _backward_q
from .backward_q_sm90 import _backward_q_sm90
from .delta import _delta
from .forward import _forward
from .forward_sm90 import _forward_sm90

IDENTITY = runtime.Identity(
    variant="sliding_window",
    spec="ab759db950f1",
    templates={"forward": "3054d5e11f67", "backward_q": "719ef3569837", "backward_kv": "3594d580c64d"},
    source="variants/sliding_window.yaml",
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
    runtime.default_masked_backward_kv_config,
    runtime.shipped_root(__file__),
)


def _launch(q, k, v, scale, config):
    """The operator: check the arguments, choose the config, launch. Returns out and lse."""
    call = runtime.prepare(q, k, v, scale)
    out, lse = runtime.outputs(call)
    if runtime.is_empty(call):
        return runtime.nothing_seen(out, lse)
    config = runtime.choose_config(config, CONFIGS, call)
    if config.backend == "hopper":
        runtime.relaunch(
            _forward_sm90, (call.layout, config),
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
            _backward_kv_wide_sm90, (call.layout, incoming.strides, config),
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
        _backward_kv_sm90, (call.layout, incoming.strides, config),
        call.q, incoming.d_out, call.k, call.v, incoming.lse_by_tile, incoming.delta, dq_sums, dk, dv,
        runtime.tile_counter(call),
        rest=lambda: runtime.Rest(
            runtime.hopper_backward_programs_at_once(call, config),
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
            collect_dq, (call.layout, config),
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
        _backward_q_sm90, (call.layout, incoming.strides, config),
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


def attention(q, k, v, *, scale=None, return_lse=False, config=None, backward_config=None, deterministic=None):
    """Causal attention over the last 1024 keys, the query's own included.

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


def reference(q, k, v, *, scale=None, return_lse=False):
    """The same in eager PyTorch, the whole score matrix in memory; in float64 where q is float64."""

    def formula(score, b, h, kv_h, q, k):
        return score, (k >= q - 1023) & (k <= q)

    return runtime.eager_attention(q, k, v, formula, bottom_right=True, scale=scale, return_lse=return_lse)
