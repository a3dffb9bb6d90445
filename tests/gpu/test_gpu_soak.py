"""A hundred draws of the soak on the GPU, ten to a test."""

from __future__ import annotations

import os

import pytest

from flashgen.verify.soak.crew import Soak

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]

SEED, COUNT, TOGETHER = 18, 100, 10


@pytest.mark.parametrize("first", range(0, COUNT, TOGETHER))
def test_draws_pass(first: int) -> None:
    # Compiling takes most of the time, and the suite's other tests run beside this one.
    soak = Soak(SEED, "cuda", min(4, os.cpu_count() or 1), limit=300.0, steps=0)
    rows = [row for row in soak.of(range(first, first + TOGETHER)) if row is not None]
    failed = [row for row in rows if not row.passed]
    assert not failed, "\n".join(f"{row.index} {row.kind}: {row.detail}\n{row.small}" for row in failed)
    assert len(rows) == TOGETHER
