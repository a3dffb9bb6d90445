"""Causal attention whose scores stay between -30 and 30, by a scaled tanh.

    out = softmax(score over visible keys) v, score = scale q k^T
    score = 30.0 * tanh(score / 30.0)
    key k is visible to query q where k <= q
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

Generated from variants/softcap.yaml by

    flashgen build variants/softcap.yaml

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
    variant="softcap",
    spec="75e34bc466f3",
    templates={"forward": "c54ed9f485c0", "backward_q": "9224487fff7d", "backward_kv": "bdd9c099510d"},
    source="variants/softcap.yaml",
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
    """Causal attention whose scores stay between -30 and 30, by a scaled tanh.

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
        return 30.0 * torch.tanh(score / 30.0), k <= q

    return runtime.eager_attention(q, k, v, formula, bottom_right=True, scale=scale, return_lse=return_lse)
