"""What the soak found before passes, and so do a few hundred draws."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flashgen.verify.soak import crew, trial
from flashgen.verify.soak.case import from_yaml
from flashgen.verify.soak.crew import Soak
from flashgen.verify.soak.rows import Row

# What CI tries: so many draws of this seed, as far as they get in these seconds, but a few however busy it is.
SEED, COUNT, SECONDS, LEAST = 18, 150, 30, 20
# Failing cases of the soak, made small, as it prints them.
FOUND = Path(__file__).parent / "found"


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_was_found_before_passes(path: Path) -> None:
    found = trial.attempt(from_yaml(path.read_text()), "cpu", lenient=True).finding
    assert found.kind == "passed", found


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 180)
def test_some_hundred_draws_pass_in_the_interpreter() -> None:
    end = time.monotonic() + SECONDS
    soak = Soak(SEED, "cpu", crew.default_jobs(), limit=120.0, steps=0)
    rows: list[Row] = []

    def is_enough() -> bool:
        return time.monotonic() > end and len(rows) >= LEAST

    for row in soak.of(range(COUNT), is_enough):
        if row is not None:
            rows.append(row)
    failed = [row for row in rows if not row.passed]
    assert not failed, "\n".join(f"{row.index} {row.kind}: {row.detail}\n{row.small}" for row in failed)
    assert len(rows) >= LEAST
