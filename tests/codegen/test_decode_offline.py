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
@pytest.mark.parametrize(
    ("name", "dtype", "dim"),
    [
        ("causal", "bfloat16", 128),
        ("alibi", "bfloat16", 128),
        ("block_sparse", "bfloat16", 128),
        ("causal", "bfloat16", 512),
        ("causal", "float32", 512),
    ],
)
def test_it_compiles_within_what_a_gpu_has(
    compiled: Callable[..., object], name: str, dtype: str, dim: int, target: str, tmp_path: Path
) -> None:
    path = generate(load(VARIANTS / f"{name}.yaml"), tmp_path)
    config = DECODE_KERNEL.default("", target, dtype, dim, dim)
    # As many rows as a query of a group of 4 or of 8 has.
    config = config.but(BM=16)
    found = compiled(path, "decode", target, dtype, dim, dim, config, False, (), False, True)
    assert found.error is None, found.error
    assert found.shared <= shared_limit(target)
    # Products of float32 as wide as these take more registers than an AMD GPU has for a thread.
    assert not found.spills or found.spills < (64 if dim <= 256 else 128)
