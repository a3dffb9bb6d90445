"""Which kernels of a variant walk a schedule of tiles."""

from __future__ import annotations

from flashgen.codegen.backward import rows_scheduled
from flashgen.codegen.forward import uses_schedule
from flashgen.spec.variant import Variant


def scheduled_kernels(variant: Variant) -> frozenset[str]:
    """Their names: those that walk along keys where these are no interval, the other where the queries are none."""
    along_keys = ("forward", "backward_q") if uses_schedule(variant) else ()
    return frozenset((*along_keys, *(("backward_kv",) if rows_scheduled(variant) else ())))
