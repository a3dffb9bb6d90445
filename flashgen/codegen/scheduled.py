"""Which kernels of a variant walk a schedule of tiles."""

from __future__ import annotations

from flashgen.codegen.forward import uses_schedule
from flashgen.spec.variant import Variant


def scheduled_kernels(variant: Variant) -> frozenset[str]:
    """Their names."""
    return frozenset(("forward", "backward_q", "backward_kv") if uses_schedule(variant) else ())
