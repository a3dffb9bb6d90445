"""The functions of one float: all that there is to know of each, but its derivative (`partials.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashgen.lang.interval import ANYTHING, BOOLEAN, FLOAT32, LARGEST_FLOAT32, LEAST_FLOAT32, Interval

_SYMMETRIC = Interval(-1.0, 1.0)
# The largest number of which exp2 is a number of float32.
_LARGEST_EXPONENT = 127.0


@dataclass(frozen=True)
class Elementary:
    """`value` is the function in double precision, by IEEE 754: of what it is not defined for, infinity or NaN.

    `within` are its values, whatever the argument, as far as that is a number. `domain` are arguments whose values
    float32 has as numbers. `rises`: nowhere in its domain it falls where its argument rises.
    """

    value: Callable[[Any], Any]
    within: Interval = ANYTHING
    domain: Interval = FLOAT32
    rises: bool = False

    @property
    def most(self) -> float:
        """The largest absolute value; infinite where there is none."""
        return max(-self.within.low, self.within.high)


# By the words of the language, which are PyTorch's and those of Python's math.
ELEMENTARY: Mapping[str, Elementary] = {
    "exp": Elementary(np.exp, domain=Interval(-LARGEST_FLOAT32, _LARGEST_EXPONENT * math.log(2)), rises=True),
    "exp2": Elementary(np.exp2, domain=Interval(-LARGEST_FLOAT32, _LARGEST_EXPONENT), rises=True),
    "log": Elementary(np.log, domain=Interval(LEAST_FLOAT32, LARGEST_FLOAT32), rises=True),
    "log2": Elementary(np.log2, domain=Interval(LEAST_FLOAT32, LARGEST_FLOAT32), rises=True),
    "sqrt": Elementary(np.sqrt, domain=Interval(0.0, LARGEST_FLOAT32), rises=True),
    "tanh": Elementary(np.tanh, _SYMMETRIC, rises=True),
    "sigmoid": Elementary(lambda x: 1.0 / (1.0 + np.exp(-np.float64(x))), BOOLEAN, rises=True),
    "sin": Elementary(np.sin, _SYMMETRIC),
    "cos": Elementary(np.cos, _SYMMETRIC),
    "tan": Elementary(np.tan),
    "erf": Elementary(math.erf, _SYMMETRIC, rises=True),
}
# Made by passes, without a word of their own in the language: tanh where it only caps a score, and the derivative of
# tanh, 1 / cosh**2.
DERIVED: Mapping[str, Elementary] = {
    "softcap": Elementary(np.tanh, _SYMMETRIC, rises=True),
    "sech2": Elementary(lambda x: 1.0 / np.cosh(x) ** 2, BOOLEAN),
}
