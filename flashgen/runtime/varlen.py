"""A variant over packed sequences as the runtime sees it: the same kernels, told where sequences end."""

from __future__ import annotations

from dataclasses import replace

import torch

from flashgen.runtime.declared import Input, Param
from flashgen.runtime.defaults import packed_default
from flashgen.runtime.lookup import Lookup
from flashgen.runtime.registry import MODES
from flashgen.runtime.variant import Variant

_ENDS = tuple(
    Input(name, torch.int32, ("batch + 1",), lambda batch: (batch + 1,)) for name in ("cu_seqlens_q", "cu_seqlens_k")
)
_LONGEST = tuple(Param(name, int) for name in ("max_seqlen_q", "max_seqlen_k"))


def packed_variant(variant: Variant) -> Variant:
    """The variant for packed sequences, by the kernels that serve them too.

    Where the sequences end are two inputs in front of its own, and the longest lengths two params. Configs have records
    of their own, by the buckets of packed sequences.
    """

    def configs(family: str) -> Lookup:
        dense = variant.configs[family]
        return replace(dense, default=packed_default(family, variant.is_scheduled(family), dense.default))

    return Variant(
        variant.identity,
        variant.kernels,
        {family: configs(family) for family in MODES["varlen"]},
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
    """An input as packed sequences have it."""
    return by_tokens(dense, dense.varlen or dense.packed)


def by_tokens(dense: Input, packed: Input | None) -> Input:
    """An input as it is `packed`, if it is, for kernels of dense ones: batch strides are those of a token then."""
    if packed is None:
        return dense
    token = next(axis for axis, dim in enumerate(packed.dims) if dim in ("total_q", "total_k"))
    others = iter(range(len(packed.dims)))
    return replace(packed, axes=tuple(token if dim == "batch" else next(others) for dim in dense.dims))
