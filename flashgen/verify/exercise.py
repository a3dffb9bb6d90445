"""Launch each kernel of a module once, on small tensors: what `flashgen.verify.sanitize` runs under a sanitizer.

    python -m flashgen.verify.exercise MODULE SPEC portable|hopper

Prints the names of the kernels. Nothing is compared: `flashgen verify` does that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
import triton

from flashgen.codegen import load_module, uses_schedule
from flashgen.problems import Problem, make_inputs
from flashgen.runtime import Config
from flashgen.runtime.config import KERNELS
from flashgen.runtime.defaults import built_in
from flashgen.spec import load
from flashgen.spec.variant import Variant

# Grouped heads, several tiles each way, the last of them not whole.
SMALL = Problem(1, 4, 2, 200, 330, 64, 64, "bfloat16")
# Heads for which the Hopper backward has a kernel of its own.
WIDE = replace(SMALL, head_dim=256, v_head_dim=256)
PROBLEMS = {"portable": (SMALL,), "hopper": (SMALL, WIDE)}
# The built-in configs of a GPU that is not known are portable.
CAPABILITY = {"portable": "", "hopper": "sm_90"}


def configs(variant: Variant, backend: str, problem: Problem = SMALL) -> dict[str, Config]:
    """The built-in config of each kernel on this backend."""
    sizes = problem.dtype, problem.head_dim, problem.v_head_dim
    return {kernel: built_in(kernel, uses_schedule(variant))(CAPABILITY[backend], *sizes) for kernel in KERNELS}


def exercise(variant: Variant, module: ModuleType, backend: str, device: str, problem: Problem = SMALL) -> None:
    """Forward and backward, in the fast way and in the deterministic one, which has a kernel of its own for dQ."""
    call, chosen = make_inputs(variant, problem, device), configs(variant, backend, problem)
    learned = [call.inputs[tensor.name] for tensor in variant.inputs if tensor.grad]
    leaves = [tensor.requires_grad_() for tensor in (call.q, call.k, call.v, *learned)]
    forward = chosen.pop("forward")
    for deterministic in (False, True):
        out, lse = module.attention(
            call.q, call.k, call.v, **call.keywords, return_lse=True, config=forward, backward_config=chosen,
            deterministic=deterministic,
        )  # fmt: skip
        torch.autograd.grad([out, lse], leaves, [torch.ones_like(out), torch.ones_like(lse)])
    if device != "cpu":
        torch.cuda.synchronize()


def main(arguments: Sequence[str]) -> None:
    path, spec, backend = arguments
    launched: dict[str, None] = {}
    hook = triton.knobs.runtime.launch_enter_hook
    hook.add(lambda metadata: launched.setdefault(metadata.get()["name"]))
    variant = load(Path(spec))
    module, device = load_module(Path(path)), "cuda" if torch.cuda.is_available() else "cpu"
    for problem in PROBLEMS[backend]:
        exercise(variant, module, backend, device, problem)
    # The interpreter tells no names.
    print("kernels:", " ".join(launched) or "interpreted")


if __name__ == "__main__":
    main(sys.argv[1:])
