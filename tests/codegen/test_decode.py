"""The decode kernel compiled for GPUs that are not at hand: it fits their shared memory and hardly spills."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flashgen.codegen import generate
from flashgen.runtime.gpus import shared_limit
from flashgen.runtime.kernels.decode import DECODE_KERNEL
from flashgen.spec import load

VARIANTS = Path(__file__).parents[2] / "variants"


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_90", "gfx942"])
@pytest.mark.parametrize("name", ["causal", "alibi", "block_sparse"])
def test_it_compiles_within_what_a_gpu_has(
    compiled: Callable[..., object], name: str, target: str, tmp_path: Path
) -> None:
    path = generate(load(VARIANTS / f"{name}.yaml"), tmp_path)
    config = DECODE_KERNEL.default("", target, "bfloat16", 128, 128)
    # As many rows as a query of a group of 4 or of 8 has.
    config = config.but(BM=16)
    found = compiled(path, "decode", target, "bfloat16", 128, 128, config)
    assert found.error is None, found.error
    assert found.shared <= shared_limit(target)
    assert not found.spills or found.spills < 64
