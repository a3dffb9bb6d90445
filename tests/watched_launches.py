"""Whether all that a launch is set up by follows from what it is remembered by, as where it is not asked again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping
from types import FunctionType
from typing import Any

import pytest

from flashgen.runtime import launching
from flashgen.runtime.specialization import describe_arguments

# Keys are here to stay alive: descriptions have the identities of kernels and layouts.
_setups: dict[Hashable, tuple[Any, Any, Any]] = {}
_relaunch = launching.relaunch


def watch_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a launch fails that is not set up as an earlier one of its description was, on any device."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("flashgen.runtime"):
            continue
        for own, value in list(vars(module).items()):
            if value is _relaunch:
                monkeypatch.setattr(module, own, _watched)
            elif isinstance(value, FunctionType) and _relaunch in (value.__defaults__ or ()):
                defaults = tuple(_watched if each is _relaunch else each for each in value.__defaults__ or ())
                monkeypatch.setattr(value, "__defaults__", defaults)


def _watched(
    kernel: Any, key: tuple[Hashable, ...], given: Mapping[str, Any], setup: Callable[[], launching.Setup]
) -> None:
    arguments = [given[name] for name in kernel.arg_names if name in given]
    described, _ = describe_arguments(kernel, 0, arguments, key)
    asked = setup()
    others = {name: {**asked.constants, **asked.numbers}.get(name) for name in kernel.arg_names if name not in given}
    tilings = {name: (each.shape, each.strides, each.tile) for name, each in asked.tilings.items()}
    found = asked.programs, others, {**asked.options}, tilings
    _, _, known = _setups.setdefault(described, (kernel, key, found))
    assert found == known, f"{kernel.__name__} is set up otherwise than an earlier launch with the same key"
    _relaunch(kernel, key, given, setup)
