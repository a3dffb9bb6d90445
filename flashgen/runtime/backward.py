"""What the backward launch of a generated module needs: the incoming gradients and the outgoing ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

from flashgen.runtime.call import FLOAT32, Call, room, room_like
from flashgen.runtime.device.packed import rows_apart
from flashgen.runtime.strides import aligned_width, kernel_ready, ready_strides, row_strides

LOG2E = 1.4426950408889634
# Rows of the largest tile that a config may have.
LARGEST_TILE = 256


# Those of q, k and v; None for one that is made elsewhere.
Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


class Incoming(NamedTuple):
    """What comes from the output's side, as kernels read it.

    d_out [batch, heads, q_len, v_head_dim]; lse, in units of log2 and infinite for rows that see no key, and delta,
    float32 [batch, heads, num_rows], as the kernel `_delta` writes them: q_len rows, and some more to fill tiles.
    Packed, [1, heads, num_rows], each sequence has room to fill tiles.
    Where scores may be huge lse is in natural units, and `_delta` scales d_out and delta row by row: all p are too
    large by what lse has lost.
    """

    d_out: torch.Tensor
    # Strides of batch, heads and length of d_out, in elements.
    strides: tuple[int, ...]
    lse: torch.Tensor
    delta: torch.Tensor
    # lse less the terms of the logits that are constant along a row, counted from the first row of the tile of queries
    # that the config of `_backward_kv` has; None for a variant without such.
    tile_lse: torch.Tensor | None

    @property
    def lse_by_tile(self) -> torch.Tensor:
        """What the kernels for dK and dV read: lse without the terms that are constant along a row."""
        return self.lse if self.tile_lse is None else self.tile_lse

    @property
    def num_rows(self) -> int:
        """Rows of lse and delta for each head."""
        return self.lse.shape[2]

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers of rows, by the names of kernels' parameters."""
        return {"num_rows": self.num_rows, **d_out_strides(self.strides)}


def d_out_strides(strides: tuple[int, ...]) -> dict[str, int]:
    """Strides of batch, heads and length as kernels know those of d_out."""
    return dict(zip(("stride_ob", "stride_oh", "stride_om"), strides, strict=True))


def incoming(call: Call, d_out: torch.Tensor, by_tile: bool = False) -> Incoming:
    """Room for what kernels need beside d_out, which is copied where a kernel could not read it as it is.

    `by_tile` tells whether the variant has a `tile_lse`.
    """
    strides = ready_strides(d_out)
    if strides is None:
        # The gradient of a sum is one number, seen as many.
        d_out = kernel_ready("the gradient of out", d_out.contiguous())
        strides = row_strides(d_out)
    batch, heads, _ = call.layout.sizes.rows
    rows = d_out.new_empty((3 if by_tile else 2, batch, heads, num_rows(call)), dtype=torch.float32)
    return Incoming(d_out, strides, rows[0], rows[1], rows[2] if by_tile else None)


def rescaled(given: Incoming) -> Incoming:
    """The incoming gradients with room for a d_out of which each row is scaled, aligned as kernels read it."""
    *shape, dim = given.d_out.shape
    d_out = given.d_out.new_empty((*shape, aligned_width(dim, given.d_out.dtype)))[..., :dim]
    return given._replace(d_out=d_out, strides=row_strides(d_out))


def num_rows(call: Call) -> int:
    """Rows of lse and delta for each head: they fill tiles of every size, or those that packed sequences have room
    for."""
    s = call.sizes
    if s.packed:
        return s.query_tiles(rows_apart()) // s.heads * rows_apart()
    return -(-s.q_len // LARGEST_TILE) * LARGEST_TILE


def is_deterministic(deterministic: bool | None) -> bool:
    """The caller's choice, else torch's."""
    return torch.are_deterministic_algorithms_enabled() if deterministic is None else deterministic


def key_gradients(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Where `_backward_kv` writes dk and dv: one for each query head, in float32 where heads share keys."""
    s = call.sizes
    dtype = call.q.dtype if s.heads == s.kv_heads else torch.float32
    dk, dv = (room(call.q, (*s.keys_of(s.heads), dim), s.packed, dtype) for dim in (s.head_dim, s.v_head_dim))
    return dk, dv


def sum_of_groups(call: Call, gradient: torch.Tensor) -> torch.Tensor:
    """dk or dv [batch, kv_heads, kv_len, dim] from what the query heads that share a head of k and v add to it."""
    s = call.sizes
    if s.heads == s.kv_heads:
        return gradient
    total = gradient.unflatten(1, (s.kv_heads, s.heads // s.kv_heads)).sum(2).to(call.q.dtype)
    return _token_by_token(total) if s.packed else total


def _token_by_token(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor [1, heads, total, dim] as packed gradients lie, token by token."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def query_gradient(call: Call) -> torch.Tensor:
    """Where `_backward_q` writes dq."""
    s = call.sizes
    return room(call.q, (*s.rows, s.head_dim), True) if s.packed else room_like(call.q)


def query_sums(call: Call) -> torch.Tensor:
    """Where a fused `_backward_kv` adds up dq without its scale: zeros in float32, rows a multiple of 16 bytes long."""
    s = call.sizes
    width = aligned_width(s.head_dim, torch.float32)
    return torch.zeros((*s.rows, width), dtype=torch.float32, device=call.q.device)


def from_sums(call: Call, sums: torch.Tensor) -> torch.Tensor:
    """dq from what a fused kernel added up."""
    dq = (sums[..., : call.sizes.head_dim] * call.scale).to(call.q.dtype)
    return _token_by_token(dq) if call.sizes.packed else dq


def for_scale(dq: torch.Tensor | None, scale: float | None) -> torch.Tensor | None:
    """dq for the caller's scale: kernels compute with a positive one, on the negative of q where need be."""
    if dq is None or scale is None or scale >= FLOAT32.tiny:
        return dq
    return -dq if scale <= -FLOAT32.tiny else torch.zeros_like(dq)


def no_gradients(call: Call, learned: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Gradients of q, k, v and the learned inputs where there are no pairs, laid out as those that kernels make."""
    given = (call.q, call.k, call.v)
    if call.sizes.packed:
        by_token = (no_gradient(each.transpose(1, 2)).transpose(1, 2) for each in given)
        return *by_token, *map(no_gradient, learned)
    return tuple(map(no_gradient, (*given, *learned)))


def no_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros: contiguous whatever the strides of the tensor are, as every gradient is."""
    return torch.zeros_like(tensor, memory_format=torch.contiguous_format)


def sink_gradient(sinks: torch.Tensor, rows: Incoming, natural: bool = False) -> torch.Tensor:
    """The gradient of sinks [heads]: the sum over rows of exp(sink - lse) * (d_lse - sum(d_out * out)).

    Where lse has lost digits, delta makes up for it, as for all p.
    The rows' log-sum-exp is in units of log2, or `natural`, as the kernels of the variant take it. A row that sees no
    key, as one behind the last packed sequence, adds nothing, whatever comes back to it.
    """
    sinks_of_rows = sinks.float()[None, :, None]
    weights = torch.exp(sinks_of_rows - rows.lse) if natural else torch.exp2(sinks_of_rows * LOG2E - rows.lse)
    terms = torch.where(rows.lse == math.inf, 0.0, weights * rows.delta)
    return -terms.sum((0, 2)).to(sinks.dtype)
