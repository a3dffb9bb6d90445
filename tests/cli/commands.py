"""What tests of the command share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from flashgen.verify import CaseResult, Report

RENDER_ONLY = ("--no-verify", "--no-compile", "--no-tune")

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def documents(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ended]


def passed_report(*args: object, **kwargs: object) -> Report:
    return Report("quick", "somewhere", (CaseResult("odd lengths", 0.1, 0.5, True, "out at [0, 0, 0]"),), 1.0)
