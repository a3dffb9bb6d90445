"""Launch the kernels of a module once, on small tensors: what `flashgen.verify.sanitize` runs under a sanitizer.

    python -m flashgen.verify.exercise MODULE SPEC PART

Prints the names of the kernels. Nothing is compared: `flashgen verify` does that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import torch
import triton

from flashgen.codegen import default_of, load_module
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.runtime.registry import FAMILIES, REGISTRY, backends, kernel_of
from flashgen.spec import load
from flashgen.spec.variant import Variant
from flashgen.verify.exercise_calls import dense, packed, serving

Calls = Callable[[Variant, ModuleType, Problem, Mapping[str, Config], bool, str], None]
# Grouped heads, several tiles each way, the last of them not whole.
SMALL = Problem(1, 4, 2, 200, 330, 64, 64, "bfloat16")


@dataclass(frozen=True)
class Part:
    """Some of a module's kernels: those of a backend that serve calls of a problem, adding dQ up by atomics or not."""

    backend: str
    problem: Problem = SMALL
    deterministic: bool = False
    calls: Calls = dense

    def configs(self, variant: Variant) -> dict[str, Config]:
        """The built-in config of each kernel, but for dQ, which is fused wherever it can be and may be."""
        sizes = self.capability, self.problem.dtype, self.problem.head_dim, self.problem.v_head_dim
        chosen = {family: default_of(variant, family)(*sizes) for family in FAMILIES}
        keys = chosen["backward_kv"]
        if 1 in kernel_of("backward_kv", keys).domain["fuse_dq"]:
            chosen["backward_kv"] = keys.but(fuse_dq=1)
        return chosen

    @property
    def capability(self) -> str:
        """The GPUs that its kernels are for, "" for any: the built-in configs of one that is not known are theirs."""
        return next(kernel.capability for kernel in REGISTRY if kernel.backend == self.backend)


def _parts(backend: str) -> Mapping[str, Part]:
    """The kernels of any GPU at one size; those for one GPU, which have others for other heads, at three."""
    parts = {
        backend: Part(backend),
        f"{backend}, deterministic": Part(backend, deterministic=True),
        f"{backend}, packed": Part(backend, calls=packed),
    }
    if parts[backend].capability:
        for dim in (128, 256):
            parts[f"{backend}, D{dim}"] = Part(backend, replace(SMALL, head_dim=dim, v_head_dim=dim))
    return parts


def parts() -> dict[str, Part]:
    """The parts of every backend, by name; calls of serving choose among all that the GPU has."""
    found = {name: part for backend in backends() for name, part in _parts(backend).items()}
    return {**found, "serving": Part(backends()[0], calls=serving)}


def exercise(variant: Variant, module: ModuleType, part: Part, device: str) -> None:
    """Make the calls of a part."""
    part.calls(variant, module, part.problem, part.configs(variant), part.deterministic, device)
    if device != "cpu":
        torch.cuda.synchronize()


def main(arguments: Sequence[str]) -> None:
    path, spec, part = arguments
    launched: dict[str, None] = {}
    hook = triton.knobs.runtime.launch_enter_hook
    hook.add(lambda metadata: launched.setdefault(metadata.get()["name"]))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exercise(load(Path(spec)), load_module(Path(path)), parts()[part], device)
    # The interpreter tells no names.
    print("kernels:", " ".join(launched) or "interpreted")


if __name__ == "__main__":
    main(sys.argv[1:])
