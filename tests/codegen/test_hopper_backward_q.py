"""The Hopper kernel for dQ alone compiles offline with this Triton: it keeps its registers, its products overlap."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flashgen.codegen import generate, uses_schedule
from flashgen.runtime import Config, default_backward_q_config, default_scheduled_backward_q_config
from flashgen.spec import load
from flashgen.tuning.space import SHARED_LIMIT, Task, hopper_backward_q_shared_bytes, search_space

VARIANTS = {path.stem: load(path) for path in sorted((Path(__file__).parents[2] / "variants").glob("*.yaml"))}
# A register or three that wait for the roles to part.
FEW = 16

_COMPILE = """
import json, sys
from pathlib import Path
from flashgen.codegen.offline import compile_kernel
from flashgen.runtime import Config
found = []
for dtype, head_dim, v_head_dim, config in json.loads(sys.argv[2]):
    r = compile_kernel(Path(sys.argv[1]), "backward_q", "sm_90", dtype, head_dim, v_head_dim, Config.parse(config))
    found.append([r.error, r.spills, r.serialized_wgmma, r.shared])
print(json.dumps(found))
"""


def compiled(path: Path, env: dict[str, str], jobs: list[tuple[str, int, int, Config]]) -> list[tuple]:
    asked = json.dumps([[dtype, dim, v_dim, str(config)] for dtype, dim, v_dim, config in jobs])
    command = [sys.executable, "-c", _COMPILE, str(path), asked]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return [tuple(each) for each in json.loads(done.stdout.splitlines()[-1])]


def default(name: str, head_dim: int, v_head_dim: int) -> Config:
    choose = default_scheduled_backward_q_config if uses_schedule(VARIANTS[name]) else default_backward_q_config
    return choose("sm_90", "bfloat16", head_dim, v_head_dim)


def space_of(head_dim: int, scheduled: bool) -> list[Config]:
    task = Task("backward_q", "sm_90", "bfloat16", head_dim, head_dim, 8192, 8192, scheduled)
    return [config for config in search_space(task).configs if config.backend == "hopper"]


def test_a_simple_variant_keeps_its_registers(tmp_path: Path, plain_env: dict[str, str]) -> None:
    path = generate(VARIANTS["full"], tmp_path)
    jobs = [("bfloat16", dim, dim, default("full", dim, dim)) for dim in (64, 128, 256)]
    for error, spills, serialized, shared in compiled(path, plain_env, jobs):
        assert error is None
        assert not serialized
        assert spills <= FEW
        assert shared <= SHARED_LIMIT["sm_90"]


@pytest.mark.matrix
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_overlaps_its_products(name: str, tmp_path: Path, plain_env: dict[str, str]) -> None:
    path = generate(VARIANTS[name], tmp_path)
    dims = [(40, 40), (64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256), (64, 256)]
    jobs = [("float16", dim, v_dim, default(name, dim, v_dim)) for dim, v_dim in dims]
    assert all(config.backend == "hopper" for *_, config in jobs)
    for error, _, serialized, shared in compiled(path, plain_env, jobs):
        assert error is None
        assert not serialized
        assert shared <= SHARED_LIMIT["sm_90"]


@pytest.mark.matrix
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_every_config_of_the_space_compiles(dim: int, tmp_path: Path, plain_env: dict[str, str]) -> None:
    path = generate(VARIANTS["causal"], tmp_path)
    configs = space_of(dim, scheduled=False)
    assert {config.BM for config in configs} >= {128}
    found = compiled(path, plain_env, [("bfloat16", dim, dim, config) for config in configs])
    for config, (error, spills, serialized, shared) in zip(configs, found, strict=True):
        assert error is None, config
        assert not serialized, config
        assert spills <= FEW, config
        assert shared <= hopper_backward_q_shared_bytes(config, dim, dim) <= SHARED_LIMIT["sm_90"], config


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
