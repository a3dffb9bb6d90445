"""plan() where it is more than a launch: traced, transformed, with tensors that hold nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from attending import BACKWARD, CONFIG, DEVICE
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from flashgen.codegen import generate, load_module
from flashgen.runtime import Config
from flashgen.spec import load

# A learned bias, a runtime param, a mask that differs from one batch element to the next.
SPEC = {
    "name": "planned",
    "params": {"first": {"value": 3, "runtime": True}},
    "inputs": {
        "rel": {"shape": ["heads", 9], "dtype": "float32", "grad": True},
        "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
    },
    "score": "score + rel[h, clamp(q - k, 0, 8)]",
    "mask": "(k <= q) & ((q - k < 6) | (k < first) | (doc[b, q] == doc[b, k]))",
}
ENDS = torch.tensor([0, 15, 40], dtype=torch.int32, device=DEVICE)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_module(generate(load(SPEC), tmp_path_factory.mktemp("planned")))


def drawn(q_len: int = 40, kv_len: int = 40) -> list[torch.Tensor]:
    """q, k, v and rel, which ask for gradients, and doc."""
    shapes = (2, 4, q_len, 16), (2, 2, kv_len, 16), (2, 2, kv_len, 16), (4, 9)
    leaves = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]
    return [*leaves, torch.randint(9, (2, kv_len), device=DEVICE, dtype=torch.int32)]


def layer(module: ModuleType, *tensors: torch.Tensor, with_plan: bool = True, **named: Any) -> torch.Tensor:
    q, k, v, rel, doc = tensors
    plan = module.plan(q, k, v, rel=rel, doc=doc, **named) if with_plan else None
    out: torch.Tensor = module.attention(q, k, v, rel=rel, doc=doc, plan=plan, **named)
    return out


def packed_layer(module: ModuleType, *tensors: torch.Tensor, with_plan: bool = True) -> torch.Tensor:
    """Of the first batch element, two sequences in it."""
    q, k, v = (tensor[0].transpose(0, 1) for tensor in tensors[:3])
    given = (q, k, v, ENDS, ENDS, 25, 25)
    inputs = {"rel": tensors[3], "doc": tensors[4][0]}
    plan = module.plan_varlen(*given, **inputs) if with_plan else None
    out: torch.Tensor = module.attention_varlen(*given, **inputs, plan=plan)
    return out


def same(
    function: Callable[..., torch.Tensor], other: Callable[..., torch.Tensor], tensors: list[torch.Tensor]
) -> None:
    """Whether the outputs and gradients of two functions are those of one."""
    outs = [each(*tensors) for each in (function, other)]
    found = [[out, *torch.autograd.grad(out.sin().sum(), tensors[:4])] for out in outs]
    for one, right in zip(*found, strict=True):
        torch.testing.assert_close(one, right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("of", [layer, packed_layer])
@pytest.mark.parametrize("dynamic", [True, False])
def test_torch_compile_takes_a_plan_and_its_call_whole(
    planned: ModuleType, of: Callable[..., torch.Tensor], dynamic: bool
) -> None:
    torch.compiler.reset()
    compiled = torch.compile(partial(of, planned), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    same(compiled, partial(of, planned, with_plan=False), drawn())


def test_lengths_of_one_plan_are_not_compiled_again(planned: ModuleType) -> None:
    torch.compiler.reset()
    compiled = torch.compile(partial(layer, planned), fullgraph=True, dynamic=True, backend="aot_eager")
    for index, lengths in enumerate([(40, 50), (41, 57), (33, 64)]):
        with torch._dynamo.config.patch(error_on_recompile=index > 0):
            same(compiled, partial(layer, planned, with_plan=False), drawn(*lengths))


@pytest.mark.parametrize("dynamic", [True, None])
def test_a_plan_made_before_is_an_argument_whatever_its_tiles(planned: ModuleType, dynamic: bool | None) -> None:
    def alone(plan: Any, *tensors: torch.Tensor) -> torch.Tensor:
        q, k, v, rel, doc = tensors
        out: torch.Tensor = planned.attention(q, k, v, rel=rel, doc=doc, plan=plan)
        return out

    torch.compiler.reset()
    compiled = torch.compile(alone, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for config in (None, CONFIG, Config.parse("BM=16 BN=32 num_warps=4 num_stages=1")):
        tensors = drawn()
        q, k, v, rel, doc = tensors
        plan = planned.plan(q, k, v, rel=rel, doc=doc, config=config)
        same(partial(compiled, plan), partial(layer, planned, with_plan=False), tensors)


def test_a_traced_plan_for_few_queries_over_many_keys(planned: ModuleType) -> None:
    torch.compiler.reset()
    compiled = torch.compile(partial(layer, planned), fullgraph=True, backend="aot_eager")
    tensors = drawn(2, 600)
    torch.testing.assert_close(compiled(*tensors), layer(planned, *tensors, with_plan=False), rtol=1e-4, atol=1e-5)


def test_torch_export_takes_it_too(planned: ModuleType) -> None:
    class Layer(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return layer(planned, *tensors)

    tensors = drawn()
    exported = torch.export.export(Layer(), tuple(tensors)).module()
    same(exported, partial(layer, planned, with_plan=False), tensors)


def test_a_traced_plan_serves_the_config_that_it_was_made_with(planned: ModuleType) -> None:
    torch.compiler.reset()
    compiled = torch.compile(partial(layer, planned, config=CONFIG), fullgraph=True, backend="aot_eager")
    same(compiled, partial(layer, planned, config=CONFIG), drawn())

    q, k, v, rel, doc = (torch.empty_like(each, device="meta", requires_grad=each.requires_grad) for each in drawn())
    plan = planned.plan(q, k, v, rel=rel, doc=doc)
    with pytest.raises(ValueError, match=r"expected the plan's tile sizes, those on record$"):
        planned.attention(q, k, v, rel=rel, doc=doc, plan=plan, config=CONFIG)
    # Tiles of the backward pass that the caller names have a schedule of their own.
    planned.attention(q, k, v, rel=rel, doc=doc, plan=plan, backward_config=BACKWARD).sum().backward()


def test_transforms_of_torch_func_compute_the_same(planned: ModuleType) -> None:
    tensors = [tensor.detach() for tensor in drawn()]
    docs = torch.randint(9, (3, 2, 40), device=DEVICE, dtype=torch.int32)

    def of(with_plan: bool) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda doc: layer(planned, *tensors[:4], doc, with_plan=with_plan)

    with warnings.catch_warnings():  # torch warns where it loops by itself
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy's, of what Triton 3.6's interpreter does
        mapped = torch.func.vmap(of(True))(docs)
    torch.testing.assert_close(mapped, torch.stack([of(False)(each) for each in docs]), rtol=1e-5, atol=1e-5)

    def total(q: torch.Tensor, with_plan: bool) -> torch.Tensor:
        return layer(planned, q, *tensors[1:], with_plan=with_plan).sin().sum()

    found, right = (torch.func.grad(partial(total, with_plan=each))(tensors[0]) for each in (True, False))
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)


def test_tensors_without_memory_give_the_shapes_of_a_plan(planned: ModuleType) -> None:
    tensors = drawn()

    def shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rel: torch.Tensor, doc: torch.Tensor) -> list[Any]:
        plan = planned.plan(q, k, v, rel=rel, doc=doc)
        return [(x.shape, x.dtype) for each in (plan, plan.backward) for x in (each.counts, each.tiles)]

    expected = shapes(*tensors)
    assert shapes(*(tensor.to("meta") for tensor in tensors)) == expected
    with FakeTensorMode() as mode:
        assert shapes(*(mode.from_tensor(tensor) for tensor in tensors)) == expected


def test_a_policy_may_save_or_make_again_what_is_around_a_plan(planned: ModuleType) -> None:
    """What a plan is made in is no step of its own, which a policy could keep before it is written."""

    def policy(_: object, operator: object, *args: object, **named: object) -> CheckpointPolicy:
        again = operator == planned.OPERATOR.overload
        return CheckpointPolicy.MUST_RECOMPUTE if again else CheckpointPolicy.MUST_SAVE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    kept = partial(checkpoint, partial(layer, planned), use_reentrant=False, context_fn=contexts)
    same(kept, partial(layer, planned, with_plan=False), drawn())


def test_a_plan_in_another_layout_is_read_all_the_same(planned: ModuleType) -> None:
    tensors = drawn()

    def apart(tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack([tensor, tensor], -1)[..., 0]

    with torch.autograd.graph.saved_tensors_hooks(apart, lambda tensor: tensor):
        out = layer(planned, *tensors)
    same(lambda *_: out, partial(layer, planned, with_plan=False), tensors)
