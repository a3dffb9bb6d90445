"""A variant over packed sequences as the runtime sees it: other kernels, and the ends of sequences among its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from flashgen.runtime.config import Config
from flashgen.runtime.declared import Input, Param, Sums
from flashgen.runtime.lookup import Choice, current_device
from flashgen.runtime.registry import serving
from flashgen.runtime.variant import Variant

_ENDS = tuple(
    Input(name, torch.int32, ("batch + 1",), lambda batch: (batch + 1,)) for name in ("cu_seqlens_q", "cu_seqlens_k")
)
_LONGEST = tuple(Param(name, int, changing=True) for name in ("max_seqlen_q", "max_seqlen_k"))


@dataclass(frozen=True)
class BuiltIn:
    """What answers for the configs of a family that is not tuned, as a `Lookup` does for one that is."""

    kernel: str
    form: str

    def default(self, capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
        """The built-in config."""
        sizes = (capability, dtype, head_dim, v_head_dim)
        return serving(self.kernel, *sizes).default(self.form, *sizes)

    def __call__(self, gpu: int, dtype: torch.dtype, head_dim: int, v_head_dim: int, *_: int) -> Choice:
        """The same for a GPU by its index."""
        name = str(dtype).removeprefix("torch.")
        config = self.default(current_device(gpu).capability, name, head_dim, v_head_dim)
        return Choice(config, "default", f"{self.kernel} is not tuned")


def packed_variant(variant: Variant, kernels: Mapping[str, Any], sums: tuple[Sums, ...] = ()) -> Variant:
    """The variant with its kernels for packed sequences, by the names of those that they stand for.

    Where the sequences end are two inputs in front of its own, and the longest lengths two params.
    """

    def configs(family: str) -> BuiltIn:
        scheduled = "tiles_ptr" in kernels[family].arg_names
        return BuiltIn(f"{family}_varlen", "scheduled" if scheduled else "")

    return Variant(
        variant.identity,
        kernels,
        {family: configs(family) for family in ("forward", "backward_q", "backward_kv")},
        inputs=(*_ENDS, *(each.varlen or each.packed or each for each in variant.inputs)),
        params=(*_LONGEST, *variant.params),
        sums=sums,
        loads=variant.loads,
        sink=variant.sink,
        by_batch=True,
        by_head=variant.by_head,
    )
