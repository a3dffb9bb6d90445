"""What is written to has a place for each element: layouts of caches and outputs that are taken, and that are not."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from flashgen.runtime.serving import store_kv

BLOCKS, SLOTS, HEADS, DIM = 3, 16, 2, 8
SHAPE = (BLOCKS, SLOTS, HEADS, DIM)
STEPS = SLOTS * HEADS * DIM

# Views [num_blocks, block_size, kv_heads, head_dim] of memory that caches share with more.
TAKEN: dict[str, Callable[[], torch.Tensor]] = {
    "tokens first": lambda: torch.zeros(SHAPE),
    "heads first": lambda: torch.zeros(BLOCKS, HEADS, SLOTS, DIM).transpose(1, 2),
    "keys and values apart": lambda: torch.zeros(2, *SHAPE)[1],
    "keys and values in each block": lambda: torch.zeros(BLOCKS, 2, SLOTS, HEADS, DIM)[:, 1],
    "keys and values in each head": lambda: torch.zeros(BLOCKS, SLOTS, HEADS, 2 * DIM)[..., DIM:],
    "keys and values in each token": lambda: torch.zeros(BLOCKS, SLOTS, 2, HEADS, DIM)[:, :, 1],
    "layers in each block": lambda: torch.zeros(BLOCKS, 4, HEADS, SLOTS, DIM)[:, 2].transpose(1, 2),
    "blocks in each head": lambda: torch.zeros(HEADS, BLOCKS, SLOTS, DIM).permute(1, 2, 0, 3),
    "blocks side by side": lambda: torch.zeros(SLOTS, BLOCKS, HEADS, DIM).transpose(0, 1),
    "padded blocks": lambda: torch.zeros(4 * STEPS).as_strided(SHAPE, (STEPS + 24, HEADS * DIM, DIM, 1)),
    "every other block": lambda: torch.zeros(2 * BLOCKS, SLOTS, HEADS, DIM)[::2],
    "one block of any step": lambda: torch.zeros(STEPS).as_strided((1, *SHAPE[1:]), (1, HEADS * DIM, DIM, 1)),
    "one head of any step": lambda: torch.zeros(2 * STEPS).as_strided((BLOCKS, 16, 1, DIM), (16 * DIM, DIM, 0, 1)),
}  # fmt: skip
REFUSED = {
    "blocks expanded": (0, HEADS * DIM, DIM, 1),
    "blocks too close": (STEPS - HEADS * DIM, HEADS * DIM, DIM, 1),
    "one element of two blocks": (STEPS - 1, HEADS * DIM, DIM, 1),
    "slots as heads": (STEPS, DIM, DIM, 1),
    "heads too close": (STEPS, HEADS * DIM, DIM // 2, 1),
}


@pytest.mark.parametrize("layout", TAKEN)
def test_caches_are_written_where_each_element_has_a_place(layout: str) -> None:
    cache = TAKEN[layout]()
    k = torch.randn(2, cache.shape[2], DIM)
    store_kv(k, k, cache, torch.zeros(cache.shape), torch.tensor([SLOTS - 1, 0]))
    torch.testing.assert_close(cache[0, [SLOTS - 1, 0]], k)
    assert cache.count_nonzero() == k.numel()


@pytest.mark.parametrize("strides", REFUSED.values(), ids=REFUSED)
def test_caches_whose_elements_share_memory_are_refused(strides: tuple[int, ...]) -> None:
    memory, k = torch.zeros(4 * STEPS), torch.ones(2, HEADS, DIM)
    with pytest.raises(ValueError, match=r"k_cache has strides .* expected a place in memory for each element"):
        store_kv(k, k, memory.as_strided(SHAPE, strides), torch.zeros(SHAPE), torch.tensor([0, 1]))
    assert not memory.any()


def call(module: ModuleType, out: torch.Tensor) -> torch.Tensor:
    """Attention of as many sequences as `out` has, each of one key, so that each head's result is that key's value."""
    queries, pages = torch.zeros(out.shape), torch.arange(len(out), dtype=torch.int32)
    cache = torch.arange(1.0, 1 + len(out))[:, None, None, None].repeat(1, SLOTS, HEADS, DIM)
    return module.attention_paged(queries, cache, cache, pages[:, None], torch.ones_like(pages), out=out)


@pytest.mark.parametrize("strides", [(HEADS * DIM, DIM, 1), (DIM, 3 * DIM, 1), (2 * HEADS * DIM, 2 * DIM, 1)], ids=str)
def test_out_may_be_any_layout_with_a_place_for_each_element(
    gallery_module: Callable[[str], ModuleType], strides: tuple[int, ...]
) -> None:
    out = torch.zeros(200).as_strided((3, HEADS, DIM), strides)
    call(gallery_module("causal"), out)
    torch.testing.assert_close(out, torch.arange(1.0, 4)[:, None, None].expand(3, HEADS, DIM))


@pytest.mark.parametrize("strides", [(DIM, DIM, 1), (HEADS * DIM, DIM // 2, 1), (HEADS * DIM - 1, DIM, 1)], ids=str)
def test_an_out_whose_elements_share_memory_is_refused(
    gallery_module: Callable[[str], ModuleType], strides: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"out has strides .* a place for each element"):
        call(gallery_module("causal"), torch.zeros(200).as_strided((3, HEADS, DIM), strides))


def test_an_out_without_elements_is_taken(gallery_module: Callable[[str], ModuleType]) -> None:
    out = torch.zeros(0, HEADS, DIM)
    empty = torch.zeros(0, 1, dtype=torch.int32)
    cache = torch.zeros(SHAPE)
    assert gallery_module("causal").attention_paged(out, cache, cache, empty, empty[:, 0], out=out) is out


def test_a_compiler_takes_an_out_of_any_length(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("causal")
    torch._dynamo.reset()
    compiled = torch.compile(lambda out: call(module, out), fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (2, 3, 5):
        out = torch.zeros(length, HEADS, DIM)
        compiled(out)
        assert torch.equal(out[:, 0, 0], torch.arange(1.0, 1 + length))
