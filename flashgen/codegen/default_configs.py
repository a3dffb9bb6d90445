"""The built-in configs of a variant's kernels, for calls that nothing was tuned for."""

from __future__ import annotations

import torch

from flashgen.analysis.facts import facts_of
from flashgen.analysis.rows import row_facts
from flashgen.codegen.kernels.forward import default_name
from flashgen.codegen.naming import mangled
from flashgen.codegen.pairs import bytes_read
from flashgen.codegen.scheduled import scheduled_kernels
from flashgen.runtime import defaults
from flashgen.runtime.config import Config
from flashgen.runtime.defaults import Default, built_in
from flashgen.runtime.kernels.backward_pairs import BACKWARD_PAIRS_KERNEL, for_bytes
from flashgen.runtime.kernels.learned import LEARNED_KERNEL, for_loads
from flashgen.runtime.records import Bucket
from flashgen.runtime.registry import MODES, TUNED
from flashgen.spec.variant import Variant

# Of values that are read for each pair: one of float32 fits beside the tiles of every built-in config.
_MOST_BYTES = 4
# Where rows of one tile are of several heads: what these have for each key is read for each pair.
_HEADS_IN_ROWS = (*MODES["decode"], *MODES["paged"])


def default_of(variant: Variant, kernel: str, packed: bool = False) -> Default:
    """The built-in default of a variant's kernel, as its module has it: by capability, dtype and head dimensions.

    `packed`: that for packed sequences.
    """
    if kernel not in TUNED:
        return _untuned_default(variant, kernel)
    dense = _dense_default(variant, kernel)
    return defaults.packed_default(kernel, kernel in scheduled_kernels(variant), dense) if packed else dense


def _untuned_default(variant: Variant, kernel: str) -> Default:
    """The config of a kernel that is not tuned, as a dense call has it that asks for all gradients."""
    facts = facts_of(mangled(variant))
    loads = len(facts.gathers_of_pairs)
    read = loads * max((getattr(torch, tensor.dtype).itemsize for tensor in variant.inputs), default=0)

    def default(
        capability: str, dtype: str, head_dim: int, v_head_dim: int, bucket: Bucket | None = None
    ) -> Config:  # fmt: skip
        scheduled = kernel == LEARNED_KERNEL.family and facts.uses_schedule
        config = built_in(kernel, scheduled)(capability, dtype, head_dim, v_head_dim)
        if kernel == LEARNED_KERNEL.family:
            return for_loads(config, loads)
        return for_bytes(config, read) if kernel == BACKWARD_PAIRS_KERNEL.family else config

    return default


def _dense_default(variant: Variant, kernel: str) -> Default:
    default: Default = getattr(defaults, _default_name(variant, kernel))
    if _reads_much(variant, kernel):
        return defaults.unpipelined(default)
    return defaults.beside_pairs(default, _pair_bytes(variant, kernel)) if _pairs_matter(variant, kernel) else default


def default_text(variant: Variant, kernel: str) -> str:
    """The built-in default of a variant's kernel as the text of its module."""
    name = f"runtime.{_default_name(variant, kernel)}"
    if _reads_much(variant, kernel):
        return f"runtime.unpipelined({name})"
    return f"runtime.beside_pairs({name}, {_pair_bytes(variant, kernel)})" if _pairs_matter(variant, kernel) else name


def _default_name(variant: Variant, kernel: str) -> str:
    facts = facts_of(mangled(variant))
    if kernel == "forward":
        return default_name(facts)
    scheduled = kernel in scheduled_kernels(variant)
    if kernel == "backward_kv" and not scheduled:
        if variant.dropout is not None:
            return "default_dropout_backward_kv_config"
        if facts.gathers_of_pairs:
            return "default_pairs_backward_kv_config"
        if facts.plain_mask:
            return "default_masked_backward_kv_config"
    return f"default_{'scheduled_' if scheduled else ''}{kernel}_config"


def _reads_much(variant: Variant, kernel: str) -> bool:
    """Whether what is read for each pair leaves a pipeline no shared memory: it holds a tile of each value a stage."""
    return _pair_bytes(variant, kernel) > _MOST_BYTES


def _pairs_matter(variant: Variant, kernel: str) -> bool:
    """Whether a default must leave room for what is read for each pair: where it pipelines on every GPU."""
    return kernel in _HEADS_IN_ROWS and _pair_bytes(variant, kernel) > 0


def _pair_bytes(variant: Variant, kernel: str) -> int:
    found = mangled(variant)
    facts = row_facts(found) if kernel in _HEADS_IN_ROWS else facts_of(found)
    return bytes_read(found, facts.gathers_of_pairs)
