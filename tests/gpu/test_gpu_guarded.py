"""Tensors that the soak guards: they are what they were, and an access beside one fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flashgen.verify.soak.guarded import guarded

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).parents[1] / "reader_beside.py"


def read(at_end: bool, place: int) -> subprocess.CompletedProcess[str]:
    """In a process of its own, whose context may fail."""
    command = [sys.executable, str(PROGRAM), str(int(at_end)), str(place)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("at_end", "place"), [(False, -1), (True, 8)])
def test_an_access_beside_fails(at_end: bool, place: int) -> None:
    assert "illegal memory access" in read(at_end, place).stderr


@pytest.mark.parametrize(("at_end", "place"), [(False, 0), (True, 7), (True, 0)])
def test_an_access_inside_does_not(at_end: bool, place: int) -> None:
    done = read(at_end, place)
    assert done.stdout.strip() == f"{place:.1f}", done.stderr


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.tensor(3.0),
        lambda: torch.arange(12).reshape(3, 4).t(),
        lambda: torch.arange(5, dtype=torch.bfloat16).expand(4, 5),
        lambda: torch.arange(30, dtype=torch.int16).reshape(3, 10)[..., 2:7],
        lambda: torch.tensor([True, False, True]),
        lambda: torch.zeros(0, 3),
    ],
    ids=["number", "transposed", "expanded", "part", "bools", "nothing"],
)
def test_it_is_the_same_tensor(made: Callable[[], torch.Tensor], at_end: bool) -> None:
    with torch.device("cuda"):
        tensor = made()
    found = guarded(tensor, at_end)
    assert found.stride() == tensor.stride() and found.dtype == tensor.dtype
    assert torch.equal(found, tensor)
