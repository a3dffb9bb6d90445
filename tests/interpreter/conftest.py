"""Kernels run in this process, under Triton's interpreter."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def _interpreted() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("the interpreter is off because there is a GPU: start pytest with TRITON_INTERPRET=1")
