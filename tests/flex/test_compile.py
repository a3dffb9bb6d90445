"""Under torch.compile attention is one operator, whose captured tensors are inputs of the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flex_mods as mods
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from flashgen.flex import flex_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
slopes, weight = torch.rand(mods.HEADS, device=DEVICE), 2


def by_globals(score, b, h, q, k):
    return score + slopes[h] * weight


def by_closure(bias: torch.Tensor) -> Callable[..., torch.Tensor]:
    return lambda score, b, h, q, k: score + bias[h]


CASES = {
    "globals": by_globals,
    "closure": by_closure(torch.rand(mods.HEADS, device=DEVICE)),
    "partial": functools.partial(mods.scaled_by, 0.5),
    "module": mods.Learned().to(DEVICE),
    "object": mods.Callable_(2),
}


def compiled(mod: Any, blocks: Any = None) -> tuple[Callable[..., torch.Tensor], list[torch.fx.GraphModule]]:
    """Attention within a compiled function, and the graphs that are made of it."""
    torch._dynamo.reset()
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    return torch.compile(lambda *qkv: flex_attention(*qkv, mod, blocks) * 2, backend=backend, fullgraph=True), graphs


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(mods.BATCH, mods.HEADS, 17, 16, generator=generator).to(DEVICE) for _ in range(3)]


@pytest.mark.parametrize("name", CASES)
def test_it_is_one_operator(name: str) -> None:
    qkv, mod = inputs(), CASES[name]
    blocks = create_block_mask(mods.causal, mods.BATCH, mods.HEADS, 17, 17, device=DEVICE, BLOCK_SIZE=16)
    attention, graphs = compiled(mod, blocks)
    assert torch.equal(attention(*qkv), flex_attention(*qkv, mod, blocks) * 2)
    (graph,) = graphs
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert sum(isinstance(target, torch._ops.OpOverload) for target in called) == 1


def test_what_is_captured_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    qkv = inputs()
    attention, graphs = compiled(by_globals)
    first = attention(*qkv)
    monkeypatch.setitem(globals(), "slopes", 3 * slopes)
    assert not torch.equal(attention(*qkv), first)
    assert torch.equal(attention(*qkv), flex_attention(*qkv, by_globals) * 2)
    assert len(graphs) == 1
    monkeypatch.setitem(globals(), "weight", 5)
    assert torch.equal(attention(*qkv), flex_attention(*qkv, by_globals) * 2)
