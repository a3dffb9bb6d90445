"""What a search has of each config that it tried."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.runtime.config import Config
from flashgen.tuning.timing import Timing


@dataclass(frozen=True)
class Trial:
    """A config that was tried: its timing, or why there is none."""

    config: Config
    timing: Timing | None
    failure: str = ""
