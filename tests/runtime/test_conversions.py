"""What callers pass in other dtypes than a spec names, and keys that all batch elements share."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.runtime.conversions import as_dtype, over_batch
from flashgen.spec import load

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPEC = {
    "name": "converted",
    "inputs": {
        "bias": {"shape": ["heads", "kv_len"], "dtype": "float32", "grad": True},
        "end": {"shape": ["batch"], "dtype": "int32"},
        "keep": {"shape": ["batch", "kv_len"], "dtype": "bool"},
        "small": {"shape": ["heads"], "dtype": "uint8"},
    },
    "score": "score + bias[h, k] * small[h]",
    "mask": "(k <= q) & (k < end[b]) & keep[b, k]",
}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_module(generate(load(SPEC), tmp_path_factory.mktemp("converted")))


def tensors(batch: int = 2) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(batch, heads, 40, 16, generator=generator).to(DEVICE) for heads in (4, 2, 2))
    inputs = {
        "bias": torch.randn(4, 40, generator=generator).to(torch.bfloat16).float(),
        "end": torch.tensor([40, 23][:batch], dtype=torch.int32),
        "keep": torch.rand(batch, 40, generator=generator) < 0.8,
        "small": torch.tensor([0, 1, 2, 3], dtype=torch.uint8),
    }
    return [q, k, v], {name: tensor.to(DEVICE) for name, tensor in inputs.items()}


CONVERSIONS: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {
    "a bias in bfloat16": lambda given: {"bias": given["bias"].bfloat16()},
    "a bias in float64": lambda given: {"bias": given["bias"].double()},
    "lengths in int64": lambda given: {"end": given["end"].long()},
    "lengths in int64 that int32 does not hold": lambda given: {"end": torch.where(given["end"] == 40, 2**40, 23)},
    "lengths in int16": lambda given: {"end": given["end"].short()},
    "a padding mask in int64": lambda given: {"keep": given["keep"].long() * 2},
    "a padding mask in uint8": lambda given: {"keep": given["keep"].byte()},
    "uint8 in int64": lambda given: {"small": given["small"].long()},
}


@pytest.mark.parametrize("what", CONVERSIONS)
def test_an_input_converts(module: ModuleType, what: str) -> None:
    args, given = tensors()
    expected = module.attention(*args, **given)
    other = {**given, **CONVERSIONS[what](given)}
    assert torch.equal(module.attention(*args, **other), expected)
    torch.testing.assert_close(module.reference(*args, **other), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_gradient_comes_in_the_dtype_of_the_caller(module: ModuleType, dtype: torch.dtype) -> None:
    args, given = tensors()
    found, expected = (
        torch.autograd.grad(module.attention(*args, **{**given, "bias": bias}).square().sum(), bias)[0]
        for bias in (given["bias"].to(dtype).requires_grad_(), given["bias"].clone().requires_grad_())
    )
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected.to(dtype).float())


@pytest.mark.parametrize("change", [{"end": torch.float32}, {"keep": torch.float32}, {"bias": torch.int32}])
def test_numbers_of_another_kind_are_refused(module: ModuleType, change: dict[str, torch.dtype]) -> None:
    args, given = tensors()
    other = {name: given[name].to(dtype) for name, dtype in change.items()}
    with pytest.raises(TypeError, match=f"{next(iter(change))} has dtype"):
        module.attention(*args, **{**given, **other})


def test_integers_become_the_nearest() -> None:
    values = torch.tensor([-(2**63), -1, 0, 255, 256, 2**63 - 1])
    assert as_dtype(values, torch.int32).tolist() == [-(2**31), -1, 0, 255, 256, 2**31 - 1]  # type: ignore[union-attr]
    assert as_dtype(values, torch.uint8).tolist() == [0, 0, 0, 255, 255, 255]  # type: ignore[union-attr]
    assert as_dtype(values, torch.bool).tolist() == [True, True, False, True, True, True]  # type: ignore[union-attr]
    assert as_dtype(torch.tensor([0, 255], dtype=torch.uint8), torch.int8).tolist() == [0, 127]  # type: ignore[union-attr]


@pytest.mark.parametrize("shared", ["kv", "k", "v"])
def test_keys_of_batch_1_serve_all_batch_elements(module: ModuleType, shared: str) -> None:
    (q, k, v), given = tensors()
    k, v = (tensor[:1] if name in shared else tensor for name, tensor in (("k", k), ("v", v)))
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    wide = [leaves[0], *(tensor.expand(2, -1, -1, -1).contiguous() for tensor in leaves[1:])]
    found, lse = module.attention(*leaves, **given, return_lse=True)
    expected, expected_lse = module.attention(*wide, **given, return_lse=True)
    assert torch.equal(found, expected) and torch.equal(lse, expected_lse)
    gradients = [torch.autograd.grad(out.square().sum(), leaves) for out in (found, expected)]
    torch.testing.assert_close(*gradients)
    assert [g.shape for g in gradients[0]] == [tensor.shape for tensor in (q, k, v)]
    eager = module.reference(*leaves, **given)
    torch.testing.assert_close(eager, found, rtol=1e-4, atol=1e-5)
    for mine, other in zip(torch.autograd.grad(eager.square().sum(), leaves), gradients[0], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)


def test_keys_of_batch_1_are_not_copied() -> None:
    q, k = torch.empty(3, 2, 4, 16), torch.empty(1, 2, 4, 16)
    (wide, _) = over_batch(q, k, k)
    assert wide.shape == (3, 2, 4, 16) and wide.data_ptr() == k.data_ptr()


INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("given", INTEGERS, ids=str)
@pytest.mark.parametrize("wanted", INTEGERS, ids=str)
def test_an_integer_becomes_the_nearest_that_there_is(given: torch.dtype, wanted: torch.dtype) -> None:
    limits, room = torch.iinfo(given), torch.iinfo(wanted)
    values = [limits.min, max(limits.min, -1), 0, 1, limits.max]
    found = as_dtype(torch.tensor(values, dtype=given), wanted)
    assert found is not None and found.dtype == wanted
    assert found.tolist() == [min(max(value, room.min), room.max) for value in values]
