"""Schedules that leave a saving out: right, but with more to do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flashgen.runtime.schedule import Plan

if TYPE_CHECKING:
    from torch import Tensor


def all_masked(plan: Plan) -> Plan:
    """The same tiles, full ones as if they were mixed."""
    import torch

    listed = _listed(plan)
    # Tiles that are listed to the front, in their order.
    order = (~listed).to(torch.int8).sort(dim=-1, stable=True).indices
    counts = plan.counts.clone()
    counts[..., 0], counts[..., 1] = listed.sum(-1), 0
    return replace(plan, counts=counts, tiles=plan.tiles.gather(-1, order))


def all_tiles(plan: Plan) -> Plan:
    """Full tiles as they are; all others, those that no query sees too, as if they were mixed."""
    import torch

    kv_tiles = plan.tiles.shape[-1]
    num_full = plan.counts[..., 1:2]
    place = torch.arange(kv_tiles, device=plan.tiles.device).expand_as(plan.tiles)
    at = torch.where(place >= kv_tiles - num_full, plan.tiles, kv_tiles).long()
    full = torch.zeros((*at.shape[:-1], kv_tiles + 1), dtype=torch.bool, device=at.device).scatter_(-1, at, True)
    # Mixed tiles to the front, full ones to the end.
    order = full[..., :kv_tiles].to(torch.int8).sort(dim=-1, stable=True).indices
    counts = torch.cat([kv_tiles - num_full, plan.counts[..., 1:]], -1)
    return replace(plan, counts=counts, tiles=order.to(plan.tiles.dtype))


def _listed(plan: Plan) -> Tensor:
    """Which places of `tiles` hold a tile, bool."""
    import torch

    kv_tiles = plan.tiles.shape[-1]
    place = torch.arange(kv_tiles, device=plan.tiles.device).expand_as(plan.tiles)
    return (place < plan.counts[..., :1]) | (place >= kv_tiles - plan.counts[..., 1:2])
