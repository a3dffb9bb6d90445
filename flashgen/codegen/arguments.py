"""What every kernel is given beside its variant's formula: its prologue, its own arguments, where its queries stand."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import COL, Level
from flashgen.analysis.packed import begin_of
from flashgen.codegen.words import words
from flashgen.emit.dialects import TRITON, Dialect
from flashgen.emit.prologue import Prologue
from flashgen.emit.setting import Setting, Tensor
from flashgen.lang.nodes import Type
from flashgen.spec.variant import Variant

# What a kernel that walks along keys by a schedule is given of it, and one that walks along queries.
SCHEDULE = ("counts_ptr", "tiles_ptr", "num_k_tiles")
ROW_SCHEDULE = ("counts_ptr", "tiles_ptr", "num_q_tiles")
# What a kernel is given of dropout: where the seed is, None without one, and the probability.
DROPOUT = ("dropout_seed_ptr", "dropout_p")
# The integers that are None where sequences are dense: how many packed ones there are, and their lengths together.
PACKED_SIZES = ("num_seqs", "total_q", "total_k")
# The integers that are None where keys lie in no pages.
PAGE_SIZES = ("stride_table", "num_blocks", "step_page", "step_slot")


def new_prologue(
    facts: Facts, walked: Level = COL, approximate: bool = False, dialect: Dialect = TRITON, packs: bool = False
) -> Prologue:  # fmt: skip
    """The prologue of a kernel whose loop goes along keys, or along queries where `walked` is ROW.

    `packs`: sequences may be packed, and then so are the inputs along them.
    """
    variant = facts.variant
    tensors = {
        i.name: Tensor(tuple(d.size for d in i.dims), i.dtype, begin_of(i) if packs else None) for i in variant.inputs
    }
    setting = Setting(facts.ranges, tensors, dialect, variant.lets, walked, approximate, words())
    return Prologue.begin(setting, reserved=_scalars(variant))


def q_offset(facts: Facts) -> str:
    """What is added to the number of a query, counted from 0, for its position."""
    return " + (kv_len - q_len)" if facts.bottom_right else ""


def extra_arguments(variant: Variant, reads: set[str]) -> tuple[str, ...]:
    """Pointers and strides of the inputs, runtime params, named sizes and DROPOUT, as far as a kernel reads them.

    Strides are also those of the sums for gradients.
    """
    names: list[str] = []
    for tensor in variant.inputs:
        name = tensor.name
        strides = [f"stride_{name}_{axis}" for axis in range(len(tensor.dims))]
        sums = [f"{stride}_sums" for stride in strides]
        names += [n for n in (f"{name}_ptr", *strides, *sums) if n in reads]
    return (*names, *(n for n in (*_scalars(variant), *DROPOUT) if n in reads))


def dropout_reads(variant: Variant) -> frozenset[str]:
    """What kernels of pairs read where the variant has dropout."""
    return frozenset() if variant.dropout is None else frozenset(DROPOUT)


def unspecialized(
    variant: Variant, reads: Collection[str], scheduled: bool, schedule: Sequence[str] = SCHEDULE
) -> tuple[str, ...]:
    """The integers that a kernel is not compiled anew for."""
    sizes = ("heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
    return (*sizes, *([schedule[-1]] if scheduled else []), *own_integers(variant, reads))


def own_integers(variant: Variant, reads: Collection[str]) -> tuple[str, ...]:
    """The integers among the arguments that only some variants have, as far as a kernel reads them."""
    integers = [p.name for p in variant.runtime_params if p.type is Type.INT]
    integers += ["batch", *variant.dim_names]
    return tuple(name for name in integers if name in reads)


def _scalars(variant: Variant) -> list[str]:
    """Scalar arguments that only some variants have."""
    return ["batch", *(p.name for p in variant.runtime_params), *variant.dim_names]
