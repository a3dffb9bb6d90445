"""The Hopper forward compiles offline with this Triton: it keeps its registers, and its matrix products overlap."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import triton
from covering import covering, two_of_three
from gallery import VARIANTS
from offline_compiler import Compile
from packages import files_of, whole

from flashgen.analysis.facts import facts_of
from flashgen.codegen import default_of, generate, render
from flashgen.codegen.kernels.forward import forward_view
from flashgen.codegen.kernels.forward_sm90 import ForwardSm90View, forward_sm90_view
from flashgen.runtime import Config, default_config
from flashgen.runtime.device.sm90.forward_steps import ForwardShape
from flashgen.runtime.gpus import shared_limit
from flashgen.runtime.kernels.forward_sm90 import FORWARD_SM90_KERNEL, value_width
from flashgen.runtime.kernels.kernel import Task
from flashgen.runtime.kernels.sm90 import product_width
from flashgen.spec import load
from flashgen.spec.variant import Variant
from flashgen.tuning.space import search_space

# Bytes a thread for registers that wait for the roles to part, or for a tile of queries to end, with Triton 3.6; masks
# and scores that gather need more. At 256 the output takes half of all registers while the next tile begins. Newer
# Tritons spill more: with three consumers, and what the producer remembers of V.
FEW, FEW_AT_256, FEW_ON_NEWER = 32, 64, 672
OLDEST = triton.__version__.startswith("3.6.")


def view_of(variant: Variant) -> ForwardSm90View:
    facts = facts_of(variant)
    return forward_sm90_view(facts, forward_view(facts).functions)


def default(name: str, head_dim: int, v_head_dim: int = 0) -> Config:
    return default_of(VARIANTS[name], "forward")("sm_90", "bfloat16", head_dim, v_head_dim or head_dim)


@pytest.mark.parametrize(("name", "dim"), [("full", 128), ("causal", 64), ("sliding_window", 256)])
def test_a_simple_variant_keeps_its_registers(name: str, dim: int, tmp_path: Path, compiled: Compile) -> None:
    path = generate(VARIANTS[name], tmp_path)
    found = compiled(path, "forward", "sm_90", "bfloat16", dim, dim, default(name, dim))
    assert found.error is None
    assert not found.serialized_wgmma
    few = FEW_AT_256 if dim == 256 else FEW
    assert found.spills <= (few if OLDEST else FEW_ON_NEWER)
    assert found.shared <= shared_limit("sm_90")


@pytest.mark.parametrize("name", ["causal", "relative_bias", "sink"])
def test_the_largest_logits_take_no_more_registers(name: str, tmp_path: Path, compiled: Compile) -> None:
    path, few = generate(VARIANTS[name], tmp_path), 16
    job = ("forward", "sm_90", "bfloat16", 128, 128, default(name, 128), False, (), False)
    without, found = (compiled(path, *job, largest) for largest in (False, True))
    assert found.error is None and not found.serialized_wgmma
    assert found.spills <= without.spills + few
    assert found.shared <= shared_limit("sm_90")


def test_q_stays_in_registers_for_full_tiles_of_two_consumers_at_64(tmp_path: Path, compiled: Compile) -> None:
    holding = {name for name, variant in VARIANTS.items() if view_of(variant).holds_q}
    assert holding == {*VARIANTS} - {"full", "relative_bias"}
    path = generate(VARIANTS["alibi"], tmp_path)
    for dim in (16, 64):
        found = compiled(path, "forward", "sm_90", "bfloat16", dim, dim, Config(128, 128, 4, 3, "hopper", ping_pong=1))
        assert found.error is None
        assert not found.serialized_wgmma
        assert found.spills <= (FEW if OLDEST else FEW_ON_NEWER)


def test_a_softcap_is_multiplied_by_its_cap_where_the_maximum_is_subtracted() -> None:
    factors = {name: view_of(variant).factor for name, variant in VARIANTS.items()}
    assert {name: float(factor) for name, factor in factors.items() if factor} == {
        "softcap": pytest.approx(30 * math.log2(math.e)),
        "gemma2": pytest.approx(50 * math.log2(math.e)),
    }


@pytest.mark.matrix
@pytest.mark.parametrize("name", two_of_three(list(VARIANTS), 0))
def test_a_variant_overlaps_its_products(name: str, tmp_path: Path, compiled: Compile) -> None:
    path = generate(VARIANTS[name], tmp_path)
    dims = [(40, 40), (64, 64), (96, 96), (128, 128), (192, 192), (256, 256), (192, 128)]
    # One in turn.
    dim, v_dim = dims[list(VARIANTS).index(name) % len(dims)]
    found = compiled(path, "forward", "sm_90", "float16", dim, v_dim, default(name, dim, v_dim))
    assert found.error is None
    assert not found.serialized_wgmma
    assert found.shared <= shared_limit("sm_90")


@pytest.mark.matrix
def test_configs_with_all_that_the_space_has_compile(tmp_path: Path, compiled: Compile) -> None:
    path = generate(VARIANTS["causal"], tmp_path)
    tasks = {(dim, dim): Task("forward", "sm_90", "bfloat16", dim, dim, 8192, 8192) for dim in (64, 128, 256)}
    spaces = {dims: search_space(task).configs for dims, task in tasks.items()}
    hopper = {dims: [config for config in space if config.backend == "hopper"] for dims, space in spaces.items()}
    assert all(hopper.values())
    for dims, config in covering([(dims, config) for dims, configs in hopper.items() for config in configs]):
        found = compiled(path, "forward", "sm_90", "bfloat16", *dims, config)
        assert found.error is None, config
        assert not found.serialized_wgmma, config
        # Tuning drops three consumers where they spill more.
        few = FEW_AT_256 if max(dims) == 256 else FEW
        assert config.BM == 192 or found.spills <= (few if OLDEST else FEW_ON_NEWER), config
        assert found.shared <= FORWARD_SM90_KERNEL.shared_bytes(config, tasks[dims]), config


def test_v_takes_the_place_of_its_k_where_128_keys_fit_so_alone(tmp_path: Path, compiled: Compile) -> None:
    path = generate(VARIANTS["causal"], tmp_path)
    config = default("causal", 192)
    assert (config.BN, config.num_stages) == (128, 3)
    found = compiled(path, "forward", "sm_90", "bfloat16", 192, 192, config)
    task = Task("forward", "sm_90", "bfloat16", 192, 192, 8192, 8192)
    assert found.error is None
    assert not found.serialized_wgmma
    assert found.shared <= FORWARD_SM90_KERNEL.shared_bytes(config, task) <= shared_limit("sm_90")


@pytest.mark.parametrize("stages", [1, 2, 4, 5, 9])
def test_no_two_places_have_the_same_named_barrier(stages: int) -> None:
    shape = ForwardShape(128, 64, 64, 64, stages, 2, 1, False, 0)
    places = [named.value + stage for named in (shape.K_NAMED, shape.V_NAMED) if named.value for stage in range(stages)]
    assert len(set(places)) == len(places)
    assert set(places) <= set(range(8, 16))
    assert bool(places) == (stages <= 4)


@pytest.mark.parametrize(
    ("dims", "widest"), [((128, 128), 128), ((160, 160), 128), ((192, 192), 128), ((192, 128), 64), ((256, 256), 64)]
)
def test_how_many_keys_a_tile_has_at_most(dims: tuple[int, int], widest: int) -> None:
    space = search_space(Task("forward", "sm_90", "bfloat16", *dims, 8192, 8192)).configs
    assert max(config.BN for config in space if config.backend == "hopper") == widest
    assert widest == default_of(VARIANTS["causal"], "forward")("sm_90", "bfloat16", *dims).BN


def test_a_score_may_read_a_tensor_along_keys_alone(tmp_path: Path, compiled: Compile) -> None:
    table = {"shape": ["heads", "kv_len"], "dtype": "float32"}
    variant = load({"name": "along", "causal": True, "inputs": {"t": table}, "score": "score + t[h, k]"})
    config = default_config("sm_90", "bfloat16", 64, 64)
    found = compiled(generate(variant, tmp_path), "forward", "sm_90", "bfloat16", 64, 64, config)
    assert found.error is None
    assert not found.serialized_wgmma


def test_the_keys_of_a_tile_may_depend_on_each_of_its_rows(tmp_path: Path, compiled: Compile) -> None:
    variant = load({"name": "rows", "mask": "(k <= q) & (q > 5)"})
    config = default_config("sm_90", "bfloat16", 64, 64)
    assert compiled(generate(variant, tmp_path), "forward", "sm_90", "bfloat16", 64, 64, config).error is None


def test_a_mask_and_a_score_may_read_the_same_keys(tmp_path: Path, compiled: Compile) -> None:
    inputs = {
        "kind": {"shape": ["batch", "kv_len"], "dtype": "int32"},
        "t": {"shape": ["heads", 4], "dtype": "float32", "grad": True},
    }
    spec = {"name": "kinds", "causal": True, "inputs": inputs, "score": "score + t[h, kind[b, k]]"}
    variant = load({**spec, "mask": "kind[b, k] < 3"})
    config = default_config("sm_90", "bfloat16", 64, 64)
    assert compiled(generate(variant, tmp_path), "forward", "sm_90", "bfloat16", 64, 64, config).error is None


@pytest.mark.parametrize(
    ("dim", "width"),
    [(1, 16), (16, 16), (40, 64), (64, 64), (65, 80), (80, 80), (96, 96), (100, 128), (192, 192), (200, 256)],
)  # fmt: skip
def test_how_wide_products_are(dim: int, width: int) -> None:
    assert product_width(dim) == width


@pytest.mark.parametrize(("dim", "width"), [(1, 16), (64, 64), (72, 128), (96, 128), (144, 144), (192, 192)])
def test_how_wide_products_with_v_are(dim: int, width: int) -> None:
    assert value_width(dim) == width


def test_three_consumers_are_for_plain_scores_of_long_rows() -> None:
    for name in VARIANTS:
        plain = name in ("full", "causal", "sink", "prefix_lm")
        assert (192 if plain else 128) == default(name, 64).BM, name
        assert default(name, 128).BM == 128


def test_a_mask_that_reads_each_key_has_narrower_tiles() -> None:
    assert {name for name in VARIANTS if default(name, 128).BN == 64} == {"document", "global_window"}


def test_what_a_score_gains_from_key_to_key_goes_into_the_products(tmp_path: Path, compiled: Compile) -> None:
    spec = {"name": "affine", "params": {"s": {"value": 0.1, "runtime": True}}, "score": "score + s * (k - 2 * q) - k"}
    path = generate(load(spec), tmp_path)
    # One quotient of the whole sum.
    assert "per_key = (s__scaled + -1.4426950408889634) / qk_scale" in whole(files_of(path))
    found = compiled(path, "forward", "sm_90", "bfloat16", 128, 128, default("causal", 128))
    assert found.error is None
    assert not found.serialized_wgmma


TABLE = {"t": {"shape": ["heads", 17], "dtype": "float32"}}
NEAR = "t[h, clamp(q - k, -8, 8) + 8]"


@pytest.mark.parametrize(
    ("score", "reads", "spread"),
    [
        (f"score + {NEAR}", {"qk"}, False),
        (f"score + {NEAR} * abs(q - k)", {"qk", "q", "k"}, False),
        (NEAR, set(), True),
        (f"tanh(score + {NEAR})", {"qk"}, False),
    ],
)
def test_tiles_that_read_at_one_place_have_a_score_of_their_own(score: str, reads: set[str], spread: bool) -> None:
    view = view_of(load({"name": "read", "inputs": TABLE, "score": score, "causal": True}))
    assert view.uniform is not None and view.uniform_test is not None
    assert reads == {"qk", "q", "k"} & {*view.uniform.score.body.reads}
    assert view.reads_k("uniform") == ("k" in reads)
    assert view.logits_of("uniform").startswith("gl.zeros") == spread
    assert {"q_first", "q_last", "kv_len", "num_tiles"} <= {*view.uniform_test.names}


def test_they_have_no_loop_of_their_own_where_they_are_few() -> None:
    """Most tiles of a narrow window are mixed or near the diagonal: both loops together would take longer."""
    windows = {width: {"left": width - 1, "right": 0} for width in (256, 1024)}
    spec = {"name": "read", "inputs": TABLE, "score": f"score + {NEAR}"}
    assert view_of(load({**spec, "window": windows[256]})).uniform is None
    assert view_of(load({**spec, "window": windows[1024]})).uniform is not None


def test_they_keep_registers_and_overlap(tmp_path: Path, compiled: Compile) -> None:
    path = generate(VARIANTS["relative_bias"], tmp_path)
    found = compiled(path, "forward", "sm_90", "bfloat16", 64, 64, Config(192, 64, 4, 4, "hopper", ping_pong=1))
    assert found.error is None
    assert not found.serialized_wgmma
    assert found.spills <= (FEW if OLDEST else FEW_ON_NEWER)


@pytest.mark.parametrize("kernel", ["forward", "backward_q", "backward_kv"])
def test_a_table_alone_is_a_whole_tile_of_scores(kernel: str, tmp_path: Path, compiled: Compile) -> None:
    variant = load({"name": "alone", "inputs": {"t": {**TABLE["t"], "grad": True}}, "score": NEAR})
    config = default_of(variant, kernel)("sm_90", "bfloat16", 64, 64)
    assert config.backend == "hopper"
    assert compiled(generate(variant, tmp_path), kernel, "sm_90", "bfloat16", 64, 64, config).error is None


@pytest.mark.parametrize("name", VARIANTS)
def test_programs_wait_for_their_next_tile_where_tiles_differ_in_length(name: str) -> None:
    view = view_of(VARIANTS[name])
    assert view.uneven == (name not in ("full", "relative_bias", "sliding_window", "gemma2"))


def test_tanh_comes_from_the_gpu_unless_the_spec_says_no() -> None:
    spec = {"name": "capped", "softcap": 30.0}
    assert "tanh_approx(" in whole(render(load(spec)))
    assert "tanh_approx(" not in whole(render(load({**spec, "approximate": False})))


def test_what_hopper_does_not_serve_goes_to_the_portable_kernel() -> None:
    assert default_config("sm_90", "bfloat16", 128, 128).backend == "hopper"
    for capability, dtype, v_head_dim in (
        ("sm_80", "bfloat16", 128), ("sm_100", "bfloat16", 128), ("", "bfloat16", 128), ("sm_90", "float32", 128),
        ("sm_90", "bfloat16", 100),
    ):  # fmt: skip
        assert default_config(capability, dtype, 128, v_head_dim).backend == "portable"
        space = search_space(Task("forward", capability, dtype, 128, v_head_dim, 8192, 8192)).configs
        assert {config.backend for config in space} == {"portable"}
