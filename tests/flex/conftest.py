"""What tests of flex_attention may rely on."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from flashgen.flex import kernels


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Each trace that was made."""
    made: list[Any] = []
    traced = kernels.meaning

    @functools.wraps(traced)
    def counted(*mods: Any) -> Any:
        made.append(mods)
        return traced(*mods)

    monkeypatch.setattr(kernels, "meaning", counted)
    return made
