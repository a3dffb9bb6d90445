"""Gradients place by place: what cancels where an element is read twice is seen."""

from __future__ import annotations

import torch

from flashgen.verify.places import Places


def test_places_that_cancel_are_added_up_by_their_magnitude() -> None:
    x = torch.arange(1.0, 4.0, dtype=torch.float64, requires_grad=True)
    with Places() as places:
        wide = x.to(torch.float64) * 1.0  # what the formula reads need not be the leaf itself
        output = wide[torch.tensor([0, 1])] * 3 - wide[torch.tensor([0, 2])] * 2
    assert places.gradients(output, torch.ones_like(output), x).tolist() == [5, 3, 2]
    assert torch.autograd.grad(output, x, torch.ones_like(output))[0].tolist() == [1, 3, -2]


def test_what_is_read_in_another_way_has_its_whole_gradient() -> None:
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    other = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with Places() as places:
        output = (x * 2).sum() + other[torch.tensor([0])].sum()
    assert places.gradients(output, torch.ones_like(output), x).tolist() == [2, 2, 2]
