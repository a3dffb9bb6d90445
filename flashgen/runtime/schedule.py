"""Schedules: for a mask that is no interval of keys, which tiles of keys each tile of queries needs.

A generated kernel classifies every tile: no pair visible (skipped), some (computed with the mask) or all (computed
without). `compact` turns the classes into lists that the attention kernel walks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from flashgen.runtime.arguments import kind_beside
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.launching import launch
from flashgen.runtime.variant import Variant


@dataclass(frozen=True)
class Plan:
    """A schedule for one set of inputs and lengths, reusable as attention(..., plan=plan).

    `counts` int32 [batch or 1, heads or 1, q_tiles, 3]: how many mixed and how many full tiles of keys a tile of
    queries has; and, row by row, the tiles of queries by how many they have, the most first. `tiles` int32
    [..., q_tiles, kv_tiles]: the mixed ones from the front, the full ones from the back. `backward` is the same the
    other way round, which tiles of queries a tile of keys needs; None where no gradient will be asked for. `config` is
    None for the one on record, where the host has not looked it up. `variant` is the full name of what made it, and
    `lengths` are those of q and k, packed sequences together.
    """

    counts: torch.Tensor
    tiles: torch.Tensor
    config: Config | None
    variant: str
    lengths: tuple[int, ...]
    backward: Plan | None = None

    @property
    def nbytes(self) -> int:
        """The schedule's size in bytes."""
        return self.counts.nbytes + self.tiles.nbytes + (self.backward.nbytes if self.backward else 0)

    def serves(self, config: Config) -> bool:
        """Whether a config is known to have the sizes of these tiles."""
        return self.config is not None and (config.BM, config.BN) == (self.config.BM, self.config.BN)


# The tensors of a plan as operators take them: counts and tiles, and the same for the backward pass.
Parts = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def lengths_of(*tensors: torch.Tensor, axis: int) -> tuple[int, ...]:
    """The lengths of q and k along an axis; less than two where one has no such axis, which is refused elsewhere."""
    return tuple(tensor.shape[axis] for tensor in tensors if tensor.ndim > 2)


def plan_parts(
    variant: Variant, plan: Plan | None, lengths: tuple[int, ...], config: Any, backward_config: Any
) -> tuple[Parts, Any, Any]:
    """A plan as the operator takes it, and its configs unless the caller names others.

    Of other lengths it may have as many tiles, and would show keys that are not there: it is refused.
    With tiles of another size than the plan's, the backward pass makes a schedule of its own.
    """
    if plan is None:
        return (None, None, None, None), config, backward_config
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is {kind_beside(Plan, plan)}; expected what plan(...) returned")
    variant.refuse_plan_of(plan.variant)
    if len(lengths) == 2 and lengths != plan.lengths:
        raise ValueError(f"plan is for lengths {plan.lengths} of q and k; expected {lengths}")
    if config is not None and not plan.serves(Config.of(config)):
        known = "those on record" if plan.config is None else f"{plan.config.BM} x {plan.config.BN}"
        raise ValueError(f"config is {config!r}; expected the plan's tile sizes, {known}")
    config = plan.config if config is None else config
    named = {} if backward_config is None else backward_config
    keys = plan.backward if isinstance(named, Mapping) else None
    if keys is None or not _serves_keys(keys, named):
        return (plan.counts, plan.tiles, None, None), config, backward_config
    if keys.config is not None:
        backward_config = {"backward_kv": keys.config, **named}
    return (plan.counts, plan.tiles, keys.counts, keys.tiles), config, backward_config


def _serves_keys(keys: Plan, named: Mapping[str, Any]) -> bool:
    """Whether the backward pass takes the schedule of a plan where the caller names these configs."""
    return "backward_kv" not in named or keys.serves(Config.of(named["backward_kv"]))


