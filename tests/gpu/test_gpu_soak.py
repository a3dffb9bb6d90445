"""A hundred draws of the soak on the GPU, ten to a test, and all that it has found before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flashgen.verify.soak.case import from_yaml
from flashgen.verify.soak.crew import Soak, Trier, nursery

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]

SEED, COUNT, TOGETHER = 18, 100, 10
FOUND = sorted((Path(__file__).parents[1] / "verify/found").glob("*.yaml"))


@pytest.mark.parametrize("first", range(0, COUNT, TOGETHER))
def test_draws_pass(first: int) -> None:
    # Compiling takes most of the time, and the suite's other tests run beside this one.
    soak = Soak(SEED, "cuda", min(4, os.cpu_count() or 1), limit=300.0, steps=0)
    rows = [row for row in soak.of(range(first, first + TOGETHER)) if row is not None]
    failed = [row for row in rows if not row.passed]
    assert not failed, "\n".join(f"{row.index} {row.kind}: {row.detail}\n{row.small}" for row in failed)
    assert len(rows) == TOGETHER


@pytest.mark.parametrize("paths", [FOUND[first:][::4] for first in range(4)], ids=lambda paths: paths[0].stem)
def test_what_was_found_before_passes(paths: list[Path]) -> None:
    mother = nursery("cuda")
    trier = Trier("cuda", 300.0, mother)
    try:
        found = {path.stem: trier(from_yaml(path.read_text()), lenient=True) for path in paths}
    finally:
        trier.close()
        mother.close()
    assert {name: each for name, each in found.items() if each["kind"] != "passed"} == {}
