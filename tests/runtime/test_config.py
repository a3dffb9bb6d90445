from __future__ import annotations

from dataclasses import fields, replace

import pytest

from flashgen.runtime.config import Config
from flashgen.runtime.registry import FAMILIES, MODES, REGISTRY, checked, kernel_like, kernel_of

PLAIN = Config(64, 128, 4, 2)
FUSED = Config(64, 128, 8, 1, fuse_dq=1)
HOPPER = Config(192, 128, 4, 2, "hopper", ping_pong=1)
KEYS = Config(64, 128, 4, 2, "hopper", fuse_dq=1, delay_dq=0)


@pytest.mark.parametrize("config", [PLAIN, FUSED, HOPPER, Config(16, 16, 1, 8, fuse_dq=0)], ids=str)
def test_texts_and_mappings_say_all_of_a_config(config: Config) -> None:
    assert Config.parse(str(config)) == config
    assert Config.of(str(config)) == config
    assert Config.of(config.as_dict()) == config
    assert Config.of(config) is config


@pytest.mark.parametrize("config", [PLAIN, KEYS], ids=str)
def test_a_copy_by_its_fields_is_the_same(config: Config) -> None:
    copied = replace(config, **{field.name: getattr(config, field.name) for field in fields(config)})
    assert copied == config and hash(copied) == hash(config) and str(copied) == str(config)


def test_a_config_need_not_say_whether_all_heads_go_together() -> None:
    for config in (KEYS, replace(KEYS, all_heads=1)):
        assert kernel_of("backward_kv", config).compiled(config) == KEYS
        assert Config.parse(str(config)) == config
    assert str(replace(KEYS, all_heads=1)).endswith("delay_dq=0 all_heads=1")


def test_how_a_config_is_written() -> None:
    assert str(FUSED) == "BM=64 BN=128 num_warps=8 num_stages=1 fuse_dq=1"
    assert FUSED.as_dict() == {"BM": 64, "BN": 128, "num_warps": 8, "num_stages": 1, "fuse_dq": 1}
    assert FUSED.label == "64x128, 8 warps, 1 stage, fuse_dq 1"
    assert PLAIN.label == "64x128, 4 warps, 2 stages"


@pytest.mark.parametrize(
    "text",
    [
        "", "fast", "BM=64 BN=64 num_warps=4", "BM=64 BN=64 num_warps=4 num_stages=2 BK=1",
        "BM=64 BM=64 BN=64 num_warps=4 num_stages=2", "BM=64 BN=64 num_warps=4 num_stages=2 fuse_dq",
        "BM=-64 BN=64 num_warps=4 num_stages=2", "BM=64 BN=64 num_warps=4 num_stages=2 backend=best",
        "BM=64 BN=64 num_warps=4 num_stages=2 label=1", "BM=64 BN=64 num_warps=4 num_stages=2 axes=1",
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError), match="config"):
        checked("forward", Config.parse(text))


@pytest.mark.parametrize(
    ("config", "kernel", "message"),
    [
        (FUSED, "forward", "config fuse_dq is 1; expected none, forward has no such axis"),
        (PLAIN, "backward_kv", "config fuse_dq is None; expected 0 or 1 for backward_kv"),
        (Config(64, 64, 4, 1, fuse_dq=2), "backward_kv", "config fuse_dq is 2; expected 0 or 1 for backward_kv"),
        (HOPPER, "backward_kv", "config ping_pong is 1; expected none, backward_kv has no such axis"),
        (Config(64, 64, 4, 1, ping_pong=0), "forward", "config ping_pong is 0; expected none"),
        (replace(KEYS, all_heads=0), "backward_kv", "config all_heads is 0; expected none or 1 for backward_kv"),
        (replace(HOPPER, delay_dq=1), "forward", "config delay_dq is 1; expected none, forward has no such axis"),
        (PLAIN, "sideways", "config backend is 'portable'; expected"),
    ],
)
def test_a_config_of_another_kernel_is_refused(config: Config, kernel: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked(kernel, config)


@pytest.mark.parametrize("BM", [64, 256])
def test_consumers_have_64_rows_each(BM: int) -> None:
    with pytest.raises(ValueError, match=f"config BM is {BM}; expected 128 or 192 for forward_sm90"):
        checked("forward", Config(BM, 128, 4, 2, "hopper", ping_pong=0))


def test_each_kernel_takes_its_own_configs() -> None:
    assert checked("forward", PLAIN) is PLAIN
    assert checked("forward", HOPPER) is HOPPER
    assert checked("backward_q", PLAIN) is PLAIN
    assert checked("backward_kv", FUSED) is FUSED
    assert FAMILIES == ("forward", "backward_q", "backward_kv")
    assert MODES["decode"] == ("decode",) and MODES["paged"] == ("decode_paged",)
    wide = Config(64, 64, 4, 2, "hopper", fuse_dq=0, delay_dq=0)
    assert [kernel_of("backward_kv", each).name for each in (FUSED, KEYS, wide)] == [
        "backward_kv", "backward_kv_sm90", "backward_kv_wide_sm90"
    ]  # fmt: skip


def test_the_order_of_axes_makes_no_difference() -> None:
    one = Config(64, 128, 4, 2, "hopper", delay_dq=0, fuse_dq=1)
    assert one == KEYS and hash(one) == hash(KEYS) and str(one) != str(KEYS)
    assert str(checked("backward_kv", one)) == str(KEYS)


def test_what_is_not_asked_of_a_family_is_the_same_for_all_that_have_such_configs() -> None:
    for kernel in REGISTRY:
        for config in kernel.starts:
            assert kernel_like(config).options(config) == kernel.options(config)
            assert kernel_like(config).spill_limit(config) == kernel.spill_limit(config)


def test_an_axis_that_a_config_does_not_have_is_none() -> None:
    assert KEYS.all_heads is None and PLAIN.fuse_dq is None and FUSED.fuse_dq == 1
    with pytest.raises(AttributeError, match="a config has no 'num_stage'"):
        _ = PLAIN.num_stage
