"""torch.func.vmap: what is mapped becomes part of the batch where elements stay each for itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from attending import BACKWARD, CONFIG, DEVICE, launches

from flashgen.codegen import generate, load_module
from flashgen.spec import load

Modules = Callable[[str], ModuleType]
COUNT, BATCH, HEADS, LENGTH, DIM = 3, 2, 2, 20, 16


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Torch warns where it loops by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy's, of what Triton 3.6's interpreter does
        warnings.filterwarnings("ignore", message=".*in forward.*|.*no record.*")
        yield


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


def qkv(*leading: int) -> list[torch.Tensor]:
    return [normal(*leading, HEADS, LENGTH, DIM) for _ in range(3)]


def looped(function: Callable[..., Any], dims: Any, *tensors: torch.Tensor) -> Any:
    """What vmap is short for."""
    dims = dims if isinstance(dims, tuple) else (dims,) * len(tensors)
    found = [
        function(*(t if dim is None else t.select(dim, n) for t, dim in zip(tensors, dims, strict=True)))
        for n in range(COUNT)
    ]
    if isinstance(found[0], tuple):
        return tuple(torch.stack(each) for each in zip(*found, strict=True))
    return torch.stack(found)


def same(left: Any, right: Any) -> None:
    left, right = ([each] if isinstance(each, torch.Tensor) else each for each in (left, right))
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def attend(module: ModuleType, **keywords: Any) -> Callable[..., Any]:
    return lambda q, k, v: module.attention(q, k, v, config=CONFIG, backward_config=BACKWARD, **keywords)


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("keywords", [{}, {"return_lse": True, "return_max": True}])
def test_one_launch_serves_all_elements(gallery_module: Modules, batch: int, keywords: Any) -> None:
    layer, tensors = attend(gallery_module("causal"), **keywords), qkv(COUNT, batch)
    with launches() as counts:
        found = torch.func.vmap(layer)(*tensors)
    assert counts == {"_forward": 1}
    same(found, looped(layer, 0, *tensors))


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, 1), (3, 2, None)])
def test_tensors_that_are_not_mapped_serve_all(gallery_module: Modules, dims: Any, batch: int) -> None:
    layer = attend(gallery_module("alibi"))
    tensors = [
        tensor if dim is None else tensor.movedim(0, dim)
        for mapped, plain, dim in zip(qkv(COUNT, batch), qkv(batch), dims, strict=True)
        for tensor in [plain if dim is None else mapped]
    ]
    with launches() as counts:
        found = torch.func.vmap(layer, in_dims=dims)(*tensors)
    assert counts == {"_forward": 1}
    same(found, looped(layer, dims, *tensors))


def test_keys_of_one_batch_element_serve_what_is_mapped(gallery_module: Modules) -> None:
    layer = attend(gallery_module("causal"))
    tensors = [normal(COUNT, BATCH, HEADS, LENGTH, DIM), *qkv(COUNT, 1)[:2]]
    same(torch.func.vmap(layer)(*tensors), looped(layer, 0, *tensors))


def test_maps_of_maps_are_one_launch_too(gallery_module: Modules) -> None:
    layer, tensors = attend(gallery_module("causal")), qkv(COUNT, 2, 1)
    with launches() as counts:
        found = torch.func.vmap(torch.func.vmap(layer))(*tensors)
    assert counts == {"_forward": 1}
    same(found, looped(torch.func.vmap(layer), 0, *tensors))


def assert_one_launch(module: ModuleType, name: str, given: torch.Tensor, mapped: bool) -> None:
    """Of a variant with one input of its own, mapped with q, k and v or not."""
    tensors = qkv(COUNT, BATCH)
    layer = lambda q, k, v, own: attend(module, **{name: own})(q, k, v)  # noqa: E731
    dims = (0, 0, 0, 0 if mapped else None)
    with launches() as counts:
        found = torch.func.vmap(layer, in_dims=dims)(*tensors, given)
    assert counts["_forward"] == 1
    same(found, looped(layer, dims, *tensors, given))


@pytest.mark.parametrize("mapped", [True, False])
def test_inputs_of_each_batch_element_are_mapped_with_it(gallery_module: Modules, mapped: bool) -> None:
    doc = torch.randint(0, 3, (*[COUNT] * mapped, BATCH, LENGTH), dtype=torch.int32, device=DEVICE).sort().values
    assert_one_launch(gallery_module("document"), "doc", doc, mapped)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("batch", [1, BATCH])
def test_so_are_inputs_that_may_have_one_element_for_all(gallery_module: Modules, mapped: bool, batch: int) -> None:
    mask = torch.rand(*[COUNT] * mapped, batch, HEADS, 1, 1, device=DEVICE) > 0.4
    assert_one_launch(gallery_module("block_sparse"), "block_mask", mask, mapped)


def test_inputs_without_a_batch_are_mapped_one_after_another(gallery_module: Modules) -> None:
    module, tensors = gallery_module("alibi"), qkv(COUNT, BATCH)
    layer = lambda q, k, v, slopes: attend(module, slopes=slopes)(q, k, v)  # noqa: E731
    slopes = normal(COUNT, HEADS).abs()
    with launches() as counts:
        found = torch.func.vmap(layer)(*tensors, slopes)
    assert counts == {"_forward": COUNT}
    same(found, looped(layer, 0, *tensors, slopes))


def test_so_are_variants_that_read_the_number_of_a_batch_element(tmp_path: Path) -> None:
    module = load_module(generate(load({"name": "numbered", "score": "score + b * k"}), tmp_path))
    layer, tensors = attend(module), qkv(COUNT, BATCH)
    with launches() as counts:
        found = torch.func.vmap(layer)(*tensors)
    assert counts == {"_forward": COUNT}
    same(found, looped(layer, 0, *tensors))


@pytest.mark.parametrize("spec", [{"score": "score * (1 + b) + b * k"}, {"causal": True, "dropout": 0.5}], ids=str)
def test_so_are_gradients_by_the_number_of_a_batch_element(tmp_path: Path, spec: dict[str, Any]) -> None:
    """What is dropped follows from it too."""
    module = load_module(generate(load({"name": "numbered", **spec}), tmp_path))
    own = {"dropout_seed": torch.tensor(7, device=DEVICE)} if "dropout" in spec else {}
    each, tensors = torch.func.grad(lambda *given: attend(module, **own)(*given).cos().sum(), (0, 1, 2)), qkv(COUNT, 2)
    same(torch.func.vmap(each)(*tensors), looped(each, 0, *tensors))


def test_so_are_packed_sequences(gallery_module: Modules) -> None:
    module, ends = gallery_module("causal"), torch.tensor([0, 8, LENGTH], dtype=torch.int32, device=DEVICE)
    tensors = [normal(COUNT, LENGTH, HEADS, DIM) for _ in range(3)]
    layer = lambda q, k, v: module.attention_varlen(q, k, v, ends, ends, 12, 12, config=CONFIG)  # noqa: E731
    same(torch.func.vmap(layer)(*tensors), looped(layer, 0, *tensors))


def test_gradients_of_each_element_are_of_one_launch(gallery_module: Modules) -> None:
    module, tensors = gallery_module("causal"), qkv(COUNT, BATCH)

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, lse = attend(module, return_lse=True)(q, k, v)
        return out.cos().sum() + lse.sin().sum()

    each = torch.func.grad(loss, (0, 1, 2))
    with launches() as counts:
        found = torch.func.vmap(each)(*tensors)
    assert counts and set(counts.values()) == {1}
    same(found, looped(each, 0, *tensors))
    dims = (0, None, 0)
    some = (tensors[0], tensors[1][0], tensors[2])
    same(torch.func.vmap(each, in_dims=dims)(*some), looped(each, dims, *some))


def test_so_are_those_of_what_is_mapped(gallery_module: Modules) -> None:
    layer, tensors = attend(gallery_module("causal")), qkv(COUNT, BATCH)
    whole = torch.func.grad(lambda *given: torch.func.vmap(layer)(*given).cos().sum(), (0, 1, 2))
    with launches() as counts:
        found = whole(*tensors)
    assert counts and set(counts.values()) == {1}
    same(found, torch.func.grad(lambda *given: looped(layer, 0, *given).cos().sum(), (0, 1, 2))(*tensors))
    leaves = [tensor.requires_grad_() for tensor in tensors]
    same(found, torch.autograd.grad(torch.func.vmap(layer)(*leaves).cos().sum(), leaves))


def test_gradients_of_what_all_elements_share_are_not_summed_up(gallery_module: Modules) -> None:
    module, tensors, sinks = gallery_module("sink"), qkv(COUNT, BATCH), normal(HEADS)
    loss = lambda q, k, v, sinks: attend(module, sinks=sinks)(q, k, v).cos().sum()  # noqa: E731
    each, dims = torch.func.grad(loss, (0, 3)), (0, 0, 0, None)
    same(torch.func.vmap(each, in_dims=dims)(*tensors, sinks), looped(each, dims, *tensors, sinks))


def test_functionalize_is_passed_through(gallery_module: Modules) -> None:
    layer, tensors = attend(gallery_module("causal")), qkv(BATCH)
    same(torch.func.functionalize(layer)(*tensors), layer(*tensors))
    mapped = torch.func.functionalize(torch.func.vmap(layer))(*(tensor[None] for tensor in tensors))
    same(mapped, layer(*tensors)[None])
