"""What the kernels of a step are told by the scheduler, in tensors that stay in their place, as graphs need them."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from engine.scheduler import Limits, Part


class Fields(NamedTuple):
    """A step's numbers, int32, for `max_tokens` tokens and `max_batch` sequences.

    tokens, positions and slots (where in the cache the token's key goes, -1: nowhere) [max_tokens]; seq_lens
    [max_batch], new tokens included; cu_seqlens_q [max_batch + 1]; block_table [max_batch, max_blocks].
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    seq_lens: Tensor
    cu_seqlens_q: Tensor
    block_table: Tensor

    @classmethod
    def room(cls, limits: Limits, device: torch.device, pinned: bool) -> tuple[Tensor, Fields]:
        """One block of memory, and the fields in it."""
        T, B = limits.max_tokens, limits.max_batch
        sizes = (T, T, T, B, B + 1, B * limits.max_blocks)
        whole = torch.zeros(sum(sizes), dtype=torch.int32, device=device, pin_memory=pinned)
        tokens, positions, slots, seq_lens, cu_seqlens_q, table = whole.split(sizes)
        return whole, cls(tokens, positions, slots, seq_lens, cu_seqlens_q, table.view(B, limits.max_blocks))


class Batch:
    """A step's fields on the host and on the device. Parts beyond the batch have no tokens and no keys."""

    def __init__(self, limits: Limits, device: torch.device) -> None:
        self.limits = limits
        self._staged, self.host = Fields.room(limits, torch.device("cpu"), pinned=device.type == "cuda")
        self._there, self.device = Fields.room(limits, device, pinned=False)

    def fill(self, parts: list[Part]) -> int:
        """Write the parts' fields on the host and send them in one copy; the number of tokens.

        Does not wait: the host's fields must not change before the copy is over, which an engine knows when it has the
        tokens of the step.
        """
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        block_size = self.limits.block_size
        for row, part in enumerate(parts):
            sequence = part.sequence
            start, stop = sequence.cached, sequence.cached + part.count
            tokens += sequence.tokens[start:stop]
            positions += range(start, stop)
            slots += [sequence.pages[at // block_size] * block_size + at % block_size for at in range(start, stop)]
            write(self.host.block_table[row], sequence.pages)
        for field, numbers, beyond in (
            (self.host.tokens, tokens, 0),
            (self.host.positions, positions, 0),
            (self.host.slots, slots, -1),
            (self.host.seq_lens, [part.sequence.cached + part.count for part in parts], 0),
            (self.host.cu_seqlens_q, [0, *accumulate(part.count for part in parts)], len(tokens)),
        ):
            write(field, numbers)
            field[len(numbers) :] = beyond
        self._there.copy_(self._staged, non_blocking=True)
        return len(tokens)


def write(field: Tensor, numbers: list[int]) -> None:
    """Numbers at the beginning of a field."""
    field[: len(numbers)] = torch.tensor(numbers, dtype=field.dtype)
