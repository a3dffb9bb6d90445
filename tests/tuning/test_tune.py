"""The whole of tuning as the command calls it, with a pretended GPU where there is none."""

import warnings
from dataclasses import replace

import pytest
import torch
from fake_tools import DEVICE, FakeTools

from flashgen import spec
from flashgen.codegen import generate, load_module
from flashgen.errors import EnvironmentProblem, FlashgenError, TuningFailed, UsageError
from flashgen.runtime.defaults import default_config, default_plain_config
from flashgen.tuning import machine
from flashgen.tuning import tune as tuning
from flashgen.tuning.session import Session
from flashgen.tuning.tune import tune

SPEC = {
    "name": "tuned_causal",
    "causal": True,
    "head_dim": [64, 128],
    "tune": {"shapes": [{"batch": 1, "heads": 8, "q_len": 1024}, {"batch": 2, "heads": 8, "q_len": 4096}]},
}


@pytest.fixture
def built(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    variant = spec.load(SPEC)
    return variant, generate(variant, tmp_path / "generated")


class PretendedMachine(FakeTools):
    started = 0

    def __init__(self, *_):
        super().__init__(**self.trouble)
        PretendedMachine.started += 1
        PretendedMachine.last = self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr(machine, "gpus_at_hand", lambda indices: ([0], DEVICE))
    monkeypatch.setattr(tuning, "Host", PretendedMachine)
    monkeypatch.setattr(PretendedMachine, "trouble", {}, raising=False)
    return PretendedMachine


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_so_and_what_to_do(built):
    with pytest.raises(EnvironmentProblem, match=r"no GPU that torch can use.*flashgen tune"):
        tune(*built)


def test_every_kernel_dtype_head_dim_and_shape_is_tuned_and_then_found(built, pretended):
    steps = []
    outcomes = tune(*built, preset="quick", progress=steps.append)
    count = 3 * 2 * 2 * 2
    assert len({o.workload.key for o in outcomes}) == len(outcomes) == count
    assert {o.status for o in outcomes} == {"tuned"}
    assert steps[-1].workload == steps[-1].workloads == count and "best" in str(steps[-1])
    again = tune(*built)
    assert {o.status for o in again} == {"found"} and pretended.last.timed == []
    assert [o.record for o in again] == [o.record for o in outcomes]


def test_what_won_elsewhere_is_looked_at_again_once_all_is_searched(built, pretended, monkeypatch):
    told, seen = [], []

    def look_again(session, outcome):
        seen.append(outcome)
        return replace(outcome, seconds=99.0) if len(seen) == 1 else outcome

    monkeypatch.setattr(Session, "look_again", look_again)
    outcomes = tune(*built, preset="quick", done=told.append)
    assert seen == told[:-1] and len(seen) == len(outcomes)
    assert told[-1] == outcomes[0] and [each.seconds == 99.0 for each in outcomes] == [True] + [False] * (len(seen) - 1)


def test_the_module_answers_from_the_records(built, pretended):
    variant, path = built
    tune(variant, path, preset="quick")
    module = load_module(path)
    lookups = module.VARIANT.configs
    for outcome in tune(variant, path):
        key = outcome.workload.key
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            choice = lookups[key.kernel].find(DEVICE, key.dtype, key.head_dim, key.v_head_dim, key.bucket)
        assert (choice.config, choice.source) == (outcome.record.config, "user cache")


def test_shapes_and_dtypes_can_be_chosen(built, pretended):
    variant, path = built
    shape = replace(variant.tune_shapes[0], head_dim=96)
    forward, *backward = tune(variant, path, shapes=[shape], dtypes=["float32"], preset="quick")
    assert [outcome.workload.key.kernel for outcome in backward] == ["backward_q", "backward_kv"]
    for outcome in (forward, *backward):
        assert (outcome.workload.problem.head_dim, outcome.workload.problem.dtype) == (96, "float32")


def test_kernels_can_be_chosen(built, pretended):
    variant, path = built
    outcomes = tune(variant, path, kernels=["forward"], dtypes=["float16"], preset="quick")
    assert {outcome.workload.key.kernel for outcome in outcomes} == {"forward"}


def test_a_workload_without_a_config_that_runs_is_an_error_that_counts_why(built, pretended, monkeypatch):
    monkeypatch.setattr(PretendedMachine, "trouble", {"fails": {"all": "crashed"}})
    with pytest.raises(TuningFailed, match=r"no config worked; 8 tried, 8 failed \(crashed 8\)"):
        tune(*built, preset="quick")


def test_a_variant_without_a_mask_begins_with_its_own_default(tmp_path, monkeypatch, pretended):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    variant = spec.load({"name": "tuned_full", "head_dim": [64]})
    tune(variant, generate(variant, tmp_path), kernels=["forward"], dtypes=["bfloat16"], preset="quick")
    assert pretended.last.timed[0][1] == default_plain_config("sm_90", "bfloat16", 64, 64)
    assert default_plain_config("sm_90", "bfloat16", 64, 64) != default_config("sm_90", "bfloat16", 64, 64)


@pytest.mark.parametrize("storage", ["", "study.log", "sqlite:////nowhere/study.db", "postgresql://user@127.0.0.1:1/x"])
def test_a_storage_that_cannot_be_used_is_named_before_anything_is_compiled(built, pretended, storage):
    with pytest.raises(FlashgenError, match=r"--storage|cannot be used|driver"):
        tune(*built, preset="quick", storage=storage)
    assert pretended.last.begun == pretended.last.compiled == []


def test_an_unknown_preset_is_refused_before_anything_runs(built, pretended):
    before = PretendedMachine.started
    with pytest.raises(UsageError, match="quick, default, full"):
        tune(*built, preset="huge")
    assert PretendedMachine.started == before
