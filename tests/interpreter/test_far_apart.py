"""Tensors that reach beyond 2**31 elements: offsets take 64 bits, though each stride and each index fits 32.

Of their memory there are no pages but those that are written. What is read is compared with the same call of small
tensors, to the bit.
"""

from __future__ import annotations

from mmap import mmap
from types import ModuleType
from typing import Any

import pytest
import torch
from packed_batch import make_packed
from paged_attending import Gallery

from flashgen.codegen import generate, load_module
from flashgen.problems.paged import make_batch
from flashgen.runtime.serving import store_kv
from flashgen.spec import load

TILES = "BM=16 BN=16 num_warps=4 num_stages=1"
BACKWARD = {"backward_kv": f"{TILES} fuse_dq=0", "backward_q": TILES}
FUSED = {"backward_kv": f"{TILES} fuse_dq=1"}
SPEC = {
    "name": "far",
    "inputs": {
        "pair": {"shape": ["batch", "heads", "q_len", "kv_len"], "dtype": "float16", "grad": True},
        "key": {"shape": ["batch", "heads", "kv_len"], "dtype": "float16"},
    },
    "align": "top_left",
    "score": "score + pair[b, h, q, k]",
    "mask": "key[b, h, k] > -1.0",
}


def far(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """The same tensor with its elements along an axis so far apart that they end beyond 2**31."""
    others = torch.empty_like(tensor.select(axis, 0), memory_format=torch.contiguous_format)
    steps = tensor.shape[axis] - 1
    stride = 2**31 // steps + 64 & -64
    assert stride < 2**31
    room = torch.frombuffer(mmap(-1, (steps * stride + others.numel()) * tensor.itemsize), dtype=tensor.dtype)
    strides = [*others.stride()]
    strides.insert(axis, stride)
    return room.as_strided(tensor.shape, strides).copy_(tensor)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_module(generate(load(SPEC), tmp_path_factory.mktemp("far")))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).half()


def results(
    module: ModuleType, tensors: dict[str, torch.Tensor], d_out: torch.Tensor, **options: Any
) -> list[torch.Tensor]:
    leaves = {name: each.detach().requires_grad_(name != "key") for name, each in tensors.items()}
    out, lse = module.attention(**leaves, **options, return_lse=True)
    return [out, lse, *torch.autograd.grad(out, [leaf for leaf in leaves.values() if leaf.requires_grad], d_out)]


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["batch", "heads", "rows"])
@pytest.mark.parametrize("backward", [BACKWARD, FUSED], ids=["apart", "fused"])
def test_forward_and_backward(module: ModuleType, axis: int, backward: dict[str, str]) -> None:
    tensors = {"q": drawn(3, 3, 20, 16), "k": drawn(3, 3, 21, 16), "v": drawn(3, 3, 21, 16)}
    tensors |= {"pair": drawn(3, 3, 20, 21), "key": drawn(3, 3, 21)}
    options = {"config": TILES, "backward_config": backward}
    d_out = drawn(3, 3, 20, 16)
    wanted = results(module, tensors, d_out, **options)
    apart = {name: far(each, axis) if name != "key" or axis < 2 else each for name, each in tensors.items()}
    for found, right in zip(results(module, apart, far(d_out, axis), **options), wanted, strict=True):
        assert torch.equal(found, right)


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["batch", "heads", "rows"])
def test_few_queries(module: ModuleType, axis: int) -> None:
    q, k, v = drawn(3, 3, 3, 16), drawn(3, 3, 520, 16), drawn(3, 3, 520, 16)
    inputs = {"pair": drawn(3, 3, 3, 520), "key": drawn(3, 3, 520)}
    apart = {name: far(each, axis) if each.ndim > axis + 1 else each for name, each in inputs.items()}
    found = module.attention(*(far(each, axis) for each in (q, k, v)), **apart)
    assert torch.equal(found, module.attention(q, k, v, **inputs))


@pytest.mark.parametrize("axis", [0, 1], ids=["tokens", "heads"])
@pytest.mark.parametrize("backward", [BACKWARD, FUSED], ids=["apart", "fused"])
def test_packed_sequences(gallery_module: Gallery, axis: int, backward: dict[str, str]) -> None:
    module, batch = gallery_module("causal"), make_packed([(20, 33), (18, 18)], heads=3, kv_heads=3, dtype=torch.half)
    d_out = drawn(38, 3, 16)

    def gradients(tensors: list[torch.Tensor], d_out: torch.Tensor) -> list[torch.Tensor]:
        leaves = [each.detach().requires_grad_() for each in tensors]
        out = module.attention_varlen(*leaves, *batch.ends, *batch.longest, config=TILES, backward_config=backward)
        return [out, *torch.autograd.grad(out, leaves, d_out)]

    wanted = gradients([*batch.tensors], d_out)
    apart = gradients([far(each, axis) for each in batch.tensors], far(d_out, axis))
    assert all(map(torch.equal, apart, wanted))


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["pages", "slots", "heads"])
def test_a_paged_cache(gallery_module: Gallery, axis: int) -> None:
    module = gallery_module("causal")
    batch = make_batch((30, 17, 40), (3, 1, 2), heads=6, kv_heads=3, dtype=torch.half)
    q, k_cache, v_cache, block_table, seq_lens = batch.arguments
    wanted = module.attention_paged(*batch.arguments, **batch.options)
    arguments = far(q, axis % 2), far(k_cache, axis), far(v_cache, axis), block_table, seq_lens
    out = far(torch.zeros_like(q), axis % 2)
    module.attention_paged(*arguments, **batch.options, out=out)
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["pages", "slots", "heads"])
def test_new_keys_and_values(axis: int) -> None:
    k, v, slots = drawn(5, 3, 16), drawn(5, 3, 24), torch.tensor([70, -1, 3, 33, 79])
    near = torch.zeros(5, 16, 3, 16, dtype=torch.half), torch.zeros(5, 16, 3, 24, dtype=torch.half)
    store_kv(k, v, *near, slots)
    apart = [far(torch.zeros_like(each), axis) for each in near]
    store_kv(far(k, axis % 2), far(v, axis % 2), *apart, slots)
    assert all(map(torch.equal, apart, near))
