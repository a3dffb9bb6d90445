"""A variant over packed sequences as the runtime sees it: the same kernels, told where sequences end."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from flashgen.runtime.config import Config
from flashgen.runtime.declared import Input, Param
from flashgen.runtime.lookup import Choice, current_device
from flashgen.runtime.registry import kernels_of
from flashgen.runtime.variant import Variant

_ENDS = tuple(
    Input(name, torch.int32, ("batch + 1",), lambda batch: (batch + 1,)) for name in ("cu_seqlens_q", "cu_seqlens_k")
)
_LONGEST = tuple(Param(name, int, changing=True) for name in ("max_seqlen_q", "max_seqlen_k"))


@dataclass(frozen=True)
class BuiltIn:
    """What answers for the configs of packed sequences, which are not tuned, as a `Lookup` does for what is."""

    kernel: str
    form: str

    def default(self, capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
        """The built-in config."""
        sizes = (capability, dtype, head_dim, v_head_dim)
        kernel = next(each for each in reversed(kernels_of(self.kernel, packed=True)) if not each.refuses(*sizes))
        return kernel.default(self.form, *sizes)

    def __call__(self, gpu: int, dtype: torch.dtype, head_dim: int, v_head_dim: int, *_: int) -> Choice:
        """The same for a GPU by its index."""
        name = str(dtype).removeprefix("torch.")
        config = self.default(current_device(gpu).capability, name, head_dim, v_head_dim)
        return Choice(config, "default", f"{self.kernel} of packed sequences is not tuned")


def packed_variant(variant: Variant) -> Variant:
    """The variant for packed sequences, by the kernels that serve them too.

    Where the sequences end are two inputs in front of its own, and the longest lengths two params.
    """

    def configs(family: str) -> BuiltIn:
        return BuiltIn(family, "scheduled" if variant.is_scheduled(family) else "")

    return Variant(
        variant.identity,
        variant.kernels,
        {family: configs(family) for family in ("forward", "backward_q", "backward_kv")},
        inputs=(*_ENDS, *map(_packed, variant.inputs)),
        params=(*_LONGEST, *variant.params),
        sums=variant.sums,
        loads=variant.loads,
        sink=variant.sink,
        by_batch=True,
        by_head=variant.by_head,
        packed=True,
    )


def _packed(dense: Input) -> Input:
    """An input as packed sequences have it; batch strides are those of a token then."""
    packed = dense.varlen or dense.packed
    if packed is None:
        return dense
    token = next(axis for axis, dim in enumerate(packed.dims) if dim in ("total_q", "total_k"))
    others = iter(range(len(packed.dims)))
    return replace(packed, axes=tuple(token if dim == "batch" else next(others) for dim in dense.dims))
