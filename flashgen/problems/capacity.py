"""Whether a device has memory for an input that is drawn: what does not fit would end the process without a word."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch

from flashgen.errors import UsageError

# Bytes that a value takes while it is drawn, at most.
_VALUE = 8


def refuse_too_large(name: str, dims: Sequence[str], shape: Sequence[int], device: torch.device) -> None:
    """UsageError where drawing an input of this shape takes more than half of the device's memory."""
    size, most = _VALUE * math.prod(shape), capacity(device) // 2
    if size > most:
        raise UsageError(
            f"input {name}: [{', '.join(dims)}] is {list(shape)} here, {_shown(size)} to draw; expected at most half "
            f"of the memory, {_shown(most)}"
        )


def capacity(device: torch.device) -> int:
    """Bytes of a GPU's memory, or of the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _shown(size: int) -> str:
    return f"{size / 2**30:,.0f} GiB"
