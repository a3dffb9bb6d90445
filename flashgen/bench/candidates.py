"""Everything that can compute a variant here, each as a call without arguments."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flashgen.bench import flash_attention
from flashgen.bench.flash_attention import FLASH_ATTENTION_4
from flashgen.bench.flex import OPTIONS, Attend, described, flex_attention
from flashgen.bench.installed import Unavailable
from flashgen.bench.passes import FORWARD, Forward
from flashgen.codegen.pairwise import Pairwise
from flashgen.lang.nodes import TRUE, Expr, op
from flashgen.lang.variables import SCORE, K, Q
from flashgen.problems.calls import Call
from flashgen.problems.problem import Problem
from flashgen.spec.variant import Variant

if TYPE_CHECKING:
    from torch import Tensor

FLASHGEN, UNPLANNED, DETERMINISTIC = "flashgen", "flashgen, no plan", "flashgen, deterministic"
FLEX, FLASH, CUDNN, EAGER = "FlexAttention", "torch flash", "torch cuDNN", "eager"
OURS = (FLASHGEN, UNPLANNED, DETERMINISTIC)
CANDIDATES = (*OURS, FLEX, FLASH, CUDNN, FLASH_ATTENTION_4, EAGER)

# Float32 tensors of score size that the eager formula holds at its peak: forward alone, and with the backward pass.
EAGER_SCORE_TENSORS = {True: 6, False: 12}


def ways(
    name: str, variant: Variant, module: ModuleType, problem: Problem, call: Call, pairwise: Pairwise, step: str
) -> Iterator[tuple[str, Forward]]:
    """What `prepare` gives, with a note; for FlexAttention further ways, each for where those before do not fit."""
    if name != FLEX:
        yield "", prepare(name, variant, module, problem, call, pairwise, step)
        return
    for options in OPTIONS:
        yield described(options), flex_attention(variant, problem, call, pairwise, options=options)


def prepare(
    name: str, variant: Variant, module: ModuleType, problem: Problem, call: Call, pairwise: Pairwise, step: str
) -> Forward:
    """The candidate's forward pass as a call, compiled and planned; raises Unavailable where it cannot do the case."""
    if name in OURS:
        return _generated(name, module, call)
    if name == FLEX:
        return flex_attention(variant, problem, call, pairwise)
    if name == EAGER:
        return _eager(module, problem, call, step)
    by_hand = name == FLASH_ATTENTION_4
    attend = flash_attention.dense(variant, problem) if by_hand else sdpa_function(name, variant, problem)
    return lambda: attend(call.q, call.k, call.v)


def undropped(module: ModuleType) -> dict[str, float]:
    """What a call of it is told to drop nothing, as no peer does: empty where it has no dropout."""
    return {"dropout_p": 0.0} if hasattr(module, "dropout_mask") else {}


def _generated(name: str, module: ModuleType, call: Call) -> Forward:
    arguments: dict[str, Any] = {**call.keywords, **undropped(module)}
    if name == UNPLANNED and not hasattr(module, "plan"):
        raise Unavailable("this variant needs no plan")
    if name == DETERMINISTIC:
        arguments["deterministic"] = True
    if name != UNPLANNED and hasattr(module, "plan"):
        arguments["plan"] = module.plan(call.q, call.k, call.v, **call.keywords)
    return lambda: module.attention(call.q, call.k, call.v, **arguments)


def _eager(module: ModuleType, problem: Problem, call: Call, step: str) -> Forward:
    import torch

    tensors = EAGER_SCORE_TENSORS[step == FORWARD]
    needed = 4 * tensors * problem.batch * problem.heads * problem.q_len * problem.kv_len
    free = torch.cuda.mem_get_info()[0]
    if needed > free:
        raise Unavailable(f"needs about {needed >> 30} GiB, {free >> 30} GiB are free")
    return lambda: module.reference(call.q, call.k, call.v, **call.keywords, **undropped(module))


def sdpa_function(name: str, variant: Variant, problem: Problem) -> Attend:
    """Torch's attention by its FLASH or CUDNN backend, for q, k, v of the problem's sizes; may raise Unavailable."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    causal = sdpa_causal(variant, problem)
    backend = SDPBackend.FLASH_ATTENTION if name == FLASH else SDPBackend.CUDNN_ATTENTION
    grouped = problem.heads != problem.kv_heads

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return attend


def sdpa_causal(variant: Variant, problem: Problem) -> bool:
    """Whether torch's attention does the variant as causal (True) or as full (False); raises Unavailable otherwise."""
    if variant.score is not SCORE or variant.sink:
        raise Unavailable("does not modify scores")
    if variant.mask is TRUE:
        return False
    if not _is_causal(variant.mask):
        raise Unavailable("has no such mask")
    if problem.q_len != problem.kv_len and variant.align == "bottom_right":
        raise Unavailable("aligns its causal mask to the top left")
    return True


def _is_causal(mask: Expr) -> bool:
    return mask is op("le", K, Q) or mask is op("ge", Q, K)
