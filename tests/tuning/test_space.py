"""The search space: legal, affordable, and with room for what may win."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.errors import UsageError
from flashgen.runtime.config import Config
from flashgen.runtime.gpus import GPUS, shared_limit
from flashgen.runtime.kernels.kernel import Task
from flashgen.runtime.registry import FAMILIES, checked, kernel_of, kernels_of
from flashgen.tuning.presets import PRESETS, chosen
from flashgen.tuning.space import search_space

workload = st.tuples(
    st.sampled_from(sorted(GPUS)), st.sampled_from(["float16", "bfloat16", "float32"]),
    st.integers(1, 256), st.integers(1, 256), st.integers(1, 1 << 20), st.integers(1, 1 << 20),
)  # fmt: skip


@given(st.sampled_from(FAMILIES), workload, st.booleans())
def test_every_config_could_fit_and_none_is_there_twice(kernel, given_workload, scheduled):
    task = Task(kernel, *given_workload, scheduled)
    space = search_space(task)
    assert space.configs and len(set(space.configs)) == len(space.configs)
    for config in space.configs:
        assert checked(kernel, config)
        assert kernel_of(kernel, config).shared_bytes(config, task) <= shared_limit(task.capability)
        assert not scheduled or min(config.BM, config.BN) >= 32


@pytest.mark.parametrize(
    ("head_dim", "config"),
    [
        (64, Config(128, 128, 8, 3)),
        (128, Config(128, 128, 8, 3)),
        (128, Config(64, 64, 4, 3)),
        (256, Config(128, 64, 8, 2)),
    ],
)
def test_configs_known_to_be_fast_on_hopper_are_in_its_space(head_dim, config):
    assert config in search_space(Task("forward", "sm_90", "bfloat16", head_dim, head_dim, 8192, 8192)).configs


@pytest.mark.parametrize("kernel", FAMILIES)
def test_a_search_begins_within_its_space(kernel):
    starts = [config for each in kernels_of(kernel) for config in each.starts]
    space = search_space(Task(kernel, "sm_90", "bfloat16", 64, 64, 8192, 8192)).configs
    assert starts and set(starts) <= set(space) and len(set(starts)) == len(starts)


@pytest.mark.parametrize("config", [Config(64, 128, 8, 2, fuse_dq=1), Config(64, 64, 8, 1, fuse_dq=0)])
def test_both_ways_to_make_dq_are_in_the_space_of_the_backward(config):
    assert config in search_space(Task("backward_kv", "sm_90", "bfloat16", 128, 128, 8192, 8192)).configs


@pytest.mark.parametrize(("head_dim", "v_head_dim"), [(256, 64), (256, 256), (192, 128)])
def test_a_tile_of_dq_is_in_registers_beside_dk_and_dv(head_dim, v_head_dim):
    """Otherwise the assembler finds no registers for the product that makes it: error C7600."""
    space = search_space(Task("backward_kv", "sm_90", "float16", head_dim, v_head_dim, 8192, 8192)).configs
    assert Config(256, 32, 4, 1, fuse_dq=0) in space
    assert Config(256, 32, 4, 1, fuse_dq=1) not in space
    assert any(config.fuse_dq for config in space)


@pytest.mark.parametrize(
    ("kernel", "head_dim", "config"),
    [
        ("backward_q", 256, Config(64, 256, 4, 1)),
        ("backward_q", 256, Config(128, 256, 8, 1)),
        ("backward_kv", 128, Config(128, 64, 4, 1, fuse_dq=1)),
    ],
)
def test_no_backward_config_has_as_many_accumulators_as_a_thread_has_registers(kernel, head_dim, config):
    """Of products of n = 256, as those of backward_q here, the assembler then finds no registers at all."""
    task = Task(kernel, "sm_90", "float16", head_dim, head_dim, 8192, 8192)
    assert config not in search_space(task).configs
    assert config in [each for found in kernels_of(kernel) for each in found.space(task)]


def test_tiles_go_little_beyond_the_lengths():
    space = search_space(Task("forward", "sm_90", "bfloat16", 128, 128, 1, 8192))
    assert max(config.BM for config in space.configs) == 32
    assert min(config.BM for config in space.configs) == 16


def test_an_unknown_gpu_gets_the_smallest_limit():
    assert shared_limit("sm_999") == min(gpu.shared for gpu in GPUS.values())


def test_presets_rise_in_effort_and_can_be_overridden():
    quick, default, full = (PRESETS[name] for name in ("quick", "default", "full"))
    assert quick.seconds < default.seconds and full.seconds is None
    assert quick.trials < default.trials and full.trials is None
    assert chosen("default", trials=100, seconds=7).trials == 100
    assert chosen("default", trials=100, seconds=7).candidates >= 100
    for wrong in ({"name": "huge"}, {"name": "quick", "trials": 0}, {"name": "quick", "seconds": -1}):
        with pytest.raises(UsageError):
            chosen(**wrong)


@pytest.mark.parametrize("kernel", FAMILIES)
@pytest.mark.parametrize("head_dim", [16, 128, 512])
def test_products_without_tensor_cores_have_smaller_tiles(kernel, head_dim):
    task = Task(kernel, "sm_90", "float32", head_dim, head_dim, 8192, 8192)
    in_tf32, exact = (search_space(each).configs for each in (task, replace(task, exact=True)))
    assert exact and set(exact) < set(in_tf32)
