"""Which tuned configs a module would use on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from flashgen.codegen import default_of, identity, kernels_of_variant
from flashgen.problems.problem import Problem
from flashgen.runtime import Config, Lookup
from flashgen.runtime.lookup import current_device
from flashgen.runtime.record_folders import shipped_in
from flashgen.runtime.registry import REGISTRY, TUNED
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
        found = [Used(p, kernel, _default(variant, kernel, p), "default", detail) for p, kernel in launched]
        return (*found, *_untuned(variant, asked))
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
    return (*found, *_untuned(variant, asked, device.capability))


def _untuned(variant: Variant, asked: Sequence[Problem], capability: str = "") -> Iterator[Used]:
    """Of the kernels that are not tuned and have tiles of their own, on a GPU of this capability."""
    names = {name for text in kernels_of_variant(variant) for name, _ in text.functions}
    detail = "built-in default: it is not tuned"
    for kernel in (each for each in REGISTRY if each.name in names and not each.tuned):
        for p in asked:
            if p.mode == kernel.mode or (p.packed and kernel.packs):
                config = _default(variant, kernel.family, p, capability)
                yield Used(p, kernel.family, config, "default", detail)


def _default(variant: Variant, kernel: str, p: Problem, capability: str = "") -> Config:
    """The built-in config, where the GPU is not known the one for any."""
    return default_of(variant, kernel, p.packed)(capability, p.dtype, p.head_dim, p.v_head_dim, bucket_of(p))
