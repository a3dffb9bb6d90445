"""Which kernels of a variant walk a schedule of tiles, and which built-in configs theirs are."""

from __future__ import annotations

from flashgen.codegen.backward import rows_scheduled
from flashgen.codegen.forward import forward_view, uses_schedule
from flashgen.codegen.hopper_backward import hopper_backward_view
from flashgen.codegen.naming import inner
from flashgen.runtime import defaults
from flashgen.runtime.defaults import Default
from flashgen.spec.variant import Variant


def scheduled_kernels(variant: Variant) -> frozenset[str]:
    """Their names: those that walk along keys where these are no interval, the other where the queries are none."""
    along_keys = ("forward", "backward_q") if uses_schedule(variant) else ()
    return frozenset((*along_keys, *(("backward_kv",) if rows_scheduled(inner(variant)) else ())))


def default_of(variant: Variant, kernel: str) -> Default:
    """The built-in default of a variant's kernel, as its module has it: by capability, dtype and head dimensions."""
    if kernel == "forward":
        chosen: Default = getattr(defaults, forward_view(inner(variant)).default)
        return chosen
    if kernel == "backward_kv" and hopper_backward_view(inner(variant)).plain_mask:
        return defaults.default_masked_backward_kv_config
    return defaults.built_in(kernel, kernel in scheduled_kernels(variant))
