"""Kernels run on a GPU: `pytest tests/gpu -m gpu --resume`. Workers share the GPUs, see `gpu_share`."""

from __future__ import annotations

import pytest
import torch
from suite_progress import pytest_addoption, pytest_configure

__all__ = ["pytest_addoption", "pytest_configure"]


@pytest.fixture(scope="session", autouse=True)
def _on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
