"""Uninitialised memory holds NaN within the block, and torch is as it was after it."""

from __future__ import annotations

import pytest
import torch

from flashgen.verify.poison import poisoned


def state() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def test_new_memory_is_nan_however_it_is_allocated() -> None:
    like = torch.ones(3, 4)
    with poisoned():
        fresh = [
            torch.empty(5),
            torch.empty(5, dtype=torch.bfloat16),
            torch.empty_like(like),
            like.new_empty(2),
            torch.empty_strided((2, 2), (2, 1)),
        ]
        integers = torch.empty(5, dtype=torch.int32)
    assert all(tensor.isnan().all() for tensor in fresh)
    assert (integers == torch.iinfo(torch.int32).max).all()


def test_the_old_state_comes_back_even_after_an_error() -> None:
    before = state()
    with pytest.raises(KeyError), poisoned():
        assert state() == (True, True)
        raise KeyError
    assert state() == before
