"""Memory that nobody wrote holds NaN, so that a kernel cannot pass by what an earlier call left behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def poisoned() -> Iterator[None]:
    """Within the block torch fills what it allocates uninitialised: floats with NaN, ints with their maximum."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    allocation: Any = torch.utils.deterministic
    filled = allocation.fill_uninitialized_memory
    # Filling hangs on deterministic mode; warn_only keeps that mode from refusing operators.
    _set_deterministic(True, True)
    allocation.fill_uninitialized_memory = True
    try:
        yield
    finally:
        _set_deterministic(enabled, warn_only)
        allocation.fill_uninitialized_memory = filled


def _set_deterministic(enabled: bool, warn_only: bool) -> None:
    """What torch.use_deterministic_algorithms does, without torch.compile, which takes seconds to import."""
    torch._C._set_deterministic_algorithms(enabled, warn_only=warn_only)
