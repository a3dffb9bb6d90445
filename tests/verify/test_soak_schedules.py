"""Classes of tiles as the soak has them of all pairs, and the schedules that it holds against these."""

from __future__ import annotations

from dataclasses import replace

import torch

from flashgen.runtime import Config
from flashgen.runtime.schedule import Plan
from flashgen.verify.soak.schedules import classes_of, schedule_fault


def test_classes_of_tiles() -> None:
    visible = torch.ones(1, 1, 5, 9, dtype=torch.bool)
    visible[..., :4, 4:] = False
    # Two rows of tiles of 4, three columns; the last column has one key, the second row one query.
    assert classes_of(visible, 4, 4).tolist() == [[[[2, 0, 0], [2, 2, 1]]]]
    assert classes_of(visible, 4, 4, ragged=True).tolist() == [[[[2, 0, 0], [1, 1, 1]]]]


def test_a_wrong_schedule_is_named() -> None:
    visible = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    visible[..., 0, 0] = False
    counts = torch.tensor([[[[1, 0, 0]]]], dtype=torch.int32)
    plan = Plan(counts, torch.zeros(1, 1, 1, 1, dtype=torch.int32), Config(16, 16, 4, 1), "drawn", (8, 8))
    assert schedule_fault(plan, visible) == ""
    full = replace(plan, counts=counts.flip(-1).roll(-1, -1))
    assert schedule_fault(full, visible) == "tile [0, 0, 0, 0] is full, mixed is right"
