"""Finalists are compared at the size at which they are timed: by what their kernels write."""

from dataclasses import replace

import pytest
import torch

from flashgen import spec
from flashgen.codegen import generate, load_module
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.tuning.concord import Result, difference, outliers
from flashgen.tuning.launches import Launches

A, B, C, D, E = (Config(BM, 64, 4, stages) for BM, stages in ((16, 1), (32, 1), (64, 1), (128, 1), (128, 2)))


def results(value, rows=64):
    draw = torch.Generator().manual_seed(0)
    return {"out": Result(value * torch.randn(1, 1, rows, 16, generator=draw))}


@pytest.mark.parametrize(
    ("values", "arbiter", "out"),
    [
        ({A: 1, B: 1, C: 1}, D, set()),
        ({A: 2, B: 1, C: 1}, D, {A}),
        ({A: 1, B: 1, C: 2}, D, {C}),
        ({A: 2, B: 3, C: 1, D: 1}, E, {A, B}),
        ({A: 1, B: 2}, D, {B}),
        ({A: 2, B: 1}, D, {A}),
        ({A: 1, B: 1, C: 2, E: 2}, D, {C, E}),
        ({A: 1, D: 2}, D, {A, D}),
        ({A: 2, B: 3}, D, {A, B}),
        ({A: 1, B: torch.nan}, D, {B}),
        ({A: torch.inf, B: 1, C: 1}, D, {A}),
        ({A: 1, B: 1, C: 1e30}, D, {C}),
    ],
)
def test_the_many_are_right_and_between_as_many_the_arbiter_decides(values, arbiter, out):
    by_config = {D: 1, E: 1, **values}
    found = outliers(list(values), lambda config: results(by_config[config]), arbiter)
    assert set(found) == out and all("out differs in" in why for why in found.values())


SPECS = {
    "plain": {"causal": True},
    "own key alone": {"mask": "q == k"},
    "packed": {
        "causal": True,
        "inputs": {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}},
        "mask": "doc[b, q] == doc[b, k]",
    },
    "far": {"bias": "alibi"},
    "large": {"score": "score * 30.0"},
    "hidden": {"mask": "k < q - 20"},
}
KERNELS = {
    "forward": [Config(32, 32, 4, 1), Config(64, 16, 4, 1), Config(16, 64, 4, 2)],
    "backward_q": [Config(32, 32, 4, 1), Config(64, 16, 4, 1), Config(16, 64, 4, 2)],
    "backward_kv": [Config(32, 32, 4, 1, fuse_dq=0), Config(64, 16, 4, 1, fuse_dq=1), Config(16, 64, 4, 2, fuse_dq=0)],
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module", params=SPECS)
def variant(request, tmp_path_factory):
    one = spec.load({"name": f"concord_{list(SPECS).index(request.param)}", **SPECS[request.param]})
    return one, load_module(generate(one, tmp_path_factory.mktemp("modules")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_kernels_agree_and_a_wrong_row_of_any_of_their_results_is_seen(variant, dtype):
    one, module = variant
    problem = Problem(1, 2, 1, 70, 70, 16, 32, dtype)
    launches = Launches(module, one, make_inputs(one, problem, DEVICE))
    for kernel, configs in KERNELS.items():
        found = {config: launches.results(kernel, config, KERNELS["backward_q"][0]) for config in configs}
        assert outliers(configs, found.__getitem__, configs[0]) == {}, kernel
        names = {"forward": ["out", "lse"], "backward_q": ["dQ"], "backward_kv": ["dQ", "dK", "dV"]}[kernel]
        assert list(found[configs[0]]) == names
        for name in names:
            spoiled = found[configs[1]][name].tensor.clone()
            # The largest row of many is half as long again; where there is nothing, there is something.
            sizes = torch.where(spoiled[0, 0].isfinite(), spoiled[0, 0], 0.0).abs()
            row = spoiled[0, 0, (sizes.amax(-1) if sizes.ndim > 1 else sizes).argmax()]
            row.copy_(torch.where(row.isfinite(), row, 0.0) * 1.5 + 0.5 * (row.abs().amax() == 0))
            changed = {**found[configs[1]], name: replace(found[configs[1]][name], tensor=spoiled)}
            wrong = {**found, configs[1]: changed}
            seen = outliers(configs, wrong.__getitem__, configs[0])
            cancels = name in ("dQ", "dK") and one.name in ("concord_1", "concord_4")  # weights of one key or nearly
            assert cancels or (list(seen) == [configs[1]] and name in seen[configs[1]]), (kernel, name)


def test_what_a_kernel_left_unwritten_differs():
    right = results(1.0)
    torn = {"out": Result(right["out"].tensor.clone())}
    torn["out"].tensor[0, 0, 5, 3] = torch.nan
    assert "in 1 rows, at [batch, head, row] [0, 0, 5]" in difference(torn, right)
    assert difference(right, right) == ""


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, 1e30])
def test_one_number_that_is_infinite_or_whose_square_is_differs_and_agrees_with_itself(value):
    right = results(1.0)
    large = {"out": Result(right["out"].tensor.clone())}
    large["out"].tensor[0, 0, 5, 3] = value
    for one, other in ((large, right), (right, large)):
        assert "in 1 rows, at [batch, head, row] [0, 0, 5]" in difference(one, other)
    assert difference(large, large) == ""


def test_rows_that_see_no_key_agree_and_no_others_with_them():
    empty = {"lse": Result(torch.tensor([[[-torch.inf, 1.0]]]))}
    assert difference(empty, empty) == ""
    assert "lse differs in 1 rows" in difference({"lse": Result(torch.tensor([[[-5.0, 1.0]]]))}, empty)
