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

from .backward_inputs import _backward_inputs
from .backward_kv import _backward_kv
from .backward_kv_sm90 import _backward_kv_sm90
from .backward_kv_wide_sm90 import _backward_kv_wide_sm90
from .backward_q import _backward_q
from .backward_q_sm90 import _backward_q_sm90
from .delta import _delta
from .forward import _forward
from .forward_sm90 import _forward_sm90

IDENTITY = runtime.Identity(
    variant="alibi",
    spec="5fc012bbb763",
    templates={"forward": "4baa95abc99e", "backward_q": "087b20c411fe", "backward_kv": "e4c5c539f4ea"},
    source="variants/alibi.yaml",
    arguments={"slopes": "float32"},
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
        "learned": _backward_inputs,
    },
    configs=runtime.lookups(
        IDENTITY,
        runtime.shipped_root(__file__),
        forward=runtime.default_config,
        backward_q=runtime.default_backward_q_config,
        backward_kv=runtime.default_backward_kv_config,
    ),
    inputs=(
        runtime.Input(
            "slopes", torch.float32, ("heads",), lambda heads: (heads,), default=runtime.alibi_slopes, grad=True
        ),
    ),
    sums=(runtime.Sums("d_slopes", "slopes"),),
)
OPERATOR = runtime.attention_operator(VARIANT)


def attention(
    q, k, v, *, slopes=None, scale=None, return_lse=False, config=None, backward_config=None, deterministic=None
):
    """Linear position bias with one slope per head.

    q [batch, heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len, v_head_dim]:
    float16, bfloat16 or float32, heads a multiple of kv_heads; under torch.autocast they are cast to its dtype. k and v
    of batch 1 serve all batch elements. Inputs of other dtypes are converted: floats to floats, integers to integers or
    bools.
    Returns out [batch, heads, q_len, v_head_dim] in q's dtype; with return_lse also the natural log-sum-exp of each
    row, float32 [batch, heads, q_len], minus infinity where a row sees no key. Differentiable in q, k, v and slopes.

    slopes: float32 [heads]; the paper's by default.
    scale: factor of the dot products, 1/sqrt(head_dim) by default.
    config: tile sizes and launch options instead of the recorded ones.
    backward_config: the same for the backward pass, {"backward_kv": config, "backward_q": config}.
    deterministic: gradients with the same bits on every run; None asks torch.are_deterministic_algorithms_enabled().

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit.
    """
    return runtime.attend(
        VARIANT, OPERATOR, q, k, v, inputs=(slopes,), scale=scale, return_lse=return_lse,
        config=config, backward_config=backward_config, deterministic=deterministic,
    )  # fmt: skip


def reference(q, k, v, *, slopes=None, scale=None, return_lse=False):
    """The same in eager PyTorch, the whole score matrix in memory; in float64 where q is float64."""
    if slopes is None:
        slopes = runtime.alibi_slopes(q.shape[1], q.device)

    def formula(score, b, h, kv_h, q, k):
        return score - slopes[h].to(score.dtype) * abs(q - k), k <= q

    return runtime.eager_attention(q, k, v, formula, bottom_right=True, scale=scale, return_lse=return_lse)
