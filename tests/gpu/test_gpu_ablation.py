"""The ablation's kernels on a Hopper GPU: without their technique they are still right."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.bench.ablation import Modules, measure_place, proven, variant_of
from flashgen.bench.rows import Case
from flashgen.bench.run import Bench
from flashgen.bench.techniques import COMPARISONS, DOCUMENTS, Place, kernels_of

# The place where each edit is measured first.
EDITED = {each.without.edit: each for each in reversed(COMPARISONS) if each.without.edit}

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _in_the_repository(on_hopper: None, monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.chdir(repository)


@pytest.mark.parametrize("edit", EDITED)
def test_an_edited_kernel_computes_its_formula(tmp_path: Path, edit: str) -> None:
    kernel, place = EDITED[edit].without, EDITED[edit].place
    variant = variant_of(place)
    config = kernel.config_for(place.problem, variant)
    assert proven(variant, Modules(variant, tmp_path).of(kernel), config, place.problem) == ""


def test_a_place_is_measured_with_all_its_kernels(tmp_path: Path) -> None:
    """By plans, configs and an edit, at a size with more tiles than programs."""
    kernels, problem = kernels_of(DOCUMENTS, variant_of(DOCUMENTS)), Place("document", 1, 16, 2048, 128).problem
    case = Case("document", "", "", problem, "a GPU", "", "")
    rows = measure_place(Modules(variant_of(DOCUMENTS), tmp_path), kernels, case, Bench(rounds=2))
    assert [row.candidate for row in rows] == list(kernels)
    assert not [row.note for row in rows if row.note]
    assert all(row.tflops for row in rows)
