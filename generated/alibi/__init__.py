"""Linear position bias with one slope per head.

    out = softmax(score over visible keys) v, score = scale q k^T
    score = score - slopes[h] * abs(q - k)
    key k is visible to query q where k <= q
    query i stands at key position i + kv_len - q_len

Inputs:
    slopes [heads] float32

Beside this file:
    pair.py                   what several kernels compute of a pair of query and key
    forward.py                out and lse
    forward_sm90.py           out and lse, for Hopper
    decode.py                 out and lse of few queries over many keys
    decode_paged.py           out and lse of new queries over keys in a paged cache
    delta.py                  what the backward kernels need of each row
    backward_q.py             dq
    backward_q_sm90.py        dq, for Hopper
    backward_kv.py            dk and dv, and dq where a config fuses it
    backward_kv_sm90.py       dk and dv, and dq where a config fuses it, for Hopper
    backward_kv_wide_sm90.py  dk and dv of wide heads, for Hopper
    backward_inputs.py        the gradient of slopes

Generated from variants/alibi.yaml by

    flashgen build variants/alibi.yaml

Do not edit: change the spec and build again.
"""

import torch

from flashgen import runtime
from flashgen.runtime.device.collect import collect_dq

runtime.forget_files(__name__)  # importlib.reload is to import them anew

from .backward_inputs import _backward_inputs
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

IDENTITY = runtime.Identity(
    variant="alibi",
    spec="5fc012bbb763",
    templates={
        "forward": "40da3b8ce34d",
        "backward_q": "d0db8f91a874",
        "backward_kv": "c672626fe3ab",
        "decode": "3c46186090ca",
        "decode_paged": "4a9a32fdfc78",
    },
    source="variants/alibi.yaml",
    arguments={"slopes": "float32"},
)
VARIANT = runtime.Variant(
    IDENTITY,
    kernels={
        "forward": _forward,
        "forward_sm90": _forward_sm90,
        "decode": _decode,
        "decode_paged": _decode_paged,
        "delta": _delta,
        "backward_q": _backward_q,
        "backward_q_sm90": _backward_q_sm90,
        "backward_kv": _backward_kv,
        "backward_kv_sm90": _backward_kv_sm90,
        "backward_kv_wide_sm90": _backward_kv_wide_sm90,
        "collect_dq": collect_dq,
        "learned": _backward_inputs,
    },
    configs=runtime.lookups(
        IDENTITY,
        runtime.shipped_root(__file__),
        forward=runtime.default_config,
        backward_q=runtime.default_backward_q_config,
        backward_kv=runtime.default_backward_kv_config,
        decode=runtime.default_decode_config,
        decode_paged=runtime.default_decode_paged_config,
    ),
    inputs=(
        runtime.Input(
            "slopes", torch.float32, ("heads",), lambda heads: (heads,), default=runtime.alibi_slopes, grad=True
        ),
    ),
    sums=(runtime.Sums("d_slopes", "slopes"),),
)
OPERATOR = runtime.attention_operator(VARIANT)
PAGED_OPERATOR = runtime.paged_operator(VARIANT)
VARLEN = runtime.packed_variant(VARIANT)
VARLEN_OPERATOR = runtime.attention_operator(VARLEN)


def attention(
    q, k, v, *, slopes=None, scale=None, return_lse=False, return_max=False, plan=None, config=None,
    backward_config=None, deterministic=None,
):
    """Linear position bias with one slope per head.

    q [batch, heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len, v_head_dim]:
    float16, bfloat16 or float32, heads a multiple of kv_heads; under torch.autocast they are cast to its dtype. k and v
    of batch 1 serve all batch elements. Inputs of other dtypes are converted: floats to floats, integers to integers or
    bools.
    Returns out [batch, heads, q_len, v_head_dim] in q's dtype; with return_lse also the natural log-sum-exp of each
    row, float32 [batch, heads, q_len], minus infinity where a row sees no key; with return_max, last, the largest logit
    of each row in the same form: the largest score of a visible key, NaN where one is, without gradients.
    Differentiable in q, k, v and slopes.

    slopes: float32 [heads]; the paper's by default.
    scale: factor of the dot products, 1/sqrt(head_dim) by default.
    plan: None: which tiles are visible follows from the formula, there is nothing to prepare.
    config: tile sizes and launch options instead of the recorded ones.
    backward_config: the same for the backward pass, {"backward_kv": config, "backward_q": config}.
    deterministic: gradients with the same bits on every run; None asks torch.are_deterministic_algorithms_enabled().

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit.
    """
    return runtime.attend(
        VARIANT, OPERATOR, q, k, v, inputs=(slopes,), scale=scale, return_lse=return_lse, return_max=return_max,
        plan=plan,
        config=config, backward_config=backward_config, deterministic=deterministic,
    )  # fmt: skip


def attention_varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, slopes=None, scale=None, return_lse=False,
    return_max=False, plan=None, config=None, backward_config=None, deterministic=None,
):
    """Attention of packed sequences, each alone: what attention does, with the sequences one after the other.

    q [total_q, heads, head_dim], k [total_k, kv_heads, head_dim], v [total_k, kv_heads, v_head_dim], dtypes as those of
    attention. cu_seqlens_q and cu_seqlens_k, int32 [batch + 1]: where the queries and the keys of each sequence begin,
    and last their number; a sequence may have none of either. max_seqlen_q and max_seqlen_k: the most that one has.
    Returns out [total_q, heads, v_head_dim] in q's dtype; with return_lse also the natural log-sum-exp of each row,
    float32 [heads, total_q], minus infinity where a row sees no key; with return_max, last, the largest logit of each
    row likewise. Differentiable in q, k, v and slopes.
    Never waits for the GPU: lengths may change from replay to replay of a graph. What lies behind the last sequence
    gets 0, and minus infinity.

    slopes: float32 [heads]; the paper's by default.
    The others are as those of attention.

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit; of wrong numbers in cu_seqlens nothing
    is read or written out of bounds, and flashgen.runtime.serving.check_varlen says what they are.
    """
    return runtime.attend_varlen(
        VARLEN, VARLEN_OPERATOR, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, inputs=(slopes,),
        scale=scale, return_lse=return_lse, return_max=return_max, plan=plan, config=config,
        backward_config=backward_config, deterministic=deterministic,
    )  # fmt: skip


def attention_paged(
    q, k_cache, v_cache, block_table, seq_lens, *, cu_seqlens_q=None, max_seqlen_q=1, max_seqlen_k=None, slopes=None,
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
    slopes: float32 [heads]; the paper's by default.
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
        VARIANT, PAGED_OPERATOR, q, k_cache, v_cache, block_table, seq_lens, inputs=(slopes,),
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


def reference(q, k, v, *, slopes=None, scale=None, return_lse=False, return_max=False):
    """The same in eager PyTorch, the whole score matrix in memory; in float64 where q is float64."""
    runtime.check_reference(VARIANT, q, k, v, inputs=(slopes,), scale=scale)
    if slopes is None:
        slopes = runtime.alibi_slopes(q.shape[1], q.device)

    def formula(score, b, h, kv_h, q, k):
        return score - slopes[h].to(score.dtype) * abs(q - k), k <= q

    return runtime.eager_attention(
        q, k, v, formula, bottom_right=True, scale=scale, return_lse=return_lse, return_max=return_max
    )
