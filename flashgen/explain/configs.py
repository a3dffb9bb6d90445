"""Which tuned configs a module would use on this machine."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from flashgen.codegen import default_of, identity
from flashgen.problems.problem import Problem
from flashgen.runtime import Config, Lookup
from flashgen.runtime.lookup import current_device
from flashgen.runtime.record_folders import shipped_in
from flashgen.runtime.registry import TUNED
from flashgen.spec.variant import Variant
from flashgen.tuning.workloads import bucket_of, problems, served


@dataclass(frozen=True)
class Used:
    """A kernel's config for one problem: where it comes from ("user cache", "default", ...), a sentence about that."""

    problem: Problem
    kernel: str
    config: Config
    source: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kernel}, {self.problem}: {self.config.label} ({self.detail})"


def used_configs(variant: Variant, out: Path) -> tuple[Used, ...]:
    """The configs for the variant's tuned shapes on GPU 0, without one the built-in defaults.

    `out` is the folder of the generated module: records that are shipped lie beside it.
    """
    asked = problems(variant)
    own = identity(variant)
    present = [kernel for kernel in TUNED if kernel in own.templates]
    drops = variant.dropout is not None
    launched = dict.fromkeys(filter(None, (served(p, kernel, drops) for kernel in present for p in asked)))
    if not torch.cuda.is_available():
        detail = "built-in default: no GPU here, so no record applies"
        return tuple(Used(p, kernel, _default(variant, kernel, p), "default", detail) for p, kernel in launched)
    shipped = shipped_in(variant.module_in(out))
    device = current_device(0)
    found = []
    with warnings.catch_warnings():
        # What a lookup warns of is what is shown here.
        warnings.simplefilter("ignore")
        for p, kernel in launched:
            configs = Lookup(own, kernel, default_of(variant, kernel, p.packed), shipped)
            choice = configs.find(device, p.dtype, p.head_dim, p.v_head_dim, bucket_of(p))
            found.append(Used(p, kernel, choice.config, choice.source, choice.detail))
    return tuple(found)


def _default(variant: Variant, kernel: str, p: Problem) -> Config:
    """The built-in config where the GPU is not known."""
    return default_of(variant, kernel, p.packed)("", p.dtype, p.head_dim, p.v_head_dim, bucket_of(p))
