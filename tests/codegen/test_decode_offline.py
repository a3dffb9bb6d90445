"""The decode kernel compiled for GPUs that are not at hand: it fits their shared memory and hardly spills."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import triton
from gallery import VARIANTS
from hard_specs import SPECS
from packaging.version import Version

from flashgen.codegen import generate
from flashgen.codegen.default_configs import default_of
from flashgen.runtime.decoding import row_tile, shared_bytes
from flashgen.runtime.defaults import default_decode_paged_config
from flashgen.runtime.gpus import shared_limit
from flashgen.runtime.kernels.decode import DECODE_KERNEL
from flashgen.runtime.records import Bucket
from flashgen.spec import load

# A GPU here, the others with the matrix.
TARGETS = [
    "sm_90",
    *(pytest.param(target, marks=pytest.mark.matrix) for target in ("sm_80", "sm_86", "sm_100", "gfx942")),
]


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
    if (name, target) == ("block_sparse", "gfx942") and Version(triton.__version__) >= Version("3.9"):
        pytest.xfail("Triton 3.9 refuses to keep a mask of bits in shared memory, as its pipeline for AMD has it")
    path = generate(VARIANTS[name], tmp_path)
    config = DECODE_KERNEL.default("", target, dtype, dim, dim)
    # As many rows as a query of a group of 4 or of 8 has.
    config = config.but(BM=16)
    found = compiled(path, "decode", target, dtype, dim, dim, config, False, (), False, True)
    assert found.error is None, found.error
    assert found.shared <= shared_limit(target)
    assert not found.spills or found.spills < 64


@pytest.mark.parametrize(("cache", "kind"), [("", ""), ("float8_e4m3fn", "*fp8e4nv"), ("int8", "*i8")])
@pytest.mark.parametrize("dim", [64, 128])
def test_as_many_programs_run_at_once_as_splits_are_made_for(
    compiled: Callable[..., object], cache: str, kind: str, dim: int, tmp_path: Path
) -> None:
    """The shared memory that splits reckon with is that of the compiled kernel."""
    path = generate(VARIANTS["full"], tmp_path)
    bucket = Bucket.of(32, 4, 1, 8192, 16, cache)
    config = default_decode_paged_config("sm_90", "bfloat16", dim, dim, bucket).but(BM=16)
    types = {"k_ptr": kind, "v_ptr": kind, "k_scale_ptr": "*fp32", "v_scale_ptr": "*fp32"} if cache else {}
    found = compiled(
        path, "decode_paged", "sm_90", "bfloat16", dim, dim, config, False, (), False, False, types,
        {"CONVERTED": bool(cache)},
    )  # fmt: skip
    assert found.error is None, found.error
    assert not found.spills
    assert found.shared == shared_bytes(config, (dim, dim), 2, 1 if cache else 2)


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize(("cache", "q_len"), [("", 512), ("int8", 1), ("int8", 512)])
def test_what_suits_a_cache_and_many_rows_fits_a_gpu(
    compiled: Callable[..., object], cache: str, q_len: int, target: str, tmp_path: Path
) -> None:
    path = generate(VARIANTS["causal"], tmp_path)
    chosen = default_decode_paged_config(target, "bfloat16", 128, 128, Bucket.of(32, 4, q_len, 8192, 16, cache))
    config = chosen.but(BM=row_tile(chosen, 4 * q_len))
    types = {"k_ptr": "*i8", "v_ptr": "*i8", "k_scale_ptr": "*fp32", "v_scale_ptr": "*fp32"} if cache else {}
    types |= {"cu_seqlens_q_ptr": "*i32"}
    found = compiled(path, "decode_paged", target, "bfloat16", 128, 128, config, False, (), False, False, types)
    assert found.error is None, found.error
    assert found.shared <= shared_limit(target)
    assert not found.spills or found.spills < 64


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["relative_bias", "block_sparse", "logarithms of gates"])
def test_what_is_read_for_each_pair_has_its_place_in_shared_memory(
    compiled: Callable[..., object], name: str, dim: int, target: str, tmp_path: Path
) -> None:
    """Of a tile of rows of several heads, what each head has for a key is read for each pair."""
    variant = load(SPECS[name]) if name in SPECS else VARIANTS[name]
    path = generate(variant, tmp_path)
    for kernel, types in (("decode", {}), ("decode_paged", {"cu_seqlens_q_ptr": "*i32"})):
        chosen = default_of(variant, kernel)(target, "bfloat16", dim, dim, Bucket.of(32, 4, 512, 8192, 16))
        found = compiled(path, kernel, target, "bfloat16", dim, dim, chosen, False, (), False, False, types)
        assert found.error is None, found.error
        assert found.shared <= shared_limit(target)


@pytest.mark.parametrize("name", ["full", "alibi", "sink"])
def test_tiles_for_many_keys_of_narrow_heads_fit_and_read_all_of_them_ahead(
    compiled: Callable[..., object], name: str, tmp_path: Path
) -> None:
    variant = VARIANTS[name]
    few, many = (Bucket.of(1024, 8, 1, kv_len) for kv_len in (512, 8192))
    default = default_of(variant, "decode")
    assert default("sm_90", "bfloat16", 64, 64, few) == default("sm_90", "bfloat16", 64, 64)
    config = default("sm_90", "bfloat16", 64, 64, many)
    assert (config.BN, config.num_stages) == (256, 3)
    config = config.but(BM=row_tile(config, many.rows))
    found = compiled(generate(variant, tmp_path), "decode", "sm_90", "bfloat16", 64, 64, config)
    assert found.error is None, found.error
    assert not found.spills
    assert found.shared == shared_bytes(config, (64, 64), 2, 2)
