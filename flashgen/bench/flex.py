"""The variant through compiled FlexAttention: what a user would write today, from the same expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

from flashgen.codegen.pairwise import Pairwise
from flashgen.lang.nodes import TRUE
from flashgen.lang.traversal import variables
from flashgen.lang.variables import SCORE
from flashgen.problems.calls import Call
from flashgen.problems.problem import Problem
from flashgen.spec.variant import Variant

if TYPE_CHECKING:
    from torch import Tensor

Attend = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]
Options = Mapping[str, int]

# Options of its kernels to try in turn, each where the kernels before it do not fit a GPU's shared memory: torch
# chooses tiles by dtype and head dimension alone. What a score gathers for each pair is loaded in stages too, for
# 128 x 128 pairs 64 KiB in each. So stages go first, of either pass alone where that is enough, then the size of tiles.
OPTIONS: tuple[Options, ...] = (
    {},
    {"bwd_num_stages": 2},
    {"fwd_num_stages": 2},
    {"fwd_num_stages": 2, "bwd_num_stages": 2},
    {"fwd_num_stages": 2, "bwd_num_stages": 1},
    {"fwd_num_stages": 1, "bwd_num_stages": 1},
    *(
        {f"fwd_BLOCK_{side}": size for side in "MN"}
        | {f"bwd_BLOCK_{side}": size for side in ("M1", "N1", "M2", "N2")}
        | {"num_stages": 1, "num_warps": 4}
        for size in (64, 32)
    ),
)


def flex_attention(
    variant: Variant, problem: Problem, call: Call, pairwise: Pairwise, compiled: bool = True,
    options: Options | None = None,
) -> Callable[[], Tensor]:  # fmt: skip
    """A call that runs FlexAttention on the problem; the block mask is made once, before."""
    sinks = call.inputs["sinks"] if variant.sink else None
    attend = flex_function(variant, problem, pairwise, sinks, str(call.q.device), compiled, options)
    return lambda: attend(call.q, call.k, call.v)


def flex_function(
    variant: Variant, problem: Problem, pairwise: Pairwise, sinks: Tensor | None, device: str, compiled: bool = True,
    options: Options | None = None, masked: bool | None = None,
) -> Attend:  # fmt: skip
    """FlexAttention as a function of q, k, v of the problem's sizes on `device`; `sinks` float32 [heads], if any.

    `options` are those of its kernels (`kernel_options`) that are not left to torch. `masked`: `pairwise` masks also
    where the variant does not.
    """
    import torch
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as flex

    block_mask = None
    if masked or variant.mask is not TRUE:
        used = variables(variant.mask)
        # Compiled, or it would hold the whole mask in memory.
        block_mask = (compile_apart(create_block_mask) if compiled else create_block_mask)(
            pairwise.mask,
            problem.batch if "b" in used else None,
            problem.heads if used & {"h", "kv_h"} else None,
            problem.q_len,
            problem.kv_len,
            device=device,
        )
    score_mod = None if variant.score is SCORE else pairwise.score
    keywords: dict[str, Any] = {
        "score_mod": score_mod,
        "block_mask": block_mask,
        "enable_gqa": problem.heads != problem.kv_heads,
        "kernel_options": dict(options) if options else None,
    }

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if sinks is None:
            return flex(q, k, v, **keywords)
        out, aux = flex(q, k, v, **keywords, return_aux=AuxRequest(lse=True))
        assert aux.lse is not None
        # FlexAttention has no sink: the further logit shrinks every row by a factor that its LSE gives.
        kept = torch.sigmoid(aux.lse - sinks[None, :, None])
        return (out * kept[..., None]).to(q.dtype)

    return compile_apart(attend, fullgraph=True, dynamic=False) if compiled else attend


def described(options: Options) -> str:
    """What a row says of a candidate that takes these; nothing where the kernels are torch's own choice."""
    note = ", ".join(f"{option}={value}" for option, value in options.items())
    return note and f"with {note}: torch's own choice does not fit"


def compile_apart(function: Any, **options: Any) -> Any:
    """torch.compile, apart from what else was compiled of the same function.

    torch keeps what it compiles with a function's code, up to a limit, and looks through it on each call: a copy of the
    code has room of its own.
    """
    import torch

    own = FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    own.__kwdefaults__ = function.__kwdefaults__
    return torch.compile(own, **options)


def does_not_fit(error: BaseException) -> bool:
    """Whether a kernel asked for more than the GPU has; torch passes Triton's complaint on as an error of its own."""
    return "out of resource" in str(error)
