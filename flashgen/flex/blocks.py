"""The mask of a block mask that was made of blocks: no mask_mod says which they are."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.nn.attention.flex_attention import BlockMask

from flashgen.flex.mods import Mod


class _Kept(NamedTuple):
    """A mask, the lists that it was made of, and its width in blocks with the version of each list then."""

    lists: tuple[torch.Tensor, ...]
    state: tuple[int, ...]
    mask: Mod


_kept: WeakKeyDictionary[BlockMask, _Kept] = WeakKeyDictionary()


def mask_of_blocks(block_mask: BlockMask) -> Mod:
    """The mask mod of the blocks that are there now: whoever has the block mask may change them.

    A matrix of them is made where they have changed; torch.compile makes it in its graph.
    """
    lists: tuple[Any, ...] = (block_mask.kv_num_blocks, block_mask.kv_indices)
    if block_mask.full_kv_indices is not None:
        lists += (block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    # Blocks of one sequence, or one head, are those of all.
    sides = *block_mask.BLOCK_SIZE, lists[1].shape[0] > 1, lists[1].shape[1] > 1
    # Lists may be shorter than there are blocks of keys.
    width = -(-block_mask.seq_lengths[1] // block_mask.BLOCK_SIZE[1])
    if torch.compiler.is_compiling():
        return functools.partial(_is_listed, *sides, width, lists)
    # Tensors of inference mode do not count their versions.
    if any(each.is_inference() for each in lists):
        return functools.partial(_is_in_block, *sides, _matrix(width, *lists))
    known, state = _kept.get(block_mask), (width, *(each._version for each in lists))
    if known is None or state != known.state or any(map(operator.is_not, lists, known.lists)):
        # One of inference mode would be of no use outside of it.
        with torch.inference_mode(False):
            mask = functools.partial(_is_in_block, *sides, _matrix(width, *lists))
        known = _kept[block_mask] = _Kept(lists, state, mask)
    return known.mask


def _is_listed(
    rows: int, columns: int, by_sequence: bool, by_head: bool, width: int, lists: tuple[torch.Tensor, ...],
    b: Any, h: Any, q: Any, k: Any,
) -> torch.Tensor:  # fmt: skip
    return _is_in_block(rows, columns, by_sequence, by_head, _matrix(width, *lists), b, h, q, k)


def _is_in_block(
    rows: int, columns: int, by_sequence: bool, by_head: bool, blocks: torch.Tensor, b: Any, h: Any, q: Any, k: Any
) -> torch.Tensor:
    return blocks[b if by_sequence else 0, h if by_head else 0, q // rows, k // columns]


def _matrix(width: int, counts: torch.Tensor, listed: torch.Tensor, *full: torch.Tensor) -> torch.Tensor:
    """Which of `width` blocks of keys each block of queries sees: the first `counts` of those that are `listed`."""
    is_seen = torch.arange(listed.shape[-1], device=listed.device) < counts.unsqueeze(-1)
    # What is not seen goes to a column beyond the last.
    places = torch.where(is_seen, listed, width).clamp(max=width).long()
    none = torch.zeros((*listed.shape[:-1], width + 1), dtype=torch.bool, device=listed.device)
    blocks = none.scatter(-1, places, True)[..., :width]
    return blocks | _matrix(width, *full) if full else blocks
