"""Tuning for packed sequences: what is measured, proven and recorded, and that calls find it and no other."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
from fake_tools import DEVICE
from gallery import VARIANTS
from packed_batch import make_packed as packed_tensors
from test_tune import PretendedMachine, pretended  # noqa: F401 - a fixture

from flashgen.codegen import default_of, generate, load_module
from flashgen.errors import SpecError, UsageError
from flashgen.explain.configs import used_configs
from flashgen.explain.sources import traced
from flashgen.problems.packed import make_packed
from flashgen.problems.problem import Problem
from flashgen.problems.work import least_bytes, useful_flops, visible_share
from flashgen.runtime import Config, choosing
from flashgen.runtime.kernels.forward import FORWARD_KERNEL
from flashgen.runtime.lookup import forget
from flashgen.runtime.own_arguments import prepare_own
from flashgen.runtime.record_files import RecordWarning
from flashgen.runtime.record_table import parse, to_text
from flashgen.runtime.records import Bucket
from flashgen.runtime.registry import kernels_of, register, unregister
from flashgen.runtime.usable_records import usable
from flashgen.spec import load
from flashgen.tuning.launches import PackedLaunches
from flashgen.tuning.prune import CompileRequest
from flashgen.tuning.tune import tune
from flashgen.tuning.worker import Worker
from flashgen.tuning.workloads import bucket_of, problems
from flashgen.verify import verify_config

PACKED = {"mode": "varlen", "batch": 8, "heads": 8, "max_len": 1024}
SPEC = {
    "name": "packed_up",
    "causal": True,
    "dtype": "bfloat16",
    "head_dim": 64,
    "tune": {"shapes": [{"batch": 1, "heads": 8, "q_len": 1024}, PACKED]},
}
SMALL = Problem(3, 4, 2, 50, 50, 32, 32, "float32", "varlen", min_len=9)
OTHER = Config(32, 32, 4, 1)
KERNELS = {"forward": OTHER, "backward_q": OTHER, "backward_kv": OTHER.but(fuse_dq=0)}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    return generate(load(SPEC), tmp_path / "generated")


def test_a_shape_says_its_longest_and_its_shortest_sequence() -> None:
    _, packed = problems(load(SPEC))
    assert (packed.mode, packed.q_len, packed.kv_len, packed.min_len) == ("varlen", 1024, 1024, 32)
    lengths = [queries for queries, _ in packed.lengths]
    assert (len(lengths), max(lengths), min(lengths)) == (8, 1024, 32)
    assert packed.lengths == problems(load(SPEC))[1].lengths
    # As many between 32 and 181 as between 181 and 1024.
    assert sum(length < 181 for length in lengths) == 4
    assert packed.tokens == (sum(lengths), sum(lengths))
    assert str(packed) == "B8 H8 packed S32-1024 D64 bfloat16"
    assert replace(packed, batch=1).lengths == ((1024, 1024),)


def test_a_bucket_of_packed_sequences_is_one_of_its_own() -> None:
    dense, packed = (bucket_of(problem) for problem in problems(load(SPEC)))
    assert str(packed) == "bh64-g1-q1024-k1024-t4096"
    assert Bucket.parse(str(packed)) == packed
    assert packed.packed and not dense.packed


def test_what_is_tuned_where_a_spec_names_no_packed_shape() -> None:
    (usual,) = problems(VARIANTS["causal"], dtypes=["bfloat16"], modes=["varlen"])[:1]
    assert (usual.batch, usual.q_len, usual.min_len) == (32, 4096, 128)
    assert {problem.mode for problem in problems(load(SPEC), modes=["varlen"])} == {"varlen"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_len": None}, "expected max_len, as mode varlen needs it"),
        ({"min_len": 1025}, "min_len: 1025; expected 1 to max_len, 1024"),
        ({"q_len": 1024}, "q_len: 1024; expected batch, .*max_len, min_len with mode varlen"),
        ({"batch": 70000}, "batch: 70000; expected 1 to 65536 with mode varlen"),
        ({"mode": "dense", "q_len": 64}, "max_len: 1024; expected batch, .* with mode dense"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    shape = {name: value for name, value in {**PACKED, **change}.items() if value is not None}
    with pytest.raises(SpecError, match=message):
        load({**SPEC, "tune": {"shapes": [shape]}})


def test_shapes_on_the_command_line() -> None:
    from flashgen.cli.shapes import parse_shape

    shape = parse_shape("batch=4,heads=8,max_len=900,min_len=30", "varlen")
    assert (shape.q_len, shape.kv_len, shape.min_len, shape.mode) == (900, 900, 30, "varlen")
    with pytest.raises(UsageError, match="max_len not found; expected batch, heads, max_len at least"):
        parse_shape("batch=4,heads=8,q_len=900", "varlen")


@pytest.mark.usefixtures("pretended")
def test_what_a_spec_names_is_tuned_and_found_by_packed_calls_alone(built: Path) -> None:
    outcomes = tune(load(SPEC), built, modes=["varlen"], preset="quick")
    assert [outcome.workload.key.kernel for outcome in outcomes] == [*KERNELS]
    serving = {kernel.backend for family in KERNELS for kernel in kernels_of(family, packed=True)}
    assert {config.backend for _, config in PretendedMachine.last.timed} <= serving
    assert {outcome.status for outcome in tune(load(SPEC), built, modes=["varlen"])} == {"found"}
    module = load_module(built)
    for outcome in outcomes:
        key = outcome.workload.key
        sizes = (DEVICE, key.dtype, key.head_dim, key.v_head_dim)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = module.VARLEN.configs[key.kernel].find(*sizes, key.bucket)
        assert (found.config, found.source) == (outcome.record.config, "user cache")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecordWarning)
            near = module.VARLEN.configs[key.kernel].find(*sizes, replace(key.bucket, tokens=65536))
            dense = module.VARIANT.configs[key.kernel].find(*sizes, replace(key.bucket, tokens=0))
        assert (near.config, near.source, dense.source) == (found.config, "nearest", "default")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has records of the GPU at hand")
def test_explain_shows_the_portable_configs_that_packed_calls_have(built: Path) -> None:
    used = [each for each in used_configs(load(SPEC), built.parent) if each.problem.packed]
    assert {each.kernel for each in used} == {*KERNELS}
    assert {(each.config.backend, each.source) for each in used} == {("portable", "default")}


@pytest.mark.usefixtures("pretended")
def test_what_wins_both_dense_and_packed_is_proven_both(built: Path) -> None:
    # Of float32 there are portable kernels alone.
    outcomes = tune(load({**SPEC, "dtype": "float32"}), built, kernels=["forward"], preset="quick")
    dense, packed = (outcome.record for outcome in outcomes)
    assert (dense.key.bucket.packed, packed.key.bucket.packed) == (False, True)
    assert PretendedMachine.last.proven == [dense.config, packed.config] == [dense.config] * 2


@pytest.mark.usefixtures("pretended")
def test_records_of_dense_calls_say_nothing_of_packed_ones(tmp_path: Path) -> None:
    spec = tmp_path / "packed_up.yaml"
    spec.write_text(yaml.safe_dump(SPEC))
    built = generate(load(spec), tmp_path / "generated")
    tune(load(spec), built, modes=["dense"], preset="quick")
    configs = load_module(built).VARLEN.configs["forward"]
    with pytest.warns(UserWarning, match="using the built-in default .* --mode varlen` finds"):
        found = configs.find(DEVICE, "bfloat16", 64, 64, Bucket.of(64, 1, 1024, 1024, tokens=4096))
    built_in = default_of(load(SPEC), "forward", packed=True)("sm_90", "bfloat16", 64, 64)
    assert (found.source, found.config) == ("default", built_in)


@pytest.mark.usefixtures("pretended")
def test_a_trace_says_that_the_nearest_record_is_one_of_dense_calls(built: Path) -> None:
    tune(load(SPEC), built, modes=["dense"], preset="quick")
    asked = problems(load(SPEC), modes=["varlen"])
    (found,) = traced(load(SPEC), built.parent, asked, DEVICE, ["forward"])
    assert [step.source for step in found.steps if step.used] == ["default"]
    nearest = next(step for step in found.steps if step.source == "nearest")
    assert [each.field for each in nearest.differences] == ["bucket"]


@pytest.mark.usefixtures("pretended")
def test_a_record_whose_kernel_serves_no_packed_sequences_is_refused(built: Path) -> None:
    dense, *_ = tune(load(SPEC), built, modes=["dense"], preset="quick")
    alone = replace(FORWARD_KERNEL, name="alone", backend="alone", packs=False)
    register(alone)
    try:
        record = replace(dense.record, config=Config(64, 64, 4, 2, "alone"))
        assert usable(parse(to_text([record]))) == (record,)
        packed = replace(record, key=replace(record.key, bucket=replace(record.key.bucket, tokens=4096)))
        with pytest.raises(ValueError, match="as forward of packed sequences has it"):
            usable(parse(to_text([packed])))
    finally:
        unregister(alone)


@pytest.mark.usefixtures("pretended")
def test_tables_of_dense_records_are_read_by_who_knows_no_packed_ones(built: Path) -> None:
    dense, *_ = tune(load(SPEC), built, modes=["dense"], preset="quick")
    key = replace(dense.record.key, bucket=replace(dense.record.key.bucket, tokens=4096))
    packed = replace(dense.record, key=key, config=Config(64, 64, 4, 2))
    assert json.loads(to_text([dense.record]))["format"] == 2
    both = to_text([dense.record, packed])
    assert json.loads(both)["format"] == 3
    assert sorted(parse(both), key=lambda record: record.key.bucket.tokens) == [dense.record, packed]


def test_a_packed_call_asks_for_its_bucket(
    gallery_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[tuple[object, ...], dict[str, int]]] = []

    class Asked:
        kernel = "forward"

        def __call__(self, *sizes: object, **more: int) -> choosing.Choice:
            asked.append((sizes, more))
            return choosing.Choice(OTHER, "shipped", "")

    class OnGpu:
        is_cuda, device, dtype = True, torch.device("cuda", 0), torch.float32

    batch = packed_tensors(((100, 100), (30, 30)))
    q, k, v = (each.transpose(0, 1)[None] for each in batch.tensors)
    longest = dict(zip(("max_seqlen_q", "max_seqlen_k"), batch.longest, strict=True))
    call = prepare_own(gallery_module("causal").VARLEN, q, k, v, None, batch.ends, longest)
    there = call._replace(q=OnGpu())
    configs = Asked()
    try:
        assert [choosing.choose_config(None, configs, there) for _ in range(2)] == [OTHER, OTHER]
    finally:
        forget()
    assert asked == [((0, torch.float32, 16, 16, 8, 2, 100, 100), {"tokens": 130})]


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_is_proven_in_a_config(gallery_module: Callable[[str], ModuleType], kernel: str) -> None:
    for name in ("causal", "document"):
        variant = VARIANTS[name]
        result = verify_config(gallery_module(name), variant, SMALL, KERNELS[kernel], "cpu", kernel)
        assert result.ok, (name, result)


@pytest.mark.parametrize("name", ["causal", "document", "relative_bias"])
def test_what_is_launched_are_the_kernels_of_packed_sequences(
    gallery_module: Callable[[str], ModuleType], name: str
) -> None:
    """The document mask has a packed input and walks a schedule, the relative bias is learned."""
    module, variant = gallery_module(name), VARIANTS[name]
    packed = make_packed(variant, SMALL)
    launches = PackedLaunches(module, variant, packed)
    given = (packed.call.q, packed.call.k, packed.call.v)
    q, k, v = (each[0].transpose(0, 1).detach().requires_grad_() for each in given)
    lengths = torch.tensor([own[0] for own in SMALL.lengths], dtype=torch.int32)
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0).int()])
    out = module.attention_varlen(q, k, v, ends, ends, 50, 50, **packed.call.keywords)
    found = {kernel: launches.results(kernel, config, OTHER) for kernel, config in KERNELS.items()}
    torch.testing.assert_close(found["forward"]["out"].tensor[0].transpose(0, 1), out, rtol=1e-4, atol=1e-5)
    d_out = launches.d_out[0].transpose(0, 1)
    for name, wanted in zip(("dQ", "dK", "dV"), torch.autograd.grad(out, (q, k, v), d_out), strict=True):
        written = found["backward_kv"][name].tensor[0].transpose(0, 1)
        torch.testing.assert_close(written, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found["backward_q"]["dQ"].tensor, found["backward_kv"]["dQ"].tensor)


@pytest.mark.parametrize("name", ["causal", "document"])
def test_useful_work_is_what_each_sequence_sees(name: str) -> None:
    variant = VARIANTS[name]
    packed = make_packed(variant, SMALL)
    visible = 0
    for b, (length, _) in enumerate(SMALL.lengths):
        i, j = torch.arange(length)[:, None], torch.arange(length)[None]
        seen = j <= i
        if name == "document":
            doc = packed.own.inputs["doc"][b]
            seen = seen & (doc[i] == doc[j])
        visible += int(seen.sum())
    share = visible_share(variant, SMALL, packed.keywords, "cpu")
    assert useful_flops(SMALL, share) == pytest.approx(2 * visible * SMALL.heads * 64)
    total = sum(length for length, _ in SMALL.lengths)
    assert least_bytes(SMALL) == 2 * total * (4 + 2) * 32 * 4


def test_each_is_compiled_before_a_launch(built: Path) -> None:
    problem = Problem(8, 8, 8, 1024, 1024, 64, 64, "bfloat16", "varlen", min_len=32)
    with Worker("flashgen.tuning.compiler:compiler", str(built), load(SPEC)) as worker:
        for kernel, config in KERNELS.items():
            found = worker.ask(CompileRequest(kernel, problem, config, "sm_90"), 120.0)
            assert found.error is None, (kernel, found.error)
            assert found.registers and found.shared
