"""Which kernels of a variant walk a schedule of tiles, and which built-in configs theirs are."""

from __future__ import annotations

from flashgen.analysis.facts import facts_of
from flashgen.codegen.kernels.forward import default_name
from flashgen.codegen.naming import inner
from flashgen.runtime import defaults
from flashgen.runtime.defaults import Default
from flashgen.spec.variant import Variant


def uses_schedule(variant: Variant) -> bool:
    """Whether its forward kernel walks one."""
    return facts_of(inner(variant)).uses_schedule


def scheduled_kernels(variant: Variant) -> frozenset[str]:
    """Their names: those that walk along keys where these are no interval, the other where the queries are none."""
    facts = facts_of(inner(variant))
    along_keys = ("forward", "backward_q") if facts.uses_schedule else ()
    return frozenset((*along_keys, *(("backward_kv",) if facts.rows_scheduled else ())))


def default_of(variant: Variant, kernel: str) -> Default:
    """The built-in default of a variant's kernel, as its module has it: by capability, dtype and head dimensions."""
    facts = facts_of(inner(variant))
    if kernel == "forward":
        chosen: Default = getattr(defaults, default_name(facts))
        return chosen
    if kernel == "backward_kv" and facts.plain_mask:
        return defaults.default_masked_backward_kv_config
    return defaults.built_in(kernel, kernel in scheduled_kernels(variant))
