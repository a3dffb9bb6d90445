"""Powers that kernels compute by something shorter: a product of few factors, or exp2."""

from __future__ import annotations

from flashgen.lang.nodes import Const, Op

# A power up to this one is written as a product.
_LARGEST_PRODUCT = 8


def factors(power: Op) -> int:
    """Of how many equal factors a power is the product, 0 where it is computed otherwise."""
    exponent = power.args[1]
    if isinstance(exponent, Const) and exponent.value in range(1, _LARGEST_PRODUCT + 1):
        return int(exponent.value)
    return 0


def is_of_two(power: Op) -> bool:
    """Whether it is a power of the number 2."""
    base = power.args[0]
    return isinstance(base, Const) and base.value == 2
