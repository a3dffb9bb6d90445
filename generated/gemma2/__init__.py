"""The local layers of Gemma 2, softcapped scores in a causal window of 4096 keys.

    out = softmax(score over visible keys) v, score = scale q k^T
    score = 50.0 * tanh(score / 50.0)
    key k is visible to query q where (k >= q - 4095) & (k <= q)
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

Generated from variants/gemma2.yaml by

    flashgen build variants/gemma2.yaml

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

IDENTITY = runtime.Identity(
    variant="gemma2",
    spec="d9e364344148",
    templates={"forward": "1b5faee8afe3", "backward_q": "a90d51cb0877", "backward_kv": "18044f565154"},
    source="variants/gemma2.yaml",
    arguments={},
)
VARIANT = runtime.Variant(
    IDENTITY,
    kernels={
        "forward": _forward,
        "forward_sm90": _forward_sm90,
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
        forward=runtime.default_config,
        backward_q=runtime.default_backward_q_config,
        backward_kv=runtime.default_backward_kv_config,
    ),
)
OPERATOR = runtime.attention_operator(VARIANT)


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
    return runtime.attend(
        VARIANT, OPERATOR, q, k, v, scale=scale, return_lse=return_lse,
        config=config, backward_config=backward_config, deterministic=deterministic,
    )  # fmt: skip


def reference(q, k, v, *, scale=None, return_lse=False):
    """The same in eager PyTorch, the whole score matrix in memory; in float64 where q is float64."""

    def formula(score, b, h, kv_h, q, k):
        return 50.0 * torch.tanh(score / 50.0), (k >= q - 4095) & (k <= q)

    return runtime.eager_attention(q, k, v, formula, bottom_right=True, scale=scale, return_lse=return_lse)
