"""Tuning for serving: what is measured, proven and recorded of decode kernels, and that calls find it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fake_tools import DEVICE
from gallery import VARIANTS
from test_tune import PretendedMachine, pretended  # noqa: F401 - a fixture

from flashgen.codegen import generate, load_module
from flashgen.errors import SpecError, UsageError
from flashgen.problems.calls import make_inputs
from flashgen.problems.paged import make_batch, make_paged
from flashgen.problems.problem import Problem
from flashgen.runtime import Config, choosing, planning_paged
from flashgen.runtime.kernels.kernel import Task
from flashgen.runtime.paged import PagedArguments, PagedTensors, prepare_paged
from flashgen.runtime.records import Bucket
from flashgen.spec import load
from flashgen.tuning.launches import Launches, PagedLaunches
from flashgen.tuning.prune import CompileRequest
from flashgen.tuning.space import search_space
from flashgen.tuning.tune import tune
from flashgen.tuning.worker import Worker
from flashgen.tuning.workloads import bucket_of, problems
from flashgen.verify import verify_config

CAUSAL = VARIANTS["causal"]
DECODE = {"mode": "decode", "batch": 16, "heads": 8, "kv_heads": 2, "kv_len": 4096}
PAGED = {"mode": "paged", "batch": 16, "heads": 8, "kv_heads": 2, "kv_len": 4096, "block_size": 32}
SPEC = {
    "name": "served",
    "causal": True,
    "dtype": "bfloat16",
    "head_dim": 64,
    "tune": {"shapes": [{"batch": 1, "heads": 8, "q_len": 1024}, DECODE, PAGED, {**PAGED, "cache": "int8"}]},
}
SMALL = Problem(2, 4, 2, 1, 300, 32, 32, "float32", "decode")
SMALL_PAGED = Problem(2, 4, 2, 3, 100, 32, 32, "float32", "paged", 16)
OTHER = Config(32, 32, 4, 1)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    return generate(load(SPEC), tmp_path / "generated")


def test_a_shape_says_its_mode() -> None:
    dense, decode, paged, int8 = problems(load(SPEC))
    assert (dense.mode, decode.mode, paged.mode) == ("dense", "decode", "paged")
    assert (decode.q_len, paged.block_size, int8.cache) == (1, 32, "int8")
    assert str(bucket_of(int8)) == "bh128-g4-q1-k4096-p32-int8"
    assert Bucket.parse(str(bucket_of(int8))) == bucket_of(int8)
    assert bucket_of(int8).distance(bucket_of(paged)) > 1
    usual = problems(CAUSAL, dtypes=["bfloat16"], modes=["decode", "paged"])
    assert {(p.batch, p.kv_len) for p in usual} == {(1, 131072), (16, 8192), (64, 4096)}
    assert {p.mode for p in problems(load(SPEC), modes=["paged"])} == {"paged"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_len": None}, "expected kv_len, as mode decode needs it"),
        ({"q_len": 17}, "q_len: 17; expected 1 to 16 with mode decode"),
        ({"block_size": 16}, "block_size: 16; expected batch, .* with mode decode"),
        ({"mode": "paged", "block_size": 20}, "block_size: 20; expected a multiple of 16"),
        ({"mode": "pages"}, "mode: 'pages'; expected dense or decode or paged"),
        ({"mode": "paged", "cache": "float16"}, "cache: 'float16'; expected float8_e4m3fn"),
    ],
)
def test_a_shape_that_does_not_fit_its_mode_is_refused(change: dict[str, object], message: str) -> None:
    shape = {name: value for name, value in {**DECODE, **change}.items() if value is not None}
    with pytest.raises(SpecError, match=message):
        load({**SPEC, "tune": {"shapes": [shape]}})


@pytest.mark.usefixtures("pretended")
def test_what_a_spec_names_is_tuned_and_found(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = tune(load(SPEC), built, preset="quick")
    kernels = [outcome.workload.key.kernel for outcome in outcomes]
    assert sorted(kernels) == ["backward_kv", "backward_q", "decode", "decode_paged", "decode_paged", "forward"]
    assert {outcome.status for outcome in tune(load(SPEC), built)} == {"found"}
    configs = load_module(built).VARIANT.configs
    for outcome in outcomes:
        key = outcome.workload.key
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = configs[key.kernel].find(DEVICE, key.dtype, key.head_dim, key.v_head_dim, key.bucket)
        assert (found.config, found.source) == (outcome.record.config, "user cache")
    elsewhere = Bucket.of(64, 4, 1, 8192, 16)
    with pytest.warns(UserWarning, match="using the one for bh128-g4-q1-k4096-p32 on"):
        near = configs["decode_paged"].find(DEVICE, "bfloat16", 64, 64, elsewhere)
    assert near.source == "nearest"


@pytest.mark.usefixtures("pretended")
def test_a_mode_can_be_chosen(built: Path) -> None:
    (outcome,) = tune(load(SPEC), built, modes=["decode"], preset="quick")
    assert outcome.workload.key.kernel == "decode"
    assert {problem.mode for problem, _ in PretendedMachine.last.timed} == {"decode"}


def test_configs_that_launch_alike_are_tried_once() -> None:
    task = Task("decode", "sm_90", "bfloat16", 128, 128, 1, 8192, group=4)
    assert {config.BM for config in search_space(task).configs} == {64}
    many = Task("decode_paged", "sm_90", "bfloat16", 128, 128, 16, 8192, group=8)
    assert {config.BM for config in search_space(many).configs} == {32, 64, 128}


def test_a_paged_call_asks_for_its_bucket(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU by sizes and the cache; where bits are not to depend on the batch it asks for none."""
    asked: list[tuple[object, ...]] = []

    class Asked:
        kernel = "decode_paged"

        def default(self, *sizes: object) -> Config:
            return OTHER

        def __call__(self, *sizes: object) -> choosing.Choice:
            asked.append(sizes)
            return choosing.Choice(Config(64, 64, 4, 2), "shipped", "")

    batch = make_batch((100, 30), (2, 1), block_size=32, cache=torch.int8, scales="head")
    tensors = PagedTensors(*batch.arguments, batch.cu_seqlens_q, *batch.scales.values())
    call = prepare_paged(PagedArguments(tensors, 2, None, None))
    assert choosing.choose_paged(None, Asked(), call, False) == OTHER
    assert choosing.choose_paged("BM=16 BN=32 num_warps=4 num_stages=2", Asked(), call, False).BM == 16

    class OnGpu:
        is_cuda, device, dtype = True, torch.device("cuda", 0), torch.float32

        def get_device(self) -> int:
            return 0

    monkeypatch.setattr(choosing, "current_device", lambda index: DEVICE)
    there = call._replace(tensors=call.tensors._replace(q=OnGpu()))
    configs = Asked()
    assert [choosing.choose_paged(None, configs, there, False).BM for _ in range(2)] == [64, 64]
    assert asked == [(0, torch.float32, 16, 16, 8, 2, 2, 160, 32, "int8")]
    assert choosing.choose_paged(None, configs, there, True) == OTHER


