"""Whether a plan has the tiles that a mask asks for."""

from __future__ import annotations

import torch

from flashgen.runtime.schedule import Plan

Tensor = torch.Tensor
NONE, MIXED, FULL = 0, 1, 2


def schedule_fault(plan: Plan, visible: Tensor) -> str:
    """What is wrong with a plan for pairs [batch, heads, q_len, kv_len], empty where nothing is.

    A tile with a visible pair is there, and no other; it is full where all its pairs are visible and its last key
    exists. So it is the other way round, where its last query has to exist too.
    """
    wrong = _fault(plan, visible)
    if not wrong and plan.backward is not None:
        wrong = _fault(plan.backward, visible.transpose(-1, -2), by_key=True)
        wrong = wrong and f"backward: {wrong}"
    return wrong


def _fault(plan: Plan, visible: Tensor, by_key: bool = False) -> str:
    """Of one direction. The rows of a backward plan are tiles of keys."""
    assert plan.config is not None
    rows, columns = (plan.config.BN, plan.config.BM) if by_key else (plan.config.BM, plan.config.BN)
    found = classes(plan)
    wanted = classes_of(visible, rows, columns, ragged=by_key)
    for axis in (0, 1):
        if found.shape[axis] == 1 < wanted.shape[axis]:
            found = found.expand(*(wanted.shape[i] if i == axis else -1 for i in range(4)))
    if found.shape != wanted.shape:
        return f"tiles are {tuple(found.shape)}, {tuple(wanted.shape)} are right"
    names = ("none", "mixed", "full")
    for place in (found != wanted).nonzero()[:1].tolist():
        is_, right = int(found[tuple(place)]), int(wanted[tuple(place)])
        return f"tile {place} is {names[is_]}, {names[right]} is right"
    return _ranking_fault(plan)


def _ranking_fault(plan: Plan) -> str:
    """The rows by how many tiles they have, the most first, and the first of equals first."""
    length = plan.counts[..., 0] + plan.counts[..., 1]
    ranked = torch.sort(-length.long(), dim=-1, stable=True).indices
    return "" if torch.equal(ranked, plan.counts[..., 2].long()) else "rows are not ranked by their tiles"


def classes(plan: Plan) -> Tensor:
    """The class of each tile in a plan, [batch, heads, rows, columns]."""
    counts, tiles = plan.counts.cpu(), plan.tiles.cpu()
    found = torch.zeros(tiles.shape, dtype=torch.int64)
    columns = tiles.shape[-1]
    for row in torch.cartesian_prod(*map(torch.arange, tiles.shape[:-1])).tolist() if tiles.numel() else ():
        mixed, full, *_ = counts[tuple(row)].tolist()
        found[tuple(row)][tiles[tuple(row)][:mixed].long()] = MIXED
        found[tuple(row)][tiles[tuple(row)][columns - full :].long()] = FULL
    return found


def classes_of(visible: Tensor, rows: int, columns: int, ragged: bool = False) -> Tensor:
    """The right class of each tile of pairs [batch, heads, length, others]; none is full beyond the last column or,
    where `ragged`, beyond the last row."""
    batch, heads, length, others = visible.shape
    down, across = -(-length // rows), -(-others // columns)
    # Rows beyond the last count for nothing, columns beyond the last as hidden.
    some, every = (torch.full((batch, heads, down * rows, across * columns), fill) for fill in (False, True))
    some[..., :length, :others] = every[..., :length, :others] = visible.cpu()
    every[..., others:] = False
    if ragged:
        every[..., length:, :] = False
    tiled = (batch, heads, down, rows, across, columns)
    any_, all_ = some.view(tiled).any(5).any(3), every.view(tiled).all(5).all(3)
    return torch.where(all_, FULL, torch.where(any_, MIXED, NONE))
