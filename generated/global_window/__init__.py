"""A window of 256 keys to each side; tokens marked global see every key and are seen by every query.

    out = softmax(score over visible keys) v, score = scale q k^T
    key k is visible to query q where (abs(q - k) <= W) | is_global[b, k] | is_global[b, q]
    query i stands at key position i + kv_len - q_len

Inputs:
    is_global [batch, kv_len] bool

Beside this file:
    pair.py                   what several kernels compute of a pair of query and key
    forward.py                out and lse
    forward_sm90.py           out and lse, for Hopper
    schedule.py               which tiles of queries and keys the mask leaves out, mixes or leaves whole
    delta.py                  what the backward kernels need of each row
    backward_q.py             dq
    backward_q_sm90.py        dq, for Hopper
    backward_kv.py            dk and dv, and dq where a config fuses it
    backward_kv_sm90.py       dk and dv, and dq where a config fuses it, for Hopper
    backward_kv_wide_sm90.py  dk and dv of wide heads, for Hopper

Generated from variants/global_window.yaml by

    flashgen build variants/global_window.yaml

Do not edit: change the spec and build again.
"""

import torch

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
from .schedule import _classify

IDENTITY = runtime.Identity(
    variant="global_window",
    spec="ef402b1ee476",
    templates={"forward": "f4d1ffca2080", "backward_q": "37ec584c4168", "backward_kv": "dfcb428ac279"},
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
    q, k, v, *, is_global, scale=None, return_lse=False, plan=None, config=None, backward_config=None,
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
