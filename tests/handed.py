"""What a launch hands to Triton's launcher, apart from its form."""

from __future__ import annotations

from typing import Any

# No memory lies lower, also of a Python whose program is at fixed addresses; no size or stride in tests is as large.
HEAP = 2**22


def leaves_of(value: Any) -> list[Any]:
    """All that is no tuple or list in it: Triton 3.6 hands over one argument after another, newer ones a tuple."""
    return [leaf for each in value for leaf in leaves_of(each)] if isinstance(value, (tuple, list)) else [value]


def addresses_of(value: Any) -> list[int]:
    """The addresses in it, in their order."""
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, int) and leaf > HEAP]
