"""Other values of runtime params than those in the spec: a kernel that has the latter baked in must be seen."""

from __future__ import annotations

from flashgen.problems.problem import Problem
from flashgen.spec.variant import Param, Variant

# Of a case: values by the names of runtime params.
Params = tuple[tuple[str, bool | int | float], ...]


def other_values(param: Param, problem: Problem) -> tuple[bool | int | float, ...]:
    """Values of one param that are worth a case each."""
    if isinstance(param.value, bool):
        return (not param.value,)
    if isinstance(param.value, int):
        return param.value // 2, problem.kv_len // 2
    return param.value / 2, 2 * param.value


def all_others(variant: Variant, problem: Problem) -> Params:
    """Each runtime param at the least other value; 0.0 and infinity have none, and stay."""
    others = {p.name: [v for v in other_values(p, problem) if v != p.value] for p in variant.runtime_params}
    return tuple((name, min(values, key=abs)) for name, values in others.items() if values)
