"""The forward kernel for Hopper over keys in pages, compiled for sm_90: it keeps its registers beside their look-up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import triton
from gallery import VARIANTS
from hard_specs import SPECS

from flashgen.codegen import generate
from flashgen.runtime.kernels.forward_sm90 import FORWARD_SM90_KERNEL, NO_PAGES
from flashgen.spec import load

if TYPE_CHECKING:
    from offline_compiler import Compile

TYPES = {name: "*i32" if name.endswith("_ptr") else "i32" for name in NO_PAGES}
# Bytes a thread: of values that wait for the roles to part, or where two consumers have 8 registers less for rows of
# 256 columns or biases. Newer Tritons spill more.
SPILLS, ON_NEWER = 96, 672


def assert_compiles(
    name: str, dims: tuple[int, int], block_size: int, folder: Path, compiled: Compile, dtype: str = "bfloat16",
    spills: int = SPILLS,
) -> None:  # fmt: skip
    place = generate(VARIANTS[name], folder)
    config = FORWARD_SM90_KERNEL.default("", "sm_90", dtype, *dims)
    paged = {"BLOCK_SIZE": block_size, "total_k": None}
    found = compiled(place, "forward", "sm_90", dtype, *dims, config, True, (), False, False, TYPES, paged, True)
    assert found.error is None and not found.serialized_wgmma
    assert (found.spills or 0) <= (spills if triton.__version__.startswith("3.6.") else max(spills, ON_NEWER))


@pytest.mark.parametrize("name", ["full", "alibi", "sliding_window", "softcap", "gemma2", "sink", "relative_bias"])
def test_every_form_of_score_and_mask(name: str, tmp_path: Path, compiled: Compile) -> None:
    assert_compiles(name, (128, 128), 16, tmp_path, compiled, spills=256 if name == "relative_bias" else SPILLS)


@pytest.mark.parametrize("name", ["the least float32", "the least float32, where"])
def test_inputs_along_sequences(name: str, tmp_path: Path, compiled: Compile) -> None:
    place = generate(load(SPECS[name]), tmp_path)
    config = FORWARD_SM90_KERNEL.default("", "sm_90", "bfloat16", 64, 64)
    paged = {"BLOCK_SIZE": 16, "total_k": None}
    found = compiled(place, "forward", "sm_90", "bfloat16", 64, 64, config, True, (), False, False, TYPES, paged, True)
    assert found.error is None and not found.serialized_wgmma


@pytest.mark.parametrize("dims", [(64, 64), (96, 96), (192, 128), (80, 128), (192, 192), (256, 256)], ids=str)
def test_widths(dims: tuple[int, int], tmp_path: Path, compiled: Compile) -> None:
    assert_compiles("causal", dims, 16, tmp_path, compiled, "float16")


@pytest.mark.parametrize("block_size", [16, 48, 64, 128, 192, 256])
def test_pages(block_size: int, tmp_path: Path, compiled: Compile) -> None:
    """Those that hold several tiles of keys, those of which several make one, and what divides neither the other."""
    assert_compiles("causal", (128, 128), block_size, tmp_path, compiled)