def test_each_is_proven_in_a_config(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("causal")
    for problem, kernel in ((SMALL, "decode"), (SMALL_PAGED, "decode_paged")):
        result = verify_config(module, CAUSAL, problem, OTHER, "cpu", kernel)
        assert result.ok, result


def test_what_is_launched_is_the_kernel_in_that_config(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("causal")
    call = make_inputs(CAUSAL, SMALL)
    found = Launches(module, CAUSAL, call).results("decode", OTHER, OTHER)
    wanted = module.attention(call.q, call.k, call.v, return_lse=True)
    torch.testing.assert_close(found["out"].tensor, wanted[0])
    torch.testing.assert_close(found["lse"].tensor, wanted[1])
    paged = make_paged(CAUSAL, SMALL_PAGED, "cpu")
    found = PagedLaunches(module, CAUSAL, paged).results("decode_paged", OTHER, OTHER)
    wanted = module.attention_paged(*paged.batch.arguments, **paged.batch.options, return_lse=True)
    torch.testing.assert_close(found["out"].tensor, wanted[0])


@pytest.fixture
def by_widths(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """How many programs run at once depends on the widths of tiles, as it does on a GPU."""
    monkeypatch.setattr(planning_paged, "programs_at_once", lambda gpu, config, widths, *sizes: sum(widths))
    planning_paged._shape.cache_clear()
    yield
    planning_paged._shape.cache_clear()


@pytest.mark.usefixtures("by_widths")
def test_a_plan_is_made_for_the_width_of_values(gallery_module: Callable[[str], ModuleType]) -> None:
    module, problem = gallery_module("causal"), replace(SMALL_PAGED, v_head_dim=64)
    batch = make_paged(CAUSAL, problem, "cpu").batch
    given, told = batch.planning
    for narrow in (None, 32):
        plan = module.plan_paged(*given, **{**told, "v_head_dim": narrow})
        with pytest.raises(ValueError, match=r"as plan_paged makes it for .* this v_head_dim"):
            module.attention_paged(*batch.arguments, **batch.options, plan=plan)
    wanted = module.attention_paged(*batch.arguments, **batch.options)
    found = PagedLaunches(module, CAUSAL, make_paged(CAUSAL, problem, "cpu")).results("decode_paged", OTHER, OTHER)
    torch.testing.assert_close(found["out"].tensor, wanted)
    assert verify_config(module, CAUSAL, problem, OTHER, "cpu", "decode_paged").ok


@pytest.mark.parametrize("cache", ["", "int8"])
def test_each_is_compiled_before_a_launch(built: Path, cache: str) -> None:
    config = Config(64, 32, 4, 2)
    problem = Problem(16, 8, 2, 2, 4096, 64, 64, "bfloat16", "paged", 32, cache)
    with Worker("flashgen.tuning.compiler:compiler", str(built), load(SPEC)) as worker:
        for kernel in ("decode_paged",) if cache else ("decode", "decode_paged"):
            found = worker.ask(CompileRequest(kernel, problem, config, "sm_90"), 120.0)
            assert found.error is None, (kernel, found.error)
            assert found.registers and found.shared


def test_shapes_on_the_command_line() -> None:
    from flashgen.cli.shapes import chosen_modes, parse_shape

    shape = parse_shape("batch=4,heads=8,kv_heads=2,kv_len=900,block_size=32,cache=int8", "paged")
    assert (shape.q_len, shape.block_size, shape.cache, shape.mode) == (1, 32, "int8", "paged")
    with pytest.raises(UsageError, match="kv_len not found; expected batch, heads, kv_len at least"):
        parse_shape("batch=4,heads=8", "decode")
    with pytest.raises(UsageError, match="found block_size; expected batch"):
        parse_shape("batch=4,heads=8,kv_len=600,block_size=16", "decode")
    with pytest.raises(UsageError, match="--mode 'pages'; expected one of dense, decode, paged"):
        chosen_modes(["pages"])
