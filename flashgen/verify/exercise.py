"""Launch the kernels of a module once, on small tensors: what `flashgen.verify.sanitize` runs under a sanitizer.

    python -m flashgen.verify.exercise MODULE SPEC PART

Prints the names of the kernels. Nothing is compared: `flashgen verify` does that.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import torch
import triton

from flashgen.codegen import default_of, load_module
from flashgen.problems import Problem, make_inputs
from flashgen.runtime import Config
from flashgen.runtime.config import KERNELS
from flashgen.spec import load
from flashgen.spec.variant import Variant

# Grouped heads, several tiles each way, the last of them not whole.
SMALL = Problem(1, 4, 2, 200, 330, 64, 64, "bfloat16")
# The built-in configs of a GPU that is not known are portable.
CAPABILITY = {"portable": "", "hopper": "sm_90"}


@dataclass(frozen=True)
class Part:
    """Some of a module's kernels: those of a backend that serve a problem, adding dQ up by atomics or not."""

    backend: str
    problem: Problem = SMALL
    deterministic: bool = False

    def configs(self, variant: Variant) -> dict[str, Config]:
        """The built-in config of each kernel, but for dQ, which is fused wherever it can be and may be."""
        sizes = self.problem.dtype, self.problem.head_dim, self.problem.v_head_dim
        chosen = {kernel: default_of(variant, kernel)(CAPABILITY[self.backend], *sizes) for kernel in KERNELS}
        if not chosen["backward_kv"].wide:
            chosen["backward_kv"] = replace(chosen["backward_kv"], fuse_dq=1)
        return chosen


# Most variants make dQ of heads of 128 one tile later; wider heads have a kernel of their own.
PARTS: Mapping[str, Part] = {
    "portable": Part("portable"),
    "portable, deterministic": Part("portable", deterministic=True),
    "hopper": Part("hopper"),
    "hopper, deterministic": Part("hopper", deterministic=True),
    "hopper, D128": Part("hopper", replace(SMALL, head_dim=128, v_head_dim=128)),
    "hopper, D256": Part("hopper", replace(SMALL, head_dim=256, v_head_dim=256)),
}


def exercise(variant: Variant, module: ModuleType, part: Part, device: str) -> None:
    """Forward and backward, with the gradients of all that is learned."""
    call, chosen = make_inputs(variant, part.problem, device), part.configs(variant)
    learned = [call.inputs[tensor.name] for tensor in variant.inputs if tensor.grad]
    leaves = [tensor.requires_grad_() for tensor in (call.q, call.k, call.v, *learned)]
    out, lse = module.attention(
        call.q, call.k, call.v, **call.keywords, return_lse=True, config=chosen.pop("forward"),
        backward_config=chosen, deterministic=part.deterministic,
    )  # fmt: skip
    torch.autograd.grad([out, lse], leaves, [torch.ones_like(out), torch.ones_like(lse)])
    if device != "cpu":
        torch.cuda.synchronize()


def main(arguments: Sequence[str]) -> None:
    path, spec, part = arguments
    launched: dict[str, None] = {}
    hook = triton.knobs.runtime.launch_enter_hook
    hook.add(lambda metadata: launched.setdefault(metadata.get()["name"]))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exercise(load(Path(spec)), load_module(Path(path)), PARTS[part], device)
    # The interpreter tells no names.
    print("kernels:", " ".join(launched) or "interpreted")


if __name__ == "__main__":
    main(sys.argv[1:])
