"""FlashAttention-4, the fastest kernels written by hand, where it is installed: the package flash-attn-4.

It has causal masks, windows and softcaps; other specs' scores and masks it takes as code in its own language alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flashgen.bench.flex import Attend
from flashgen.bench.installed import Unavailable, imported
from flashgen.lang.bounds import key_range
from flashgen.lang.nodes import Const, Expr, Op, op
from flashgen.lang.variables import SCORE, Q
from flashgen.problems.problem import Problem
from flashgen.spec.variant import Variant

if TYPE_CHECKING:
    from torch import Tensor

FLASH_ATTENTION_4 = "FlashAttention-4"
_MODULE = "flash_attn.cute"


def dense(variant: Variant, problem: Problem) -> Attend:
    """Its attention for q, k, v [batch, heads, length, head_dim]; Unavailable where it has not the variant."""
    options = options_of(variant, problem)
    attend = imported(_MODULE, "flash_attn_func")

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _out(attend(*(tensor.transpose(1, 2) for tensor in (q, k, v)), **options)).transpose(1, 2)

    return call


def packed(variant: Variant, problem: Problem) -> Callable[..., Tensor]:
    """Its attention for the arguments of attention_varlen(); Unavailable where it has not the variant."""
    options = options_of(variant, problem)
    attend = imported(_MODULE, "flash_attn_varlen_func")

    def call(
        q: Tensor, k: Tensor, v: Tensor, q_ends: Tensor, k_ends: Tensor, longest_q: int, longest_k: int
    ) -> Tensor:  # fmt: skip
        sizes = {
            "cu_seqlens_q": q_ends, "cu_seqlens_k": k_ends, "max_seqlen_q": longest_q, "max_seqlen_k": longest_k,
        }  # fmt: skip
        return _out(attend(q, k, v, **sizes, **options))

    return call


def options_of(variant: Variant, problem: Problem) -> dict[str, Any]:
    """The variant in the keywords of its functions; Unavailable where it has none for it."""
    if variant.sink:
        raise Unavailable("takes sinks in bfloat16 alone")
    softcap = _softcap(variant.score)
    options: dict[str, Any] = {"softcap": softcap} if softcap else {}
    keys = key_range(variant.mask)
    left, right = _nearest(-_distance(bound) for bound in keys.lower), _nearest(map(_distance, keys.upper))
    if not keys.closed:
        raise Unavailable("has no such mask")
    if left is None and right is None:
        return options
    if problem.q_len != problem.kv_len and variant.align != "bottom_right":
        raise Unavailable("aligns its masks to the bottom right")
    if left is None and right == 0:
        return {**options, "causal": True}
    return {**options, "window_size": (left, right)}


def _softcap(score: Expr) -> float:
    """The cap of cap * tanh(score / cap), 0 for the score itself."""
    if score is SCORE:
        return 0.0
    factor = score.children[0] if isinstance(score, Op) and score.name == "mul" else None
    if isinstance(factor, Const) and factor.value > 0:
        inner = op("truediv", SCORE, factor)
        if any(score is op("mul", factor, op(name, inner)) for name in ("softcap", "tanh")):
            return float(factor.value)
    raise Unavailable("does not modify scores so")


def _nearest(amounts: Iterable[int]) -> int | None:
    return min(amounts, default=None)


def _distance(bound: Expr) -> int:
    """c of a bound q + c or q - c."""
    if bound is Q:
        return 0
    if isinstance(bound, Op) and bound.name in ("add", "sub"):
        first, second = bound.children
        if first is Q and isinstance(second, Const):
            return int(second.value) if bound.name == "add" else -int(second.value)
    raise Unavailable("has no such mask")


def _out(found: Any) -> Tensor:
    """out of what it returns, which has the lse beside it in some versions."""
    out: Tensor = found[0] if isinstance(found, tuple) else found
    return out
