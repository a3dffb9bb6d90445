"""The Hopper kernel for dQ alone compiles offline with this Triton: it keeps its registers, its products overlap."""

from __future__ import annotations

from pathlib import Path

import pytest
import triton
from covering import covering, two_of_three
from gallery import VARIANTS
from offline_compiler import Compile
from packaging.version import Version

from flashgen.codegen import generate, uses_schedule
from flashgen.runtime import Config, default_backward_q_config, default_scheduled_backward_q_config
from flashgen.runtime.gpus import shared_limit
from flashgen.runtime.kernels.backward_q_sm90 import BACKWARD_Q_SM90_KERNEL
from flashgen.runtime.kernels.kernel import Task
from flashgen.tuning.space import search_space

# Bytes of the registers that wait for the roles to part: of one to four, of six with newer Tritons.
FEW = 16 if Version(triton.__version__) < Version("3.7") else 24


def default(name: str, head_dim: int, v_head_dim: int) -> Config:
    choose = default_scheduled_backward_q_config if uses_schedule(VARIANTS[name]) else default_backward_q_config
    return choose("sm_90", "bfloat16", head_dim, v_head_dim)


def space_of(head_dim: int, scheduled: bool) -> list[Config]:
    task = Task("backward_q", "sm_90", "bfloat16", head_dim, head_dim, 8192, 8192, scheduled)
    return [config for config in search_space(task).configs if config.backend == "hopper"]


def test_a_simple_variant_keeps_its_registers(tmp_path: Path, compiled: Compile) -> None:
    path = generate(VARIANTS["full"], tmp_path)
    found = compiled(path, "backward_q", "sm_90", "bfloat16", 128, 128, default("full", 128, 128))
    assert found.error is None
    assert not found.serialized_wgmma
    assert found.spills <= FEW
    assert found.shared <= shared_limit("sm_90")


@pytest.mark.matrix
@pytest.mark.parametrize("name", two_of_three(list(VARIANTS), 2))
def test_a_variant_overlaps_its_products(name: str, tmp_path: Path, compiled: Compile) -> None:
    path = generate(VARIANTS[name], tmp_path)
    dims = [(128, 128), (192, 128), (192, 192), (256, 256), (64, 256), (40, 40), (64, 64), (96, 96)]
    configs = [default(name, dim, v_dim) for dim, v_dim in dims]
    assert all(config.backend == "hopper" for config in configs)
    # One in turn.
    turn = list(VARIANTS).index(name) % len(dims)
    found = compiled(path, "backward_q", "sm_90", "float16", *dims[turn], configs[turn])
    assert found.error is None
    assert not found.serialized_wgmma
    assert found.shared <= shared_limit("sm_90")


@pytest.mark.matrix
def test_configs_with_all_that_the_space_has_compile(tmp_path: Path, compiled: Compile) -> None:
    path = generate(VARIANTS["causal"], tmp_path)
    tasks = {(dim, dim): Task("backward_q", "sm_90", "bfloat16", dim, dim, 8192, 8192) for dim in (64, 128, 256)}
    spaces = {(dim, dim): space_of(dim, scheduled=False) for dim in (64, 128, 256)}
    assert all(128 in {config.BM for config in space} for space in spaces.values())
    for dims, config in covering([(dims, config) for dims, space in spaces.items() for config in space]):
        found = compiled(path, "backward_q", "sm_90", "bfloat16", *dims, config)
        assert found.error is None, config
        assert not found.serialized_wgmma, config
        assert found.spills <= FEW, config
        bound = BACKWARD_Q_SM90_KERNEL.shared_bytes(config, tasks[dims])
        assert found.shared <= bound <= shared_limit("sm_90"), config


@pytest.mark.parametrize("dim", [64, 256])
def test_tiles_of_a_schedule_are_powers_of_two(dim: int) -> None:
    assert {config.BM for config in space_of(dim, scheduled=True)} == {128}


@pytest.mark.parametrize(
    ("capability", "dtype", "head_dim"),
    [("sm_80", "bfloat16", 128), ("sm_100", "bfloat16", 128), ("", "float16", 64), ("sm_90", "float32", 64),
     ("sm_90", "float16", 100)],
)  # fmt: skip
def test_what_it_does_not_serve_goes_to_the_portable_kernel(capability: str, dtype: str, head_dim: int) -> None:
    assert default_backward_q_config(capability, dtype, head_dim, 128).backend == "portable"
    space = search_space(Task("backward_q", capability, dtype, head_dim, 128, 8192, 8192)).configs
    assert {config.backend for config in space} == {"portable"}
