"""Floats as integers in Triton's interpreter, where numpy leaves to the machine what no integer holds."""

from __future__ import annotations

from typing import Any


def as_integers(data: Any, dtype: Any) -> Any:
    """An array of floats, rounded toward zero, in a signed integer dtype, as GPUs have it (PTX ISA, cvt).

    The nearest integer where it does not fit; of NaN the least of 64 bits, and 0 of fewer.
    """
    # Only the interpreter needs numpy.
    import numpy as np

    held = np.iinfo(dtype)
    fits = np.abs(data) < 2.0 ** (held.bits - 1)
    of_nan = held.min if held.bits == 64 else 0
    nearest = np.where(data > 0, held.max, np.where(data < 0, held.min, of_nan))
    return np.where(fits, np.where(fits, data, 0).astype(dtype), nearest.astype(dtype))
