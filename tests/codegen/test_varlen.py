"""The kernels over packed sequences: they compile for every kind of GPU, and the dense ones know nothing of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flashgen.codegen import generate, render
from flashgen.runtime.registry import kernels_of
from flashgen.spec import load

if TYPE_CHECKING:
    from offline_compiler import Compile

VARIANTS = sorted((Path(__file__).parents[2] / "variants").glob("*.yaml"))
FAMILIES = ("forward_varlen", "backward_q_varlen", "backward_kv_varlen", "backward_inputs_varlen")


@pytest.mark.matrix
@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942"])
@pytest.mark.parametrize("path", VARIANTS, ids=lambda path: path.stem)
def test_each_variant_compiles(path: Path, target: str, tmp_path: Path, compiled: Compile) -> None:
    place = generate(load(path), tmp_path)
    form = "scheduled" if (place / "schedule_varlen.py").exists() else ""
    for family in FAMILIES:
        kernel = kernels_of(family)[0]
        if (place / f"{family}.py").exists():
            config = kernel.default(form, target, "bfloat16", 128, 128)
            found = compiled(place, family, target, "bfloat16", 128, 128, config, True, (), True)
            assert found.error is None, (family, found)


@pytest.mark.parametrize("path", VARIANTS, ids=lambda path: path.stem)
def test_other_kernels_say_nothing_of_packed_sequences(path: Path) -> None:
    """What both call lies where it would lie without them, so that what was tuned stays what it was."""
    for name, text in render(load(path)).items():
        if name not in ("__init__.py", "decode_paged.py") and not name.endswith("_varlen.py"):
            assert "cu_seqlens" not in text
            assert "_varlen" not in text
            assert "first_key" not in text
