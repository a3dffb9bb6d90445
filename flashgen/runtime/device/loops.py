"""What loops over an index begin with."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def spread_over(value, places):
    """A number for each of some places: what a loop adds to has the shape of what is added."""
    return tl.where(places == places, value, value)