def state_shape(call: Call, config: Config, by_batch: bool, by_head: bool) -> tuple[int, int, int, int]:
    """The shape of the classes: batch and heads are 1 where the mask does not tell them apart."""
    s = call.sizes
    q_tiles, kv_tiles = -(-s.q_len // config.BM), -(-s.kv_len // config.BN)
    return s.batch if by_batch else 1, s.heads if by_head else 1, q_tiles, kv_tiles


def check_plan(
    counts: torch.Tensor, tiles: torch.Tensor, shape: tuple[int, int, int, int], q: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """A plan's counts and tiles as kernels read them, refused if they were made for other sizes or another device."""
    if tuple(tiles.shape) != shape or tuple(counts.shape) != (*shape[:3], 3):
        raise ValueError(f"plan is for {tuple(tiles.shape)} tiles [batch, heads, q, kv]; expected {shape}")
    check_parts((counts, tiles), q)
    return counts.contiguous(), tiles.contiguous()


def check_parts(parts: Iterable[torch.Tensor | None], q: torch.Tensor) -> None:
    """Refuse parts of a plan that kernels cannot read beside q."""
    for part in parts:
        if part is not None and part.device != q.device:
            raise ValueError(f"plan is on {part.device}; expected q's device, {q.device}")
        if part is not None and part.dtype != torch.int32:
            raise TypeError(f"plan has dtype {part.dtype}; expected what plan(...) returned, torch.int32")


def key_plan(
    counts: torch.Tensor | None, tiles: torch.Tensor | None, call: Call, config: Config, by_batch: bool, by_head: bool
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What a plan has for the backward pass, counts and tiles, if these were passed."""
    if counts is None or tiles is None:
        return None
    batch, heads, q_tiles, kv_tiles = state_shape(call, config, by_batch, by_head)
    return check_plan(counts, tiles, (batch, heads, kv_tiles, q_tiles), call.q)


def wants_gradients(*tensors: torch.Tensor | None) -> bool:
    """Whether a backward pass may follow a call with these tensors."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def by_key(states: torch.Tensor, ragged: bool) -> torch.Tensor:
    """The classes the other way round, int8 [batch, heads, kv_tiles, q_tiles]: for each tile of keys those of queries.

    `ragged`: the last tile of queries reaches beyond the last row, so that it needs the mask where it is seen.
    """
    turned = states.transpose(-1, -2).contiguous()
    if ragged:
        turned[..., -1].clamp_(max=1)
    return turned


def compact(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """counts and tiles of a Plan from the classes, int8 [batch, heads, q_tiles, kv_tiles]: 0 none, 1 mixed, 2 full."""
    *rows, kv_tiles = states.shape
    counts = torch.empty((*rows, 3), dtype=torch.int32, device=states.device)
    tiles = torch.empty(states.shape, dtype=torch.int32, device=states.device)
    if states.numel() == 0:
        return counts.zero_(), tiles
    block = min(1024, max(16, triton.next_power_of_2(kv_tiles)))
    launch(_compact, states.numel() // kv_tiles, states, counts, tiles, kv_tiles, BLOCK=block)
    num_rows = rows[-1]
    ranked = min(128, max(16, triton.next_power_of_2(num_rows)))
    launch(_rank, states.numel() // (num_rows * kv_tiles) * -(-num_rows // ranked), counts, num_rows, BLOCK=ranked)
    return counts, tiles


@triton.jit
def _compact(states_ptr, counts_ptr, tiles_ptr, num_k_tiles, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    # Grid: one program for each row of tiles.
    row = tl.program_id(0).to(tl.int64)
    mixed = 0
    full = 0
    for first in tl.range(0, num_k_tiles, BLOCK):
        tile = first + tl.arange(0, BLOCK)
        state = tl.load(states_ptr + row * num_k_tiles + tile, mask=tile < num_k_tiles, other=0)
        is_mixed = (state == 1).to(tl.int32)
        is_full = (state == 2).to(tl.int32)
        mixed_at = mixed + tl.cumsum(is_mixed, 0) - is_mixed
        full_at = num_k_tiles - 1 - (full + tl.cumsum(is_full, 0) - is_full)
        tl.store(tiles_ptr + row * num_k_tiles + mixed_at, tile, mask=is_mixed != 0)
        tl.store(tiles_ptr + row * num_k_tiles + full_at, tile, mask=is_full != 0)
        mixed += tl.sum(is_mixed)
        full += tl.sum(is_full)
    tl.store(counts_ptr + 3 * row, mixed)
    tl.store(counts_ptr + 3 * row + 1, full)


@triton.jit
def _rank(counts_ptr, num_rows, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    # Grid: one program for each block of rows of each batch element and head. A row's rank is the number of those that
    # are longer, or as long and before it.
    blocks = tl.cdiv(num_rows, BLOCK)
    counts_ptr += 3 * (tl.program_id(0) // blocks).to(tl.int64) * num_rows
    row = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    exists = row < num_rows
    length = tl.load(counts_ptr + 3 * row, mask=exists) + tl.load(counts_ptr + 3 * row + 1, mask=exists)
    rank = tl.zeros([BLOCK], tl.int32)
    for first in tl.range(0, num_rows, BLOCK):
        other = first + tl.arange(0, BLOCK)
        inside = other < num_rows
        mixed = tl.load(counts_ptr + 3 * other, mask=inside, other=-1)
        longer = mixed + tl.load(counts_ptr + 3 * other + 1, mask=inside, other=0)
        ties = (longer[None, :] == length[:, None]) & (other[None, :] < row[:, None])
        rank += tl.sum(((longer[None, :] > length[:, None]) | ties).to(tl.int32), 1)
    tl.store(counts_ptr + 3 * rank + 2, row, mask=exists)
