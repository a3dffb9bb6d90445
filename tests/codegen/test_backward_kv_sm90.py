"""The Hopper kernel for dK, dV and dQ: it walks the tiles that it must, and compiles offline with this Triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton
from covering import covering, two_of_three
from gallery import VARIANTS
from offline_compiler import Compile
from packaging.version import Version

from flashgen.analysis.facts import facts_of
from flashgen.codegen import default_of, generate, scheduled_kernels
from flashgen.codegen.kernels.backward_kv_sm90 import BackwardKvSm90View, backward_kv_sm90_view
from flashgen.codegen.loading import load_module
from flashgen.codegen.pairwise import make
from flashgen.runtime import Config, default_backward_kv_config
from flashgen.runtime.choosing import unfused
from flashgen.runtime.gpus import shared_limit
from flashgen.runtime.kernels.backward_kv_wide_sm90 import BACKWARD_KV_WIDE_SM90_KERNEL
from flashgen.runtime.kernels.kernel import Task
from flashgen.runtime.registry import kernel_of
from flashgen.spec import load
from flashgen.tuning.space import search_space

MASKS = {
    "below": "k <= q",
    "above": "k >= q",
    "window": "(k <= q) & (q - k < 37)",
    "both sides": "abs(q - k) <= 20",
    "prefix": "(k <= q) | (k < 45)",
    "ahead": "k <= q + 5",
    "nothing": "k > q + 1000",
}
# Some keys have no rows, which the ends of int32 say.
FAR_MASKS = {
    "from the last of int32": "(k <= q) & (q >= where(k % 50 == 7, 2147483647, 0))",
    "up to the first of int32": "(k <= q) & (q < where(k % 50 == 7, -2147483648, q_len))",
}
LENGTHS = [(1, 1), (64, 64), (150, 150), (150, 64), (40, 150), (129, 97), (16, 200)]
BM, BN = 16, 32
# Bytes a thread that may be spilled at head dimensions 64 and 128.
FEW_BYTES = {"full": 48, "causal": 56, "sliding_window": 112, "alibi": 152, "block_sparse": 216, "document": 240}
FEW_BYTES |= {"relative_bias": 272, "prefix_lm": 56, "softcap": 176}
# And where sequences are packed, which need more registers, so that fewer things wait in them: see `own_tile`.
FEW_PACKED = {"full": 16, "causal": 32, "sliding_window": 80, "alibi": 72, "block_sparse": 160, "document": 264}
FEW_PACKED |= {"relative_bias": 240, "prefix_lm": 64, "softcap": 224}
# And by any variant: the roles have fixed shares of the registers. At head_dim 64 it is up to 0.9 KB with Triton 3.6,
# where it was measured, and up to 1.2 KB with 3.9.
HOPPER_SPILLS = 1280
# Bytes a thread that the kernel for wide heads may spill; it was measured with Triton 3.6.
FEW_SPILLS = 16 if Version(triton.__version__) < Version("3.7") else 48


def variant_of(mask: str, align: str):
    return load({"name": "some", "description": "Some.", "mask": mask, "align": align})


def tiles(view: BackwardKvSm90View, col0: int, q_len: int, kv_len: int) -> Iterator[tuple[int, bool]]:
    """First query, and whether it counts as mixed, of each tile that the kernel walks for the keys from col0 on."""
    gl = SimpleNamespace(
        maximum=np.maximum, minimum=np.minimum, min=np.min, max=np.max, cdiv=lambda a, b: (a + (b - 1)) // b,
        where=lambda test, a, b: np.where(test, np.int32(a), np.int32(b)),
    )  # fmt: skip
    clip = lambda position: np.int32(np.clip(position, -(1 << 24), 1 << 24))  # noqa: E731
    sizes = {"col0": col0, "q_len": q_len, "kv_len": kv_len, "BM": BM, "BN": BN}
    sizes |= {"k_first": col0, "k_last": min(col0 + BN, kv_len) - 1}
    # Integers of 32 bits, which wrap, as a GPU's do.
    names = {"gl": gl, "clip": clip, **{name: np.array(size, np.int32) for name, size in sizes.items()}}
    names["k"] = np.minimum(col0 + np.arange(BN, dtype=np.int32), kv_len - 1)[:, None]
    exec("\n".join(view.queries.lines), names)  # noqa: S102 - the kernel's own lines, on numbers
    for i in range(int(names["num_tiles"])):
        exec("\n".join(view.queries.place), names | {"i": i}, placed := {})  # noqa: S102
        yield int(placed["start"]), i < names["num_mixed"]


@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
@pytest.mark.parametrize("mask", MASKS)
def test_all_that_is_seen_is_walked_once_and_what_is_not_masked_is_seen(mask: str, align: str) -> None:
    assert_walks_what_is_seen(MASKS[mask], align)


@pytest.mark.parametrize("mask", FAR_MASKS)
def test_limits_may_lie_at_the_ends_of_int32(mask: str) -> None:
    assert_walks_what_is_seen(FAR_MASKS[mask], "top_left")


def assert_walks_what_is_seen(mask: str, align: str) -> None:
    variant = variant_of(mask, align)
    view = backward_kv_sm90_view(facts_of(variant))
    for q_len, kv_len in LENGTHS:
        sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "q_len": q_len, "kv_len": kv_len, "head_dim": 16}
        rows, cols = torch.arange(q_len)[:, None], torch.arange(kv_len)[None, :]
        zero = torch.zeros((), dtype=torch.int64)
        seen = make(variant, sizes, {}).mask(zero, zero, rows, cols).expand(q_len, kv_len)
        for col0 in range(0, kv_len, BN):
            walked = list(tiles(view, col0, q_len, kv_len))
            starts = [start for start, _ in walked]
            assert len(set(starts)) == len(starts)
            assert all(start % BM == 0 and 0 <= start < q_len for start in starts)
            here = seen[:, col0 : col0 + BN]
            assert {int(row) // BM * BM for row in here.any(1).nonzero()} <= set(starts)
            for start, mixed in walked:
                whole = bool(here[start : start + BM].all()) and col0 + BN <= kv_len
                assert mixed or whole, (q_len, kv_len, col0, start)


def test_few_tiles_are_taken_for_mixed() -> None:
    view = backward_kv_sm90_view(facts_of(VARIANTS["causal"]))
    walked = [mixed for col0 in range(0, 1024, BN) for _, mixed in tiles(view, col0, 1024, 1024)]
    assert sum(walked) == 1024 // BN * (BN // BM)


def default(name: str, head_dim: int, v_head_dim: int) -> Config:
    return default_of(VARIANTS[name], "backward_kv")("sm_90", "bfloat16", head_dim, v_head_dim)


@pytest.mark.matrix
@pytest.mark.parametrize("name", two_of_three(list(VARIANTS), 1))
def test_a_variant_overlaps_its_products(name: str, tmp_path: Path, compiled: Compile) -> None:
    path = generate(VARIANTS[name], tmp_path)
    dims = [(64, 160), (40, 40), (128, 64), (64, 128), (256, 256), (192, 128), (128, 128), (64, 64)]
    configs = [default(name, dim, v_dim) for dim, v_dim in dims]
    assert all(config.backend == "hopper" for config in configs)
    # One in turn.
    turn = list(VARIANTS).index(name) % len(dims)
    found = compiled(path, "backward_kv", "sm_90", "float16", *dims[turn], configs[turn])
    assert found.error is None
    assert not found.serialized_wgmma
    assert found.spills <= (FEW_SPILLS if max(dims[turn]) > 128 else HOPPER_SPILLS)
    assert found.shared <= shared_limit("sm_90")


@pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="other versions have other assemblers")
@pytest.mark.parametrize(("few", "packed"), [(FEW_BYTES, False), (FEW_PACKED, True)], ids=["dense", "packed"])
@pytest.mark.parametrize("name", FEW_BYTES)
def test_few_registers_are_spilled(
    name: str, few: dict[str, int], packed: bool, tmp_path: Path, compiled: Compile
) -> None:
    path = generate(VARIANTS[name], tmp_path)
    for dim in (64, 128):
        config = default(name, dim, dim)
        found = compiled(
            path, "backward_kv", "sm_90", "bfloat16", dim, dim, config, False, (), False, False, {}, {}, packed
        )
        assert found.spills <= few[name]


def task_of(name: str, dims: tuple[int, int]) -> Task:
    scheduled = "backward_kv" in scheduled_kernels(VARIANTS[name])
    return Task("backward_kv", "sm_90", "bfloat16", *dims, 8192, 8192, scheduled)


def space_of(name: str, dims: tuple[int, int]) -> list[Config]:
    task = task_of(name, dims)
    space = [config for config in search_space(task).configs if config.backend == "hopper"]
    configs = list(dict.fromkeys(kernel_of("backward_kv", config).compiled(config) for config in space))
    assert {config.fuse_dq for config in configs} == ({0, 1, 2} if max(dims) <= 128 else {0})
    return configs


@pytest.mark.parametrize(("name", "fuse_dq"), [("causal", 2), ("softcap", 2), ("document", 1)])
@pytest.mark.parametrize("dims", [(64, 64), (128, 128)])
def test_dropout_wants_another_default(name: str, fuse_dq: int, dims: tuple[int, int]) -> None:
    """Bits are drawn beside the parts of dQ; the default of a schedule stays."""
    config = default_of(replace(VARIANTS[name], dropout=0.1), "backward_kv")("sm_90", "bfloat16", *dims)
    assert config.fuse_dq == fuse_dq
    assert config in space_of(name, dims)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "every"), [("causal", [(64, 64), (128, 128), (192, 128), (256, 256)]), ("document", [(64, 64)])]
)
def test_configs_with_all_that_the_space_has_fit(
    name: str, every: list[tuple[int, int]], tmp_path: Path, compiled: Compile
) -> None:
    path, scheduled = generate(VARIANTS[name], tmp_path), name == "document"
    for dims, config in covering([(each, config) for each in every for config in space_of(name, each)]):
        found = compiled(path, "backward_kv", "sm_90", "bfloat16", *dims, config)
        assert found.error is None
        assert not found.serialized_wgmma
        assert found.spills <= FEW_SPILLS or max(dims) <= 128 or scheduled
        bound = kernel_of("backward_kv", config).shared_bytes(config, task_of(name, dims))
        assert found.shared <= bound <= shared_limit("sm_90")


FOLDED = {
    "t[h]": (["heads"], "score - t[h] * abs(q - k)"),
    "t[clamp(q - k, -8, 8) + 8]": ([17], "score + t[clamp(q - k, -8, 8) + 8]"),
    "t[h, min(q // 64, 3)]": (["heads", 4, 4], "score + t[h, min(q // 64, 3), min(k // 64, 3)]"),
}
NOT_FOLDED = {
    "by query": (["kv_len"], "score + t[q]", {}),
    "by key": (["kv_len"], "score + t[k]", {}),
    "of each pair": (["kv_len", "kv_len"], "score + t[q, k]", {}),
    "of each distance": (["n"], "score + t[q - k + n // 2]", {}),
    "of all tiles with a schedule": (["heads"], "score + t[h]", {"mask": "q % 2 == k % 2"}),
    "with a slope of its own for each pair": (["heads"], "tanh(score) * t[h]", {}),
    "by the tile and by pair": ([17, "heads"], "score + t[clamp(q - k, -8, 8) + 8, h] + t[q % 17, h]", {}),
}


def learned_variant(shape, score: str, **more):
    inputs = {"t": {"shape": shape, "dtype": "float32", "grad": True}}
    return load({"name": "some", "inputs": inputs, "score": score, **more})


@pytest.mark.parametrize("name", FOLDED)
def test_sums_for_learned_inputs_that_take_an_addition_a_pair_are_its_own(name: str) -> None:
    learned = backward_kv_sm90_view(facts_of(learned_variant(*FOLDED[name]))).learned
    assert learned is not None
    assert learned.by_tile == (name != "t[h]")


@pytest.mark.parametrize(
    ("shape", "score", "is_uniform"),
    [
        ([17], "score + t[clamp(q - k, -8, 8) + 8]", True),
        (["heads", 4, 4], "score + t[h, min(q // 64, 3), min(k // 64, 3)]", True),
        (["heads"], "score - t[h] * abs(q - k)", False),
        (["kv_len", "kv_len"], "score + t[q, k]", False),
        (["n"], "score + t[q - k + n // 2]", False),
        ([17], "tanh(score + t[clamp(q - k, -8, 8) + 8])", False),
    ],
)
def test_what_whole_tiles_share_is_read_once_a_tile(shape, score: str, is_uniform: bool) -> None:
    view = backward_kv_sm90_view(facts_of(learned_variant(shape, score)))
    assert (view.uniform is not None) == is_uniform
    if view.uniform is not None:
        assert not {"q", "k"} & {*view.uniform.test.body.reads, *view.uniform.score.body.reads}


def test_uniform_tiles_may_read_positions_besides(tmp_path: Path, compiled: Compile) -> None:
    variant = learned_variant([17], "score + t[clamp(q - k, -8, 8) + 8] + abs(q - k) / 50")
    view = backward_kv_sm90_view(facts_of(variant))
    assert {"q", "rows"} <= view.tile_reads("uniform")
    config = default_backward_kv_config("sm_90", "bfloat16", 64, 64)
    found = compiled(generate(variant, tmp_path), "backward_kv", "sm_90", "bfloat16", 64, 64, config)
    assert found.error is None
    assert not found.serialized_wgmma


@pytest.mark.parametrize("name", NOT_FOLDED)
def test_other_sums_for_learned_inputs_are_not(name: str) -> None:
    shape, score, more = NOT_FOLDED[name]
    assert backward_kv_sm90_view(facts_of(learned_variant(shape, score, **more))).learned is None


@pytest.mark.parametrize(
    ("capability", "dtype", "head_dim", "v_head_dim"),
    [("sm_80", "bfloat16", 128, 128), ("sm_90", "float32", 64, 64), ("sm_80", "float16", 256, 256),
     ("sm_90", "float32", 192, 128), ("sm_90", "float16", 100, 128), ("sm_90", "float16", 256, 252),
     ("", "float16", 64, 64)],
)  # fmt: skip
def test_what_it_does_not_serve_goes_to_the_portable_kernel(
    capability: str, dtype: str, head_dim: int, v_head_dim: int
) -> None:
    assert default_backward_kv_config(capability, dtype, head_dim, v_head_dim).backend == "portable"


@pytest.mark.parametrize(("head_dim", "v_head_dim"), [(256, 256), (192, 128), (64, 136)])
def test_wide_heads_have_a_kernel_that_leaves_dq_alone(head_dim: int, v_head_dim: int) -> None:
    config = default_backward_kv_config("sm_90", "bfloat16", head_dim, v_head_dim)
    assert (config.backend, config.BN, config.fuse_dq) == ("hopper", 64, 0)
    assert kernel_of("backward_kv", config) is BACKWARD_KV_WIDE_SM90_KERNEL
    refused = BACKWARD_KV_WIDE_SM90_KERNEL.refuses("sm_90", "bfloat16", 128, 128)
    assert refused == "BN is 64; expected 128 for head dimensions up to 128"


def test_programs_take_tiles_of_keys_in_turn_by_a_schedule_or_where_the_variant_leaves_registers(
    tmp_path: Path,
) -> None:
    persistent = {name for name, variant in VARIANTS.items() if backward_kv_sm90_view(facts_of(variant)).persistent}
    by_schedule = {"document", "block_sparse", "dilated", "global_window"}
    assert persistent == {"full", "causal", "sink", "alibi", "sliding_window", *by_schedule}
    for name in ("causal", "prefix_lm"):
        kernel = load_module(generate(VARIANTS[name], tmp_path))._backward_kv_sm90
        assert ("counter_ptr" in kernel.arg_names) == (name in persistent)


@pytest.mark.parametrize(
    ("inputs", "score", "persistent"),
    [({}, "score + q * k % 7", False), ({}, "score - (q - k) / 50", True), ({"t": ["heads"]}, "score * t[h]", True),
     ({"t": ["kv_len"]}, "score + t[k]", False), ({"t": ["q_len"]}, "score + t[q]", False),
     ({"t": ["heads"]}, "tanh(score) * t[h]", False)],
)  # fmt: skip
def test_what_a_pair_reads_takes_the_registers_of_a_loop_over_tiles(inputs, score: str, persistent: bool) -> None:
    tensors = {name: {"shape": shape, "dtype": "float32"} for name, shape in inputs.items()}
    variant = load({"name": "some", "causal": True, "inputs": tensors, "score": score})
    assert backward_kv_sm90_view(facts_of(variant)).persistent == persistent


def test_dq_of_a_tile_waits_but_where_all_there_is_is_a_mask_of_positions() -> None:
    waits = {name for name in VARIANTS if default(name, 128, 128).delay_dq}
    assert {*VARIANTS} - waits == {"causal", "sink", "sliding_window"}
    scheduled = {name for name in VARIANTS if "backward_kv" in scheduled_kernels(VARIANTS[name])}
    assert {name for name in VARIANTS if not default(name, 64, 64).delay_dq} == {*scheduled, "relative_bias"}


def test_v_stays_in_registers_where_closed_limits_leave_them_and_dq_is_made_elsewhere(
    tmp_path: Path, compiled: Compile
) -> None:
    holding = {name for name, variant in VARIANTS.items() if backward_kv_sm90_view(facts_of(variant)).holds_v}
    assert holding == {"causal", "sink", "alibi", "sliding_window"}
    config = unfused(default("alibi", 64, 64))
    assert (config.fuse_dq, config.delay_dq, config.num_stages) == (0, 0, 3)
    found = compiled(generate(VARIANTS["alibi"], tmp_path), "backward_kv", "sm_90", "bfloat16", 64, 64, config)
    assert found.error is None
    assert not found.serialized_wgmma
    assert found.shared <= shared_limit("sm_90")


def test_what_leaves_dq_to_another_kernel_is_else_the_same_but_for_a_stage_that_there_is_room_for() -> None:
    portable, wide = Config(64, 64, 4, 3, fuse_dq=1), Config(64, 64, 4, 2, "hopper", fuse_dq=0, delay_dq=0)
    assert unfused(portable) == Config(64, 64, 4, 3, fuse_dq=0)
    assert unfused(wide) == wide
    long = Config(64, 128, 4, 2, "hopper", fuse_dq=2, delay_dq=1, all_heads=1)
    assert unfused(long) == Config(64, 128, 4, 2, "hopper", fuse_dq=0, delay_dq=0, all_heads=1)
