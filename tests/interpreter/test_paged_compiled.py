"""What torch.compile makes of calls over a paged cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from paged_attending import Gallery

from flashgen.problems.paged import make_batch


def test_it_is_one_operator_to_a_compiler(gallery_module: Gallery) -> None:
    module, batch = gallery_module("causal"), make_batch((20, 30))

    def step(*arguments: torch.Tensor) -> torch.Tensor:
        plan = module.plan_paged(arguments[0], arguments[1], *arguments[3:])
        return module.attention_paged(*arguments, plan=plan) * 2

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*batch.arguments), step(*batch.arguments))


def compiled_alone(step: Callable[..., torch.Tensor]) -> tuple[Callable[..., torch.Tensor], list[torch.fx.GraphModule]]:
    """A function compiled in one piece, and what it was compiled to, each time."""
    compilations: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        compilations.append(graph)
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(step, fullgraph=True, backend=backend), compilations


def test_batches_of_all_sizes_are_one_to_a_compiler(gallery_module: Gallery) -> None:
    """Sizes become symbols once a second one comes; a plan's room follows from them."""
    module = gallery_module("causal")

    def step(*arguments: torch.Tensor) -> torch.Tensor:
        plan = module.plan_paged(arguments[0], arguments[1], *arguments[3:])
        return module.attention_paged(*arguments, plan=plan)

    compiled, compilations = compiled_alone(step)
    for size in (2, 3, 5, 9, 17, 40):
        batch = make_batch([20] * size)
        torch.testing.assert_close(compiled(*batch.arguments), step(*batch.arguments))
    assert len(compilations) == 2


def test_longest_lengths_are_no_constants_to_a_compiler(gallery_module: Gallery) -> None:
    """A step has its own, in Python: what is compiled serves all that have tiles of as many rows, 16 or 32 here."""
    module = gallery_module("causal")

    def step(ends: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int, *arguments: torch.Tensor) -> torch.Tensor:
        told = {"cu_seqlens_q": ends, "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
        plan = module.plan_paged(arguments[0], arguments[1], *arguments[3:], **told)
        return module.attention_paged(*arguments, **told, plan=plan)

    compiled, compilations = compiled_alone(step)
    for longest in range(2, 16):
        batch = make_batch((20, 30), (longest, 1))
        told = (batch.cu_seqlens_q, longest, 30 + longest)
        torch.testing.assert_close(compiled(*told, *batch.arguments), step(*told, *batch.arguments))
    assert len(compilations) == 3


def test_a_plan_made_before_is_no_constant_to_a_compiler(gallery_module: Gallery) -> None:
    module = gallery_module("causal")

    def step(plan: Any, *arguments: torch.Tensor) -> torch.Tensor:
        return module.attention_paged(*arguments, plan=plan)

    compiled, compilations = compiled_alone(step)
    for size in (2, 3, 5, 9, 17, 40):
        batch = make_batch([20] * size)
        plan = module.plan_paged(*batch.planning[0])
        torch.testing.assert_close(compiled(plan, *batch.arguments), step(plan, *batch.arguments))
    assert len(compilations) == 2
