"""Kernels run on a GPU: `pytest tests/gpu -m gpu --resume`. Workers share the GPUs, see `gpu_share`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from suite_progress import pytest_addoption, pytest_configure

__all__ = ["pytest_addoption", "pytest_configure"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Of each test in this folder, before its fixtures: of thousands that are left out these would take half."""
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")


@pytest.fixture
def on_hopper() -> None:
    """Leaves out tests of kernels that are for Hopper."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the GPU is no Hopper")


@pytest.fixture(autouse=True)
def _leaves_memory_to_others() -> Iterator[None]:
    """What a test's references in float64 took is the other workers' afterwards, not kept for this one's next test."""
    yield
    if torch.cuda.is_available() and torch.cuda.memory_reserved() > 2**30:
        torch.cuda.empty_cache()
