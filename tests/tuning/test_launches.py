"""What is timed is the work of each kernel: its launch gives the gradients of the formula."""

from pathlib import Path

import pytest
import torch

from flashgen import spec
from flashgen.codegen import generate, load_module
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.tuning import launches
from flashgen.tuning.launches import Launches

SPECS = {
    "plain": {"causal": True},
    "packed": {
        "causal": True,
        "inputs": {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}},
        "mask": "doc[b, q] == doc[b, k]",
    },
    "tilted": {"bias": "alibi"},
    "learned": {
        "inputs": {"slopes": {"shape": ["heads"], "dtype": "float32", "grad": True}},
        "score": "score + slopes[h] * (k - q)",
    },
    "words of the kernels": {
        "params": {"tiles": {"value": 0.5, "runtime": True}},
        "inputs": {"counts": {"shape": ["heads"], "dtype": "float32", "grad": True}},
        "score": "score + counts[h] * tanh(tiles * (k - q))",
    },
    "sized at run time": {
        "params": {"W": {"value": 3, "runtime": True}},
        "inputs": {"rel": {"shape": ["heads", "2*W + 1"], "dtype": "float32", "grad": True}},
        "score": "score + rel[h, clamp(q - k, -W, W) + W]",
    },
    "scaled": {"params": {"cap": {"value": 3.0, "runtime": True}}, "score": "cap * tanh(score / cap)"},
}
PROBLEM = Problem(1, 4, 2, 40, 48, 16, 24, "float32")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module", params=SPECS)
def prepared(request, tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("modules")
    variant = spec.load({"name": f"launched_{request.param.replace(' ', '_')}", **SPECS[request.param]})
    module = load_module(generate(variant, folder))
    return module, variant, make_inputs(variant, PROBLEM, DEVICE)


def gradients(module, call, d_out):
    leaves = [tensor.double().requires_grad_() for tensor in (call.q, call.k, call.v)]
    out = module.reference(*leaves, **call.keywords)
    return torch.autograd.grad(out, leaves, d_out.double())


def test_each_launch_does_its_kernels_work(prepared):
    module, variant, call = prepared
    timed = Launches(module, variant, call)
    out = timed.of("forward", Config(32, 32, 4, 1))()
    expected = module.reference(call.q.double(), call.k.double(), call.v.double(), **call.keywords)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)

    dq = timed.of("backward_q", Config(32, 32, 4, 1))()
    no_dq, dk, dv = timed.of("backward_kv", Config(32, 32, 4, 1, fuse_dq=0))()
    assert no_dq is None
    for found, right in zip((dq, dk, dv), gradients(module, call, timed.d_out), strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-3, atol=1e-3)


def test_a_fused_launch_ends_with_dq_as_the_caller_gets_it(prepared):
    module, variant, call = prepared
    timed = Launches(module, variant, call)
    dq, *_ = timed.of("backward_kv", Config(32, 32, 4, 1, fuse_dq=1))()
    right, *_ = gradients(module, call, timed.d_out)
    torch.testing.assert_close(dq.double(), right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("prepared", ["learned", "plain", "sized at run time"], indirect=True)
@pytest.mark.parametrize("backend", ["portable", "hopper"])
def test_gradients_that_the_hopper_kernel_has_a_part_in_are_timed_with_it(prepared, backend, monkeypatch):
    module, variant, call = prepared
    launched = []

    def gradients(variant, call, config, rows, dq_sums, sums):
        launched.append(("keys", sums))
        return None, None, None

    def learned(variant, call, rows, sums, keys):
        launched.append(("inputs", sums, keys))

    monkeypatch.setattr(launches, "key_gradients_of", gradients)
    monkeypatch.setattr(launches, "input_gradients", learned)
    monkeypatch.setattr(Launches, "_rows", lambda self, config: lambda dq_sums: "rows")
    config = Config(128, 128, 4, 2, backend, fuse_dq=0, **({"delay_dq": 0} if backend == "hopper" else {}))
    Launches(module, variant, call).of("backward_kv", config)()
    if variant.name == "launched_plain":
        assert launched == [("keys", None)]
        return
    (_, sums), (_, same, keys) = launched
    shapes = [tuple(each.shape) for each in sums.tensors.values()]
    assert same is sums and keys == config
    assert shapes == [tuple(call.inputs[t.name].shape) for t in variant.inputs]
