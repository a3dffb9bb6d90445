"""Packed sequences on a GPU: proven forward and backward, replayed in graphs with other lengths, beyond 2**31."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from gallery import NAMES, VARIANTS
from packed_batch import make_packed, packed_case

from flashgen.verify import run_case
from flashgen.verify.cases import Backward

RAGGED = (
    (0, 0), (1, 1), (15, 15), (16, 17), (17, 16), (100, 100), (1000, 1000), (1000, 300), (200, 1000), (0, 50), (50, 0),
)  # fmt: skip
SIZES = [
    {"head_dim": 64, "v_head_dim": 64, "dtype": "bfloat16"},
    {"head_dim": 128, "v_head_dim": 128, "dtype": "float16"},
    {"head_dim": 40, "v_head_dim": 72, "dtype": "float32"},
    {"head_dim": 256, "v_head_dim": 256, "dtype": "bfloat16"},
]

Gallery = Callable[[str], ModuleType]

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{sizes['head_dim']} {sizes['dtype']}")
@pytest.mark.parametrize("backward", [None, Backward(), Backward("transposed", deterministic=True)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_ragged_sequences_equal_the_dense_ones(
    gallery_module: Gallery, name: str, backward: Backward | None, sizes: dict[str, int | str]
) -> None:
    case = replace(packed_case("ragged", RAGGED, **sizes), backward=backward)
    result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
    assert result.ok, result


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["full", "causal", "sliding_window", "softcap"])
def test_neighbours_of_nan_spoil_nothing(gallery_module: Gallery, name: str, dim: int) -> None:
    """What other sequences have, what is behind the last one, and in front of the first, is not read."""
    lengths = ((77, 77), (300, 333), (50, 129), (1, 1), (400, 0), (257, 511))
    packed = make_packed(lengths, head_dim=dim, v_head_dim=dim, dtype=torch.bfloat16, device="cuda")
    module = gallery_module(name)
    wanted = module.attention_varlen(*packed.tensors, *packed.ends, *packed.longest)
    for spared in range(len(lengths)):
        found = module.attention_varlen(*packed.all_nan_but(spared), *packed.ends, *packed.longest)
        rows, *_ = packed.slices(spared)
        assert torch.equal(found[rows], wanted[rows]), lengths[spared]


def test_ends_that_are_no_ends_harm_nothing(gallery_module: Gallery) -> None:
    packed = make_packed(RAGGED, head_dim=64, v_head_dim=64, dtype=torch.bfloat16, device="cuda")
    total, count = packed.tensors[0].shape[0], len(RAGGED) + 1
    for name in ("full", "causal", "document", "sliding_window"):
        module = gallery_module(name)
        own = {"doc": torch.zeros(packed.tensors[1].shape[0], dtype=torch.int32, device="cuda")}
        own = own if name == "document" else {}
        wanted = module.attention_varlen(*packed.tensors, *packed.ends, *packed.longest, **own)
        for seed in range(20):
            torch.manual_seed(seed)
            span = (2 * total, 2**31 - 1)[seed % 2]
            ends = [torch.randint(-span, span, (count,), dtype=torch.int32, device="cuda") for _ in "qk"]
            module.attention_varlen(*packed.tensors, *ends, *packed.longest, **own)
            torch.cuda.synchronize()
        found = module.attention_varlen(*packed.tensors, *packed.ends, *packed.longest, **own)
        assert torch.equal(found, wanted), name


def test_a_graph_is_replayed_with_other_lengths(gallery_module: Gallery) -> None:
    """Forward and backward; the tensors are as long as the longest batch, what is behind its end gets nothing."""
    module = gallery_module("document")
    packed = make_packed(((300, 300), (17, 17), (183, 183)), head_dim=64, v_head_dim=64, device="cuda")
    leaves = [each.to(torch.bfloat16).requires_grad_() for each in packed.tensors]
    doc = torch.arange(500, device="cuda", dtype=torch.int32) // 40
    ends = packed.ends[0].clone()

    def step() -> tuple[torch.Tensor, ...]:
        out = module.attention_varlen(*leaves, ends, ends, 400, 400, doc=doc)
        return (out, *torch.autograd.grad(out.float().square().sum(), leaves))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for lengths in ([300, 17, 183], [1, 0, 400], [100, 100, 100], [0, 0, 0]):
        ends.copy_(torch.tensor([0, *lengths]).cumsum(0))
        graph.replay()
        replayed = [each.clone() for each in found]
        for one, other in zip(replayed, step(), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
            assert torch.all(one[sum(lengths) :] == 0)


def test_nothing_waits_for_the_gpu(gallery_module: Gallery) -> None:
    module = gallery_module("dilated")
    packed = make_packed(RAGGED, head_dim=64, v_head_dim=64, dtype=torch.bfloat16, device="cuda")
    leaves = [each.requires_grad_() for each in packed.tensors]
    ends = packed.ends
    for _ in range(2):
        torch.cuda.set_sync_debug_mode("error" if _ else "default")
        try:
            out = module.attention_varlen(*leaves, *ends, *packed.longest)
            torch.autograd.grad(out, leaves, out)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_more_than_two_to_the_31_elements(gallery_module: Gallery) -> None:
    module = gallery_module("causal")
    heads, dim, length = 32, 128, 2048
    batch = 2**31 // (heads * dim * length) + 2
    q = torch.randn(batch * length, heads, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(batch * length, 1, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "kv")
    assert q.numel() > 2**31
    ends = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * length
    out, lse = module.attention_varlen(q, k, v, ends, ends, length, length, return_lse=True)
    rows = slice(q.shape[0] - length, q.shape[0])
    last = [each[rows].detach().transpose(0, 1)[None].requires_grad_() for each in (q, k, v)]
    wanted, wanted_lse = module.attention(*last, return_lse=True)
    torch.testing.assert_close(out[rows].transpose(0, 1)[None], wanted, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse[:, rows][None], wanted_lse, rtol=1e-4, atol=1e-4)
    found = torch.autograd.grad(out[rows].float().sum(), (q, k, v))
    for one, other in zip(found, torch.autograd.grad(wanted.float().sum(), last), strict=True):
        torch.testing.assert_close(one[rows].transpose(0, 1)[None], other, rtol=5e-2, atol=5e-2)
