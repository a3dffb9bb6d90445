"""Finding a scheduler's mistakes: the numbers that a call of packed or paged sequences is given, read on the host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from flashgen.runtime.arguments import (
    check_longest,
    check_paged_types,
    check_scalar,
    refuse_all_but_tensors,
    refuse_unstrided,
)


def check(
    q: torch.Tensor, k_cache: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor, *,
    cu_seqlens_q: torch.Tensor | None = None, max_seqlen_q: int = 1, max_seqlen_k: int | None = None,
) -> None:  # fmt: skip
    """Raise ValueError that says what is wrong with the numbers that a call of attention_paged is given, all of it.

    Reads them on the host, for which it waits: for finding a scheduler's mistakes. Tensors may be the host's copies, of
    64 bits too; of q and k_cache only the sizes count. attention_paged itself looks at shapes, dtypes and devices
    alone; of wrong numbers it reads and writes nothing out of bounds, and what it returns for the sequences concerned
    means nothing. An end before the last row of q is wrong here, though attention_paged takes it: rows behind it are
    nobody's. Raises TypeError for what is no tensor of integers, or no length.
    """
    check_paged_types(
        max_seqlen_q, max_seqlen_k, False, q=q, k_cache=k_cache, block_table=block_table, seq_lens=seq_lens,
        cu_seqlens_q=cu_seqlens_q,
    )  # fmt: skip
    _refuse_other_numbers(block_table=block_table, seq_lens=seq_lens, cu_seqlens_q=cu_seqlens_q)
    _refuse_other_dims(
        q=(q, "[total_q, ...]", q.ndim > 0),
        k_cache=(k_cache, "[num_blocks, block_size, kv_heads, head_dim]", k_cache.ndim == 4 and k_cache.shape[1] > 0),
        block_table=(
            block_table,
            "[batch, max_blocks], max_blocks at least 1",
            block_table.ndim == 2 and block_table.shape[1] > 0,
        ),
    )
    num_blocks, block_size = k_cache.shape[:2]
    batch, max_blocks = block_table.shape
    longest = max_blocks * block_size if max_seqlen_k is None else max_seqlen_k
    check_longest(max_seqlen_q=max_seqlen_q, max_seqlen_k=longest)
    _refuse_other_sizes("block_table", batch, seq_lens=(seq_lens, batch), cu_seqlens_q=(cu_seqlens_q, batch + 1))
    table, lengths = block_table.tolist(), seq_lens.tolist()
    most = min(longest, max_blocks * block_size)
    found = [
        f"seq_lens[{b}] is {length}; expected 0 to {most}"
        for b, length in enumerate(lengths)
        if not 0 <= length <= most
    ]
    found += _wrong_pages(table, lengths, num_blocks, block_size)
    if cu_seqlens_q is not None:
        found += _wrong_ends("q", "queries", cu_seqlens_q.tolist(), q.shape[0], max_seqlen_q)
    elif q.shape[0] != batch:
        found.append(f"q has {q.shape[0]} queries and block_table {batch} sequences; expected as many, or cu_seqlens_q")
    if found:
        raise ValueError("; ".join(found))


def check_varlen(
    q: torch.Tensor, k: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, max_seqlen_q: int,
    max_seqlen_k: int,
) -> None:  # fmt: skip
    """Raise ValueError that says what is wrong with the numbers that a call of attention_varlen is given, all of it.

    q [total_q, heads, head_dim], k [total_k, kv_heads, head_dim], cu_seqlens int32 [batch + 1]. Reads them on the host,
    for which it waits. attention_varlen itself looks at shapes, dtypes and devices alone; where numbers are wrong it
    reads and writes nothing out of bounds, and what it returns of any sequence means nothing: programs find theirs by a
    search in cu_seqlens. Ends before the last token are wrong here, though attention_varlen takes them: it leaves 0
    behind them.
    """
    refuse_all_but_tensors(q=q, k=k, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    for name, length in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        check_scalar(name, length, int)
    check_longest(max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
    _refuse_other_dims(q=(q, "[total_q, ...]", q.ndim > 0), k=(k, "[total_k, ...]", k.ndim > 0))
    ends = max(1, cu_seqlens_q.numel())
    _refuse_other_sizes("cu_seqlens_q", ends - 1, cu_seqlens_q=(cu_seqlens_q, ends), cu_seqlens_k=(cu_seqlens_k, ends))
    _refuse_other_numbers(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    found = [
        *_wrong_ends("q", "queries", cu_seqlens_q.tolist(), q.shape[0], max_seqlen_q),
        *_wrong_ends("k", "keys", cu_seqlens_k.tolist(), k.shape[0], max_seqlen_k),
    ]
    if found:
        raise ValueError("; ".join(found))


def _refuse_other_numbers(**tensors: torch.Tensor | None) -> None:
    """TypeError for what has other numbers than integers, or none: the host may have them longer than kernels do."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        refuse_unstrided(**{name: tensor})
        if tensor.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} is {tensor.dtype}; expected int32")
        if tensor.is_meta:
            raise TypeError(f"{name} is on meta; expected a tensor that has its numbers")


def _refuse_other_dims(**shapes: tuple[torch.Tensor, str, bool]) -> None:
    """ValueError for a tensor that is not of the form that is wanted."""
    for name, (tensor, wanted, fits) in shapes.items():
        if not fits:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {wanted}")


def _refuse_other_sizes(of: str, batch: int, **numbers: tuple[torch.Tensor | None, int]) -> None:
    """ValueError for what has not as many numbers as it should beside a tensor `of` so many sequences."""
    wrong = [
        f"{name} has shape {tuple(tensor.shape)}; expected [{size}], as {of} is of {batch} sequences"
        for name, (tensor, size) in numbers.items()
        if tensor is not None and tuple(tensor.shape) != (size,)
    ]
    if wrong:
        raise ValueError("; ".join(wrong))


def _wrong_pages(
    table: Sequence[Sequence[int]], lengths: Sequence[int], num_blocks: int, block_size: int
) -> list[str]:  # fmt: skip
    """What is wrong with the entries of a block table that sequences of these lengths use."""
    return [
        f"block_table[{b}, {place}] is {page}; expected 0 to {num_blocks - 1}"
        for b, length in enumerate(lengths)
        for place, page in enumerate(table[b][: -(-max(length, 0) // block_size)])
        if not 0 <= page < num_blocks
    ]


def _wrong_ends(side: str, what: str, starts: Sequence[int], total: int, longest: int) -> list[str]:
    """What is wrong with cu_seqlens of queries or keys, of which there are `total`."""
    found = []
    if starts[0] != 0:
        found.append(f"cu_seqlens_{side}[0] is {starts[0]}; expected 0")
    if starts[-1] != total:
        found.append(f"cu_seqlens_{side}[{len(starts) - 1}] is {starts[-1]}; expected {total}, the number of {what}")
    for b, (start, stop) in enumerate(pairwise(starts)):
        if not 0 <= stop - start <= longest:
            found.append(f"sequence {b} has {stop - start} {what}; expected 0 to max_seqlen_{side}, {longest}")
    return found
