"""The first and the last key of a query are those that transformers' own mask function shows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

masking = pytest.importorskip("transformers.masking_utils")

from flashgen.integrations.runs import is_causal_window, runs, sees_a_run  # noqa: E402

PADDING = torch.tensor([0, 5, 20])
WINDOW = masking.sliding_window_causal_mask_function(7)
CHUNK = masking.chunked_causal_mask_function(16, PADDING)
# Those whose ends follow from what they are, wherever queries and keys are.
FUNCTIONS = {
    "causal": masking.causal_mask_function,
    "full": masking.bidirectional_mask_function,
    "window": WINDOW,
    "window of one": masking.sliding_window_causal_mask_function(1),
    "both sides": masking.sliding_window_bidirectional_mask_function(5),
    "chunk": CHUNK,
    "window in a chunk": masking.and_masks(WINDOW, CHUNK),
}
# Integers, and a tensor, as a static cache has it.
OFFSETS = (0, 3, 30, torch.tensor(12))


def shown(function: Callable[..., Any], q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The pairs that a mask function shows, [batch, q_length, kv_length]."""
    sequence, head = torch.arange(len(PADDING))[:, None, None], torch.zeros((), dtype=torch.int64)
    seen: torch.Tensor = function(sequence, head, q[None, :, None], k[None, None, :])
    return seen.expand(len(PADDING), len(q), len(k))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_runs_hold_the_keys_that_are_seen(name: str) -> None:
    function = FUNCTIONS[name]
    assert sees_a_run(function)
    for q_length, kv_length, q_offset, kv_offset in product((1, 17), (5, 40), OFFSETS, OFFSETS):
        first, last = runs(function, len(PADDING), q_length, kv_length, q_offset, kv_offset, "cpu")
        k = torch.arange(kv_length)
        found = (k >= first[..., None]) & (k <= last[..., None])
        assert torch.equal(found, shown(function, torch.arange(q_length) + q_offset, k + kv_offset))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_others_are_searched_for_the_ends(name: str) -> None:
    """The same function, not to be recognised, on queries whose own keys are there."""
    function = masking.and_masks(lambda *pair: FUNCTIONS[name](*pair))
    first, last = runs(function, len(PADDING), 30, 70, 35, 20, "cpu")
    known = runs(FUNCTIONS[name], len(PADDING), 30, 70, 35, 20, "cpu")
    assert torch.equal(first, known[0])
    assert torch.equal(last, known[1])


def test_windows_are_told_from_others() -> None:
    assert is_causal_window(WINDOW)
    others = (masking.causal_mask_function, CHUNK, FUNCTIONS["both sides"], FUNCTIONS["window in a chunk"])
    assert not any(map(is_causal_window, (*others, lambda *pair: pair[2] >= pair[3])))
