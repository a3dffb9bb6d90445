"""The mask of a block mask whose blocks were listed by hand: no mask_mod says which they are."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, noop_mask

from flashgen.flex.aside import aside
from flashgen.flex.mods import Mod


class _Kept(NamedTuple):
    """A mask, what it was made of, and the sizes, the stream and the version and address of each list then."""

    parts: tuple[Any, ...]
    state: tuple[Any, ...]
    mask: Mod


# The attribute of a block mask where its mask is kept, to go with it: a mask_mod may read what has the block mask.
_KEPT = "_kept_by_flashgen"

# How many dimensions the lists have.
_LISTS = {"kv_num_blocks": 3, "kv_indices": 4, "full_kv_num_blocks": 3, "full_kv_indices": 4}


def hides_more(block_mask: BlockMask) -> bool:
    """Whether blocks were listed by hand beside a mask_mod, so that what is not listed is hidden too.

    `create_block_mask` lists what its mask_mod shows: full blocks apart, and with a place for each block in its lists.
    """
    return block_mask.full_kv_indices is None or block_mask.kv_indices.shape[-1] < _width(block_mask)


def check_lists(block_mask: BlockMask, batch: int, heads: int) -> None:
    """Raises ValueError unless the lists fit each other, and are those of so many sequences and heads and all queries.

    The numbers of blocks are [batch or 1, heads or 1, rows], and the blocks have one dimension more.
    """
    of_lists = block_mask.kv_num_blocks.shape
    for name, rank in _LISTS.items():
        shape = () if getattr(block_mask, name) is None else getattr(block_mask, name).shape
        if shape and (len(of_lists) != 3 or shape[:3] != of_lists or len(shape) != rank):
            raise ValueError(
                f"block_mask.{name} has shape {tuple(shape)} beside kv_num_blocks {tuple(of_lists)}; expected "
                f"[batch, heads, rows{', blocks' * (rank == 4)}]"
            )
    sequences, of_heads, rows = of_lists
    if sequences not in (1, batch) or of_heads not in (1, heads):
        raise ValueError(
            f"block_mask has blocks of {sequences} sequences and {of_heads} heads; expected those of {batch} or 1, and "
            f"of {heads} or 1"
        )
    q_len, of_row = block_mask.seq_lengths[0], block_mask.BLOCK_SIZE[0]
    if rows * of_row < q_len:
        raise ValueError(f"block_mask has blocks of {rows} times {of_row} queries; expected those of {q_len} or more")


def mask_of_blocks(block_mask: BlockMask) -> Mod:
    """The mask mod of the blocks that are there now: whoever has the block mask may change them.

    Pairs in full blocks are seen, those in others where a mask_mod shows them, if there is one. A matrix of the blocks
    is made where they have changed; torch.compile makes it in its graph.
    """
    own, sides, listed, full = _taken_apart(block_mask)
    width = _width(block_mask)

    def in_blocks(*lists: torch.Tensor) -> Mod:
        return functools.partial(_is_in_block, *sides, _matrix(width, *lists))

    if torch.compiler.is_compiling() or not all(map(_tells_of_changes, (*listed, *full))):
        return _joined(in_blocks, own, listed, full)
    parts = (*listed, *full, own)
    # Whoever assigns to `data` makes a list another without a version more.
    now = ((each._version, each.data_ptr()) for each in (*listed, *full))
    state = (*sides, width, _stream_of(listed[1]), *now)
    known = vars(block_mask).get(_KEPT)
    if known is None or state != known.state or any(map(operator.is_not, parts, known.parts)):
        # Made of fake tensors, or in inference mode, it would be of no use outside of that.
        with aside():
            known = _Kept(parts, state, _joined(in_blocks, own, listed, full))
        setattr(block_mask, _KEPT, known)
    return known.mask


def like_mask_of_blocks(block_mask: BlockMask) -> Mod:
    """A mask mod of the same code and kinds of values as `mask_of_blocks` gives, of what torch.compile was handed: a
    matrix that is made in its graph, where lengths may be any, is not there for kernels to be found by.
    """
    own, sides, listed, full = _taken_apart(block_mask)
    return _joined(lambda _, places, *__: functools.partial(_is_in_block, *sides, places != 0), own, listed, full)


def _taken_apart(
    block_mask: BlockMask,
) -> tuple[Mod | None, tuple[int, int, bool, bool], tuple[Any, ...], tuple[Any, ...]]:
    """The mask_mod if there is one, what the places of a pair's block follow from, and the lists."""
    listed: tuple[Any, ...] = (block_mask.kv_num_blocks, block_mask.kv_indices)
    full: tuple[Any, ...] = ()
    if block_mask.full_kv_indices is not None:
        full = (block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    own = None if block_mask.mask_mod is noop_mask else block_mask.mask_mod
    # Blocks of one sequence, or one head, are those of all.
    rows, columns = block_mask.BLOCK_SIZE
    sides = rows, columns, listed[1].shape[0] > 1, listed[1].shape[1] > 1
    return own, sides, listed, full


def _tells_of_changes(listed: torch.Tensor) -> bool:
    """Whether what is made of a list holds until its version is another, at any call.

    Tensors of inference mode do not count theirs; a graph that is captured reads lists anew at each replay; and fake
    tensors, and those of a transform of torch.func, are of use within that alone.
    """
    return not (
        listed.is_inference()
        or type(listed) is not torch.Tensor
        or torch._C._functorch.is_functorch_wrapped_tensor(listed)
        or (listed.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _stream_of(listed: torch.Tensor) -> int:
    """The stream on which a matrix is made, and read: another would not wait for it."""
    return torch.cuda.current_stream(listed.device).cuda_stream if listed.is_cuda else 0


def _width(block_mask: BlockMask) -> int:
    """How many blocks of keys there are; lists may be shorter."""
    return -(-block_mask.seq_lengths[1] // block_mask.BLOCK_SIZE[1])


def _joined(in_blocks: Callable[..., Mod], own: Mod | None, listed: tuple[Any, ...], full: tuple[Any, ...]) -> Mod:
    """What is seen of these lists, by what makes a mask mod of lists."""
    if own is None:
        return in_blocks(*listed, *full)
    return functools.partial(_is_seen, own, in_blocks(*listed), in_blocks(*full) if full else None)


def _is_seen(own: Mod, listed: Mod, full: Mod | None, b: Any, h: Any, q: Any, k: Any) -> torch.Tensor:
    # A mask of integers shows what is not 0.
    seen = torch.where(listed(b, h, q, k), own(b, h, q, k), False)
    return seen if full is None else seen | full(b, h, q, k)


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
