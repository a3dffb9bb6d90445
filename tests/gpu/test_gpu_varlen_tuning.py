"""Packed sequences tuned and measured on a GPU: each request of the search, a whole search, and the benchmark."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from gallery import VARIANTS

from flashgen.bench import Bench
from flashgen.bench.candidates import FLASHGEN
from flashgen.bench.packed import DENSE, PACKED_CANDIDATES, measure_packed
from flashgen.bench.passes import BACKWARD, FORWARD
from flashgen.bench.rows import Case
from flashgen.bench.run import machine
from flashgen.codegen import default_of, generate, load_module, uses_schedule
from flashgen.problems.packed import PackedModule, make_packed
from flashgen.problems.problem import Problem
from flashgen.runtime.kernels.kernel import Task
from flashgen.runtime.lookup import current_device, forget
from flashgen.runtime.record_files import RecordWarning
from flashgen.runtime.registry import MODES
from flashgen.spec import load
from flashgen.tuning.measure import KernelBench
from flashgen.tuning.requests import ConcordRequest, ProofRequest, TimeRequest, WorkRequest
from flashgen.tuning.space import search_space
from flashgen.tuning.tune import tune
from flashgen.tuning.workloads import problems, workloads

PROBLEM = Problem(8, 8, 4, 1024, 1024, 64, 64, "bfloat16", "varlen", min_len=32)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["causal", "document", "relative_bias"])
def test_each_kernel_is_timed_compared_proven_and_counted(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    path = generate(variant, tmp_path)
    bench, device = KernelBench(str(path), variant, 0), current_device(0)
    found = workloads([PROBLEM], load_module(path).IDENTITY, device, MODES["varlen"])
    assert [workload.key.kernel for workload in found] == [*MODES["varlen"]]
    for workload in found:
        kernel = workload.key.kernel
        config = default_of(variant, kernel, packed=True)(device.capability, "bfloat16", 64, 64)
        task = Task(kernel, device.capability, "bfloat16", 64, 64, 1024, 1024, uses_schedule(variant), packed=True)
        others = [each for each in search_space(task).configs if each.backend == config.backend and each != config]
        assert bench(TimeRequest(workload, config, 5.0)).median_us > 0
        assert bench(ConcordRequest(workload, (config, others[0]), others[1])) == {}
        assert bench(ProofRequest(workload, config)) == ""
        work = bench(WorkRequest(workload))
        assert work.flops > 0 and work.bytes > 0


def test_a_search_is_recorded_and_a_call_has_its_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    shape = {"mode": "varlen", "batch": 8, "heads": 8, "kv_heads": 4, "max_len": 1024}
    spec = {"name": "packed_up", "causal": True, "dtype": "bfloat16", "head_dim": 64, "tune": {"shapes": [shape]}}
    variant = load(spec)
    path = generate(variant, tmp_path / "generated")
    outcomes = tune(variant, path, preset="quick")
    assert [outcome.status for outcome in outcomes] == ["tuned"] * 3
    module, (problem,) = load_module(path), problems(variant)
    packed = make_packed(variant, problem, "cuda")
    own = PackedModule(module, variant, problem, problem.lengths)
    leaves = [each.detach().requires_grad_() for each in (packed.call.q, packed.call.k, packed.call.v)]
    forget()
    with warnings.catch_warnings():
        # A call without a record would say so.
        warnings.simplefilter("error", RecordWarning)
        own.attention(*leaves).float().sum().backward()
    torch.cuda.synchronize()
    sizes = (0, torch.bfloat16, 64, 64, 64, 2, 1024, 1024)
    for outcome in outcomes:
        choice = module.VARLEN.configs[outcome.workload.key.kernel](*sizes, tokens=problem.tokens[0])
        assert (choice.source, choice.config) == ("user cache", outcome.record.config)


@pytest.mark.parametrize("step", [FORWARD, BACKWARD])
def test_the_benchmark_has_a_row_for_each_candidate(step: str, tmp_path: Path) -> None:
    variant = VARIANTS["causal"]
    module = load_module(generate(variant, tmp_path))
    case = Case("causal", "", "", PROBLEM, *machine(), step)
    bench = Bench.choose(None, [step], 2, None, PACKED_CANDIDATES)
    rows = {row.candidate: row for row in measure_packed(variant, module, case, bench)}
    assert set(rows) == set(bench.candidates_of(step))
    for name in (FLASHGEN, DENSE):
        assert rows[name].tflops
    assert all(row.tflops or row.note for row in rows.values())
