"""Attention between the blocks of 128 queries and 128 keys that a boolean input marks.

    out = softmax(score over visible keys) v, score = scale q k^T
    key k is visible to query q where block_mask[b, h, (q - (kv_len - q_len)) // 128, k // 128]
    query i stands at key position i + kv_len - q_len

Inputs:
    block_mask [batch|1, heads|1, (q_len + 127) // 128, (kv_len + 127) // 128] bool

Beside this file:
    pair.py                   what several kernels compute of a pair of query and key
    forward.py                out and lse
    forward_sm90.py           out and lse, for Hopper
    decode.py                 out and lse of few queries over many keys
    decode_paged.py           out and lse of new queries over keys in a paged cache
    schedule.py               which tiles of queries and keys the mask leaves out, mixes or leaves whole
    delta.py                  what the backward kernels need of each row
    backward_q.py             dq
    backward_q_sm90.py        dq, for Hopper
    backward_kv.py            dk and dv, and dq where a config fuses it
    backward_kv_sm90.py       dk and dv, and dq where a config fuses it, for Hopper
    backward_kv_wide_sm90.py  dk and dv of wide heads, for Hopper

Generated from variants/block_sparse.yaml by

    flashgen build variants/block_sparse.yaml

Do not edit: change the spec and build again.
"""

import torch

from flashgen import runtime
from flashgen.runtime.device.collect import collect_dq

runtime.forget_files(__name__)  # importlib.reload is to import them anew

from .backward_kv import _backward_kv
from .backward_kv_sm90 import _backward_kv_sm90
from .backward_kv_wide_sm90 import _backward_kv_wide_sm90
from .backward_q import _backward_q
from .backward_q_sm90 import _backward_q_sm90
from .decode import _decode
from .decode_paged import _decode_paged
from .delta import _delta
from .forward import _forward
from .forward_sm90 import _forward_sm90
from .schedule import _classify

IDENTITY = runtime.Identity(
    variant="block_sparse",
    spec="54fb9ae51d5e",
    templates={
        "forward": "762241c5c5c4",
        "backward_q": "31f488d0d371",
        "backward_kv": "53709b7d95a7",
        "decode": "0dc0d0988137",
        "decode_paged": "8530b9755747",
    },
    source="variants/block_sparse.yaml",
    arguments={"block_mask": "bool"},
)
VARIANT = runtime.Variant(
    IDENTITY,
    kernels={
        "forward": _forward,
        "forward_sm90": _forward_sm90,
        "decode": _decode,
        "decode_paged": _decode_paged,
        "schedule": _classify,
        "delta": _delta,
        "backward_q": _backward_q,
        "backward_q_sm90": _backward_q_sm90,
        "backward_kv": _backward_kv,
        "backward_kv_sm90": _backward_kv_sm90,
        "backward_kv_wide_sm90": _backward_kv_wide_sm90,
        "collect_dq": collect_dq,
    },
    configs=runtime.lookups(
        IDENTITY,
        runtime.shipped_root(__file__),
        forward=runtime.default_scheduled_config,
        backward_q=runtime.default_scheduled_backward_q_config,
        backward_kv=runtime.default_scheduled_backward_kv_config,
        decode=runtime.beside_pairs(runtime.default_decode_config, 1),
        decode_paged=runtime.beside_pairs(runtime.default_decode_paged_config, 1),
    ),
    inputs=(
        runtime.Input(
            "block_mask",
            torch.bool,
            ("batch|1", "heads|1", "(q_len + 127) // 128", "(kv_len + 127) // 128"),
            lambda batch, heads, q_len, kv_len: (batch, heads, (q_len + 127) // 128, (kv_len + 127) // 128),
            may_be_one=(0, 1),
        ),
    ),
    by_batch=True,
    by_head=True,
)
OPERATOR = runtime.attention_operator(VARIANT)
PAGED_OPERATOR = runtime.paged_operator(VARIANT)
VARLEN = runtime.packed_variant(VARIANT)
VARLEN_OPERATOR = runtime.attention_operator(VARLEN)


def attention(
    q, k, v, *, block_mask, scale=None, return_lse=False, return_max=False, plan=None, config=None,
    backward_config=None, deterministic=None,
):
    """Attention between the blocks of 128 queries and 128 keys that a boolean input marks.

    q [batch, heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len, v_head_dim]:
    float16, bfloat16 or float32, heads a multiple of kv_heads; under torch.autocast they are cast to its dtype. k and v
    of batch 1 serve all batch elements. Inputs of other dtypes are converted: floats to floats, integers to integers or
    bools.
    Returns out [batch, heads, q_len, v_head_dim] in q's dtype; with return_lse also the natural log-sum-exp of each
    row, float32 [batch, heads, q_len], minus infinity where a row sees no key; with return_max, last, the largest logit
    of each row in the same form: the largest score of a visible key, NaN where one is, without gradients.
    Differentiable in q, k and v.

    block_mask: bool [batch|1, heads|1, (q_len + 127) // 128, (kv_len + 127) // 128].
    scale: factor of the dot products, 1/sqrt(head_dim) by default.
    plan: what plan(...) returned for the same inputs and lengths; otherwise it is made on each call.
    config: tile sizes and launch options instead of the recorded ones.
    backward_config: the same for the backward pass, {"backward_kv": config, "backward_q": config}.
    deterministic: gradients with the same bits on every run; None asks torch.are_deterministic_algorithms_enabled().

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit.
    """
    return runtime.attend(
        VARIANT, OPERATOR, q, k, v, inputs=(block_mask,), scale=scale, return_lse=return_lse, return_max=return_max,
        plan=plan,
        config=config, backward_config=backward_config, deterministic=deterministic,
    )  # fmt: skip


def attention_varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, block_mask, scale=None, return_lse=False,
    return_max=False, plan=None, config=None, backward_config=None, deterministic=None,
):
    """Attention of packed sequences, each alone: what attention does, with the sequences one after the other.

    q [total_q, heads, head_dim], k [total_k, kv_heads, head_dim], v [total_k, kv_heads, v_head_dim], dtypes as those of
    attention. cu_seqlens_q and cu_seqlens_k, int32 [batch + 1]: where the queries and the keys of each sequence begin,
    and last their number; a sequence may have none of either. max_seqlen_q and max_seqlen_k: the most that one has.
    Returns out [total_q, heads, v_head_dim] in q's dtype; with return_lse also the natural log-sum-exp of each row,
    float32 [heads, total_q], minus infinity where a row sees no key; with return_max, last, the largest logit of each
    row likewise. Differentiable in q, k and v.
    Never waits for the GPU: lengths may change from replay to replay of a graph. What lies behind the last sequence
    gets 0, and minus infinity.

    block_mask: bool [batch|1, heads|1, (q_len + 127) // 128, (kv_len + 127) // 128].
    Lengths in these shapes are the longest, max_seqlen_q and max_seqlen_k.
    The others are as those of attention, and plan is what plan_varlen(...) returned.

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit; of wrong numbers in cu_seqlens nothing
    is read or written out of bounds, and flashgen.runtime.serving.check_varlen says what they are.
    """
    return runtime.attend_varlen(
        VARLEN, VARLEN_OPERATOR, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, inputs=(block_mask,),
        scale=scale, return_lse=return_lse, return_max=return_max, plan=plan, config=config,
        backward_config=backward_config, deterministic=deterministic,
    )  # fmt: skip


