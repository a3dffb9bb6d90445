"""From what a user types for a spec to a variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashgen.cli.output import Output
from flashgen.gallery import resolve

if TYPE_CHECKING:
    from flashgen.spec.variant import Variant


def read(spec: str, output: Output) -> Variant:
    """The variant that a user names; what it may not mean is said."""
    from flashgen.spec import load

    variant = load(resolve(spec))
    for doubt in variant.warnings:
        output.warn(doubt)
    return variant
