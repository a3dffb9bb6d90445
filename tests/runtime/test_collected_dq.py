"""dQ as Hopper's kernel has added it up, brought into the order of rows."""

from __future__ import annotations

from itertools import accumulate, product

import pytest
import torch

from flashgen.runtime.device.collect import collect_dq

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Packed sequences begin at multiples of so many rows of the sums.
APART = 128


def as_threads_hold_it(tile: torch.Tensor) -> torch.Tensor:
    """A tile [64, 64] in the order of the registers of four warps (PTX ISA, the accumulator of wgmma.m64nNk16)."""
    found = torch.empty(64 * 64)
    places = product(range(8), range(4), range(32), range(2), range(2))
    for at, (eight, warp, lane, lower, odd) in enumerate(places):
        found[at] = tile[16 * warp + 8 * lower + lane // 4, 8 * eight + 2 * (lane % 4) + odd]
    return found


def in_fragments(rows: torch.Tensor) -> torch.Tensor:
    """[heads, rows, width] tile by tile."""
    tiles = (as_threads_hold_it(tile) for by_row in rows.flatten(0, 1).split(64) for tile in by_row.split(64, dim=1))
    return torch.cat([*tiles]).to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("head_dim", "width"), [(40, 64), (64, 64), (72, 128)])
def test_dense_sequences(head_dim: int, width: int, dtype: torch.dtype) -> None:
    batch, heads, q_len, num_rows = 2, 3, 70, 256
    torch.manual_seed(0)
    sums = torch.randn(batch * heads, num_rows, width)
    room = torch.full((batch * heads * q_len + 8, head_dim), 7.0, dtype=dtype, device=DEVICE)
    fragments = in_fragments(sums)
    collect_dq[fragments.numel() // 4096,](
        fragments, room, 0.25, heads, q_len, num_rows, head_dim, None, None, None, HEAD_DIM=width
    )
    wanted = (sums[:, :q_len, :head_dim] * 0.25).to(dtype).flatten(0, 1)
    assert torch.equal(room[:-8].cpu(), wanted)
    assert torch.all(room[-8:] == 7)


@pytest.mark.parametrize("lengths", [(70, 1, 130), (0, 128, 64)], ids=str)
def test_packed_sequences(lengths: tuple[int, ...]) -> None:
    """Those behind the last one too; what lies between sequences in the sums goes nowhere."""
    heads, head_dim, rest = 2, 40, 5
    ends = [0, *accumulate(lengths)]
    total, num_seqs = ends[-1] + rest, len(lengths)
    torch.manual_seed(0)
    sums = torch.full((heads, (total // APART + num_seqs + 1) * APART, 64), torch.nan)
    wanted = torch.randn(total, heads, head_dim)
    for b, (begin, length) in enumerate(zip(ends, (*lengths, rest), strict=True)):
        first = (begin // APART + b) * APART
        sums[:, first : first + length, :head_dim] = wanted[begin : begin + length].transpose(0, 1)
    room = torch.full((total + 1, heads, head_dim), 7.0, device=DEVICE)
    fragments, cu_seqlens = in_fragments(sums), torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    collect_dq[fragments.numel() // 4096,](
        fragments, room, 1.0, heads, max(lengths), sums.shape[1], head_dim, cu_seqlens, num_seqs, total, HEAD_DIM=64
    )
    assert torch.equal(room[:total].cpu(), wanted)
    assert torch.all(room[total] == 7)
