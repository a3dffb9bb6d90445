"""The names that a mod gives to its parts: those of its local variables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from flashgen.flex.foreign import is_foreign


@contextmanager
def named_locals(learn: Callable[[str, torch.Tensor], None]) -> Iterator[None]:
    """Have `learn` told each tensor in a variable of the mod's functions, and its name, as these return."""
    before = sys.getprofile()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and not is_foreign(frame.f_code.co_filename):
            for variable, held in frame.f_locals.items():
                if isinstance(held, torch.Tensor):
                    learn(variable, held)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)
