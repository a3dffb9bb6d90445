"""The dtypes that a paged cache may have: the one table of them."""

from __future__ import annotations

from typing import NamedTuple

import torch


class CacheDtype(NamedTuple):
    """The least and the largest finite number of a dtype; `quantised`: of 8 bits, for numbers over a scale."""

    least: float
    most: float
    quantised: bool

    @classmethod
    def of(cls, dtype: torch.dtype) -> CacheDtype:
        about = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        return cls(float(about.min), float(about.max), dtype.itemsize == 1)


# Those beside q's own.
QUANTISED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
CACHE_DTYPES = {dtype: CacheDtype.of(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16, *QUANTISED)}


def quantised_names() -> str:
    """The quantised ones as an error lists them."""
    *others, last = (str(dtype).removeprefix("torch.") for dtype in QUANTISED)
    return f"{', '.join(others)} or {last}"
