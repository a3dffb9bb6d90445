"""Which kernels of a variant walk a schedule of tiles."""

from __future__ import annotations

from flashgen.analysis.facts import facts_of
from flashgen.codegen.naming import mangled
from flashgen.spec.variant import Variant


def uses_schedule(variant: Variant) -> bool:
    """Whether its forward kernel walks one."""
    return facts_of(mangled(variant)).uses_schedule


def scheduled_kernels(variant: Variant) -> frozenset[str]:
    """The kernels that walk one: along keys where these are no interval, along queries where those are none."""
    facts = facts_of(mangled(variant))
    along_keys = ("forward", "backward_q") if facts.uses_schedule else ()
    return frozenset((*along_keys, *(("backward_kv",) if facts.rows_scheduled else ())))
