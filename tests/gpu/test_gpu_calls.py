"""How attention is called: in CUDA graphs, under torch.compile, in a new process, and never waiting for the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from gallery import NAMES, VARIANTS

from flashgen.codegen import generate
from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.problem import Problem

PROBLEM = Problem(2, 4, 2, 500, 700, 64, 64, "bfloat16")

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("name", NAMES)]


def answer(module: ModuleType, call: Call) -> torch.Tensor:
    return module.attention(call.q, call.k, call.v, **call.keywords)


def test_a_cuda_graph_replays_on_new_values(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    module, variant = gallery_module(name), VARIANTS[name]
    call, other = (make_inputs(variant, PROBLEM, "cuda", seed=seed) for seed in (0, 12))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        answer(module, call)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = answer(module, call)
    for mine, new in zip((call.q, call.k, call.v, *call.inputs.values()),
                         (other.q, other.k, other.v, *other.inputs.values()), strict=True):  # fmt: skip
        mine.copy_(new)
    graph.replay()
    assert torch.equal(out, answer(module, call))


def test_attention_never_waits_for_the_gpu(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    module, variant = gallery_module(name), VARIANTS[name]
    call = make_inputs(variant, PROBLEM, "cuda")
    answer(module, call)
    torch.cuda.set_sync_debug_mode("error")
    try:
        answer(module, call)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_torch_compile_takes_it_whole(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    # Each variant is a recompilation of the same function, of which torch allows a few only.
    torch.compiler.reset()
    module, variant = gallery_module(name), VARIANTS[name]
    call = make_inputs(variant, PROBLEM, "cuda")

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return module.attention(q * 2, k, v, **call.keywords) + 1

    compiled = torch.compile(layer, fullgraph=True)(call.q, call.k, call.v)
    assert torch.equal(compiled, layer(call.q, call.k, call.v))


_FIRST_CALL = """
import json, sys, time
import torch, triton
from triton.experimental import gluon
q = torch.randn(2, 4, 1000, 64, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
start, worked = time.perf_counter(), time.process_time()
sys.path.insert(0, sys.argv[1])
import {name}
importing = time.process_time() - worked
{name}.attention(q, q, q)
torch.cuda.synchronize()
print(json.dumps([importing, time.perf_counter() - start]))
"""


def test_the_first_call_of_a_process_is_quick(tmp_path: Path, name: str) -> None:
    variant = VARIANTS[name]
    if any(tensor.default is None for tensor in variant.inputs):
        pytest.skip("its inputs are not part of what is timed")
    generate(variant, tmp_path)
    script = _FIRST_CALL.format(name=variant.name)
    here = str(Path(__file__).parent.parent.parent)
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "triton"), "PYTHONPATH": here}
    # The second process finds what the first compiled of Python too, as a user's does.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", script, str(tmp_path)]
    for _ in range(2):
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    # The import is a matter of this process alone, whoever else is at work on the machine; torch's and Triton's own
    # are not flashgen's.
    importing, first_call = json.loads(run.stdout.splitlines()[-1])
    assert importing < 0.3 and first_call < 5
