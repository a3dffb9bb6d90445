"""What torch wraps around training, on a GPU: CUDA graphs, torch.compile with changing lengths, DDP; and layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from data_parallel import train
from gallery import VARIANTS

from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.problem import Problem
from flashgen.runtime import described, launching

pytestmark = pytest.mark.gpu

Modules = Callable[[str], ModuleType]


def trainable(name: str, q_len: int = 500, kv_len: int = 700, seed: int = 0) -> tuple[Call, list[torch.Tensor]]:
    """A call, and the arguments of it that ask for gradients."""
    call = make_inputs(VARIANTS[name], Problem(2, 4, 2, q_len, kv_len, 64, 64, "bfloat16"), "cuda", seed=seed)
    learned = [call.inputs[tensor.name] for tensor in VARIANTS[name].inputs if tensor.grad]
    return call, [leaf.requires_grad_() for leaf in (call.q, call.k, call.v, *learned)]


def gradients(module: ModuleType, call: Call, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    out, lse = module.attention(call.q, call.k, call.v, **call.keywords, return_lse=True, deterministic=True)
    total = out.float().square().sum() + lse.where(lse.isfinite(), 0).sum()
    return list(torch.autograd.grad(total, leaves))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_cuda_graph_of_a_training_step_replays_on_new_values(gallery_module: Modules, name: str) -> None:
    module = gallery_module(name)
    call, leaves = trainable(name)
    other, _ = trainable(name, seed=12)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients(module, call, leaves)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradients(module, call, leaves)
    with torch.no_grad():
        for mine, new in zip((call.q, call.k, call.v, *call.inputs.values()),
                             (other.q, other.k, other.v, *other.inputs.values()), strict=True):  # fmt: skip
            mine.copy_(new)
    graph.replay()
    for replayed, direct in zip(found, gradients(module, call, leaves), strict=True):
        assert torch.equal(replayed, direct)


@pytest.mark.parametrize("name", VARIANTS)
def test_compiled_training_takes_other_lengths_as_it_is(gallery_module: Modules, name: str) -> None:
    torch.compiler.reset()
    module = gallery_module(name)

    def layer(call_q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return module.attention(call_q * 2, k, v, deterministic=True, **given).float().square().sum()

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    # The first lengths give sizes that all differ: the compiler takes two that are equal for one.
    for index, lengths in enumerate([(650, 1100), (333, 1000), (700, 900)]):
        call, leaves = trainable(name, *lengths)
        with torch._dynamo.config.patch(error_on_recompile=index > 0):
            mine = torch.autograd.grad(compiled(call.q, call.k, call.v, call.keywords), leaves)
        eager = torch.autograd.grad(layer(call.q, call.k, call.v, call.keywords), leaves)
        for one, other in zip(mine, eager, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 * float(other.abs().max()))


def test_data_parallel_processes_agree_with_one(gallery_module: Modules) -> None:
    backend = "nccl" if torch.cuda.device_count() > 1 else "gloo"
    train(str(gallery_module("alibi").__file__), world_size=2, device="cuda", backend=backend)


@pytest.mark.parametrize("name", ["causal", "alibi", "relative_bias", "document"])
def test_a_kernel_that_was_found_for_one_layout_is_not_launched_for_another(gallery_module: Modules, name: str) -> None:
    module = gallery_module(name)

    def shifted(tensor: torch.Tensor, by: int) -> torch.Tensor:
        """The same values, `by` elements further in memory."""
        place = tensor.new_empty(tensor.numel() + by)[by:].view(tensor.shape)
        return place.copy_(tensor)

    def answers() -> list[torch.Tensor]:
        found = []
        for layout in ("bhsd", "bshd"):
            for q_len, kv_len in ((512, 512), (1, 512), (500, 500), (512, 1)):
                for by in (0, 1, 8):
                    problem = Problem(2, 4, 2, q_len, kv_len, 64, 64, "bfloat16")
                    call = make_inputs(VARIANTS[name], problem, "cuda", layout=layout)
                    call = replace(call, inputs={key: shifted(value, by) for key, value in call.inputs.items()})
                    leaves = [tensor.requires_grad_() for tensor in (call.q, call.k, call.v)]
                    for deterministic in (True, False):
                        out = module.attention(*leaves, **call.keywords, deterministic=deterministic)
                        dq, dk, dv = torch.autograd.grad(out, leaves, out.detach())
                        # Programs add to dQ in any order, unless asked not to.
                        found += [out, dk, dv, dq] if deterministic else [out, dk, dv]
        return found

    for memory in (launching._found, launching._known, described._handed):
        memory.clear()
    first = answers()
    for one, other in zip(first, answers(), strict=True):
        assert torch.equal(one, other)
