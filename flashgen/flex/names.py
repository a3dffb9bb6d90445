"""Names in a spec that are those of nothing else."""

from __future__ import annotations

from collections.abc import Collection

from flashgen.spec.names import name_problem


def free_name(wanted: str, taken: Collection[str], is_argument: bool = True) -> str:
    """A name that a spec may give, as near to the wanted one as can be."""
    base = "".join(each if each.isascii() and each.isalnum() else "_" for each in wanted).strip("_")[:48] or "value"
    base = base if base[0].isalpha() else f"value_{base}"
    if name_problem(base, is_argument) is not None:
        base += "_"
    names = [base, *(f"{base.rstrip('_')}_{number}" for number in range(2, 2 + len(taken)))]
    return next(name for name in [*names, f"{base}_more"] if name not in taken)
