"""Packed and paged sequences on a GPU, by the kernels that a module chooses, for what formulas read of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from served_specs import SPECS, proven

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_right_kernels_pass(spec: dict[str, Any], tmp_path: Path) -> None:
    results = proven(spec, tmp_path, "cuda")
    assert len(results) >= 5
    assert [f"{each.name}: {each.detail}" for each in results if not each.ok] == []
