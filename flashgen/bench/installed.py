"""What other projects offer a benchmark, as far as it is installed here."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Unavailable(Exception):
    """A candidate cannot do this case; the text says why."""


def imported(module: str, name: str) -> Any:
    """What a module has by this name; Unavailable where it is not installed."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"is not installed: {error}") from error
