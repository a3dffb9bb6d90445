"""Kernels run on a GPU: `pytest tests/gpu -m gpu`; what failed runs again with --lf."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
