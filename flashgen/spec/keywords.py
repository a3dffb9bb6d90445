"""By what names callers pass inputs and runtime params to the functions of a generated module."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flashgen.spec.names import ARGUMENTS
from flashgen.spec.variant import Variant


def keyword_names(variant: Variant, function: str) -> dict[str, str]:
    """What a function calls the variant's inputs and runtime params, by their names in the spec.

    Where it has an argument so called itself, the name has an underscore behind it, as PEP 8 says.
    """
    names = [*(each.name for each in variant.inputs), *(each.name for each in variant.runtime_params)]
    return {name: _free(name, ARGUMENTS[function], names) for name in names}


def keywords_of(variant: Variant, function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names of the spec as a function takes them; the function's own stay what they are."""
    names = keyword_names(variant, function)
    return {names.get(name, name): value for name, value in given.items()}


def _free(name: str, taken: Collection[str], others: Collection[str]) -> str:
    found = name
    while found in taken or (found != name and found in others):
        found += "_"
    return found
