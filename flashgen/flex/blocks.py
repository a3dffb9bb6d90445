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
    """A mask, and the lists that it was made of, each with its version then."""

    lists: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]
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
    if torch.compiler.is_compiling():
        return functools.partial(_is_listed, *sides, lists)
    # Tensors of inference mode do not count their versions.
    if any(each.is_inference() for each in lists):
        return functools.partial(_is_in_block, *sides, _matrix(*lists))
    known, versions = _kept.get(block_mask), tuple(each._version for each in lists)
    if known is None or versions != known.versions or any(map(operator.is_not, lists, known.lists)):
        # One of inference mode would be of no use outside of it.
        with torch.inference_mode(False):
            mask = functools.partial(_is_in_block, *sides, _matrix(*lists))
        known = _kept[block_mask] = _Kept(lists, versions, mask)
    return known.mask


def _is_listed(
    rows: int, columns: int, by_sequence: bool, by_head: bool, lists: tuple[torch.Tensor, ...],
    b: Any, h: Any, q: Any, k: Any,
) -> torch.Tensor:  # fmt: skip
    return _is_in_block(rows, columns, by_sequence, by_head, _matrix(*lists), b, h, q, k)


def _is_in_block(
    rows: int, columns: int, by_sequence: bool, by_head: bool, blocks: torch.Tensor, b: Any, h: Any, q: Any, k: Any
) -> torch.Tensor:
    return blocks[b if by_sequence else 0, h if by_head else 0, q // rows, k // columns]


def _matrix(counts: torch.Tensor, listed: torch.Tensor, *full: torch.Tensor) -> torch.Tensor:
    """Which blocks of keys each block of queries sees: the first `counts` of those that are `listed`."""
    most = listed.shape[-1]
    is_seen = torch.arange(most, device=listed.device) < counts.unsqueeze(-1)
    # What is not seen goes to a column beyond the last.
    places = torch.where(is_seen, listed, most).long()
    none = torch.zeros((*listed.shape[:-1], most + 1), dtype=torch.bool, device=listed.device)
    blocks = none.scatter(-1, places, True)[..., :most]
    return blocks | _matrix(*full) if full else blocks
