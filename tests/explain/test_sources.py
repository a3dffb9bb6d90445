"""Why a config is used, and why nothing better was."""

import re
from dataclasses import replace

import pytest
import torch

from flashgen import spec
from flashgen.cli.shapes import parse_shape
from flashgen.codegen import default_of
from flashgen.errors import EnvironmentProblem
from flashgen.explain.configs import used_configs
from flashgen.explain.sources import device_named, traced
from flashgen.runtime.config import Config
from flashgen.runtime.record_files import RecordWarning
from flashgen.runtime.record_folders import shipped_in, user_root
from flashgen.runtime.records import Record
from flashgen.runtime.registry import FAMILIES
from flashgen.tuning.cache import write_record
from flashgen.tuning.workloads import problems

CONFIG = Config(128, 64, 8, 3)
H200 = device_named("NVIDIA H200", "sm_90")


SPEC = {"name": "traced", "causal": True}


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """What is said of one problem of a variant, where the records are in a folder of the test."""
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    variant = spec.load(SPEC)
    asked = problems(variant, [parse_shape("batch=2,heads=16,q_len=8192,head_dim=128")], ["bfloat16"])

    def call(kernel="forward"):
        (found,) = traced(variant, tmp_path / "generated", asked, H200, [kernel])
        return found

    call.shipped = shipped_in(tmp_path / "generated" / "traced")
    return call


def record(key, **changes):
    return Record(replace(key, **changes), CONFIG, 800.0, 0.01, 20)


def said(found):
    return [(step.source, [d.field for d in step.differences]) for step in found.steps]


def test_with_nothing_recorded_the_default_is_used_and_every_source_is_named(ask):
    found = ask()
    assert found.choice.source == "default"
    assert [s.source for s in found.steps] == ["user cache", "shipped", "nearest", "same capability", "default"]
    assert [s.used for s in found.steps] == [False] * 4 + [True]
    assert str(user_root() / "traced" / "nvidia-h200.json") in found.steps[0].text
    assert "no record of traced at all" in found.steps[0].text


@pytest.mark.parametrize("kernel", FAMILIES)
def test_each_kernel_has_records_and_a_default_of_its_own(ask, kernel):
    others = [each for each in FAMILIES if each != kernel]
    for other in others:
        fuse_dq = 0 if other == "backward_kv" else None
        write_record(replace(record(ask(other).key), config=replace(CONFIG, fuse_dq=fuse_dq)))
    found = ask(kernel)
    assert (found.key.kernel, found.choice.source) == (kernel, "default")
    assert found.choice.config == default_of(spec.load(SPEC), kernel)("sm_90", "bfloat16", 128, 128)
    assert {d.field for d in found.steps[0].differences} == {"kernel", "templates"}
    assert ask(others[0]).choice.source == "user cache"


def test_the_users_record_answers_first(ask):
    write_record(record(ask().key))
    found = ask()
    assert (found.choice.config, [s.source for s in found.steps]) == (CONFIG, ["user cache"])


def test_a_shipped_record_answers_after_the_users_cache(ask):
    write_record(record(ask().key), ask.shipped)
    assert said(ask()) == [("user cache", []), ("shipped", [])]


@pytest.mark.parametrize(
    ("field", "value", "source"),
    [
        ("templates", "other", "default"),
        ("spec", "other", "default"),
        ("triton", "2.0", "default"),
        ("dtype", "float16", "default"),
        ("gpu", "NVIDIA H100", "same capability"),
    ],
)
def test_the_field_that_differs_is_named(ask, field, value, source):
    key = ask().key
    write_record(record(key, **{field: value}))
    found = ask()
    assert found.choice.source == source
    difference = found.steps[0].differences
    assert [(d.field, d.wanted, d.found) for d in difference] == [(field, getattr(key, field), value)]
    assert f"{field} is {value}, not {getattr(key, field)}" in str(found.steps[0])
    # Shipped records are none, so that source has no closest one.
    assert found.steps[1].differences == ()


def test_another_bucket_on_this_gpu_is_the_nearest(ask):
    key = ask().key
    write_record(record(key, bucket=replace(key.bucket, q_len=4096, kv_len=4096)))
    assert said(ask()) == [("user cache", ["bucket"]), ("shipped", []), ("nearest", [])]
    assert re.search(r"bucket is bh32-g1-q4096-k4096, not bh32-g1-q8192-k8192", str(ask().steps[0]))


def test_a_bucket_that_may_not_stand_in_is_told_from_none(ask):
    """Of packed sequences, for which other configs are fast."""
    key = ask().key
    write_record(record(key, bucket=replace(key.bucket, tokens=65536)))
    found = ask()
    assert said(found)[2:] == [("nearest", ["bucket"]), ("same capability", ["bucket"]), ("default", [])]
    for step, where in zip(found.steps[2:4], (key.gpu, key.capability), strict=True):
        assert step.text.startswith(
            f"no record of {where} in a shape bucket that may stand in for its own; the closest"
        )


def test_the_closest_record_is_the_one_that_differs_in_least(ask):
    key = ask().key
    write_record(record(key, dtype="float16", templates="other"))
    write_record(record(key, triton="2.0"))
    assert said(ask())[0] == ("user cache", ["triton"])


def test_a_damaged_record_is_mentioned(ask):
    path = user_root() / "traced" / "nvidia-h200.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    found = ask()
    assert f"{path.name}.damaged is damaged" in found.steps[0].text


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_one_must_be_named():
    with pytest.raises(EnvironmentProblem, match="--gpu and --capability"):
        device_named("NVIDIA H200", None)


def test_records_that_cannot_be_read_are_said_to_be_there(ask):
    ask()
    path = user_root() / "traced" / "nvidia-h200.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"format": 99}')
    with pytest.warns(RecordWarning, match="its format is 99, of a newer flashgen"):
        assert ask().choice.source == "default"


@pytest.mark.parametrize(
    ("q_len", "kv_len", "more", "kernel"),
    [
        (1, 8192, {}, "decode"),
        (16, 512, {}, "decode"),
        (17, 512, {}, "forward"),
        (16, 511, {}, "forward"),
        (1, 8192, {"dropout": 0.1}, "forward"),
    ],
)
def test_few_queries_are_asked_for_where_a_call_asks(tmp_path, monkeypatch, q_len, kv_len, more, kernel):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    variant = spec.load(SPEC | more)
    shape = parse_shape(f"batch=1,heads=32,kv_heads=8,q_len={q_len},kv_len={kv_len},head_dim=128")
    asked = problems(variant, [shape], ["bfloat16"])
    found = traced(variant, tmp_path / "generated", asked, H200)
    assert [one.key.kernel for one in found] == [kernel, "backward_q", "backward_kv"]
    in_short = used_configs(replace(variant, tune_shapes=(shape,), dtypes=("bfloat16",)), tmp_path / "generated")
    assert {used.kernel for used in in_short} == {one.key.kernel for one in found}