def plan_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, block_mask, config=None):
    """The schedule for these inputs and lengths, for attention_varlen(..., plan=...). Arguments as that takes them."""
    return runtime.make_varlen_plan(
        VARLEN, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, inputs=(block_mask,), config=config
    )  # fmt: skip


def attention_paged(
    q, k_cache, v_cache, block_table, seq_lens, *, cu_seqlens_q=None, max_seqlen_q=1, max_seqlen_k=None, block_mask,
    scale=None, k_scale=None, v_scale=None, return_lse=False, out=None, batch_invariant=False, plan=None, config=None,
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
    block_mask: bool [batch|1, heads|1, (q_len + 127) // 128, (kv_len + 127) // 128].
    Lengths in these shapes are the longest, max_seqlen_q and max_seqlen_k.
    scale: factor of the dot products, 1/sqrt(head_dim) by default.
    k_scale, v_scale: what an 8-bit cache is multiplied by, float32 [], [kv_heads] or [num_blocks, block_size,
    kv_heads].
    out: a tensor to write the result to.
    batch_invariant: a sequence's result has the same bits whatever else is in the batch.
    plan: what plan_paged(...) returned for the same sizes and lengths; otherwise it is made on each call.
    config: tile sizes and launch options instead of the recorded ones, of the decode kernel, which has all queries
    then.

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit; of wrong numbers in block_table,
    seq_lens and cu_seqlens_q nothing is read or written out of bounds, and flashgen.runtime.serving.check says what
    they are.
    """
    return runtime.attend_paged(
        VARIANT, PAGED_OPERATOR, q, k_cache, v_cache, block_table, seq_lens, inputs=(block_mask,),
        cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, scale=scale, k_scale=k_scale,
        v_scale=v_scale, return_lse=return_lse, out=out, batch_invariant=batch_invariant, plan=plan, config=config,
    )  # fmt: skip


def plan_paged(
    q, k_cache, block_table, seq_lens, *, cu_seqlens_q=None, max_seqlen_q=1, max_seqlen_k=None, v_head_dim=None,
    batch_invariant=False, config=None,
):
    """How to split the keys of these sequences evenly over the GPU, for attention_paged(..., plan=plan).

    Arguments as attention_paged takes them; v_head_dim is v_cache's, k_cache's by default. Made on the device,
    once a step for all layers; a graph may capture it.
    """
    return runtime.paged_plan(
        VARIANT, q, k_cache, block_table, seq_lens, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k, v_head_dim=v_head_dim, batch_invariant=batch_invariant, config=config,
    )  # fmt: skip


def plan(q, k, v, *, block_mask, config=None):
    """The schedule for these inputs and lengths, for attention(..., plan=...). Arguments as attention takes them.

    Where one of them requires a gradient it has a part for the backward pass too.
    """
    return runtime.make_plan(VARIANT, q, k, v, inputs=(block_mask,), config=config)


def reference(q, k, v, *, block_mask, scale=None, return_lse=False, return_max=False):
    """The same in eager PyTorch, the whole score matrix in memory; in float64 where q is float64."""
    runtime.check_reference(VARIANT, q, k, v, inputs=(block_mask,), scale=scale)
    batch = q.shape[0]
    heads = q.shape[1]
    q_len = q.shape[2]
    kv_len = k.shape[2]
    block_mask = runtime.as_dtype(block_mask, torch.bool)
    block_mask = block_mask.expand(batch, heads, -1, -1)

    def formula(score, b, h, kv_h, q, k):
        return score, block_mask[
            b,
            h,
            ((q - (kv_len - q_len)) // 128).clamp(0, block_mask.shape[2] - 1),
            (k // 128).clamp(max=block_mask.shape[3] - 1),
        ]

    return runtime.eager_attention(
        q, k, v, formula, bottom_right=True, scale=scale, return_lse=return_lse, return_max=return_max
    )
