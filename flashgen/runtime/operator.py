"""Registration of a generated module's function as a torch operator."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch

_library = torch.library.Library("flashgen", "FRAGMENT")


def operator(name: str, signature: str, launch: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Register `flashgen::<name><signature>` and return it as a callable.

    `launch` runs it on any device, `fake` gives outputs of the right shape without running it. Where the name is
    taken, by the same module imported before, it becomes <name>_2 and so on: what was imported before stays in use.
    """
    names = (name if number == 1 else f"{name}_{number}" for number in count(1))
    name = next(candidate for candidate in names if not hasattr(torch.ops.flashgen, candidate))
    _library.define(f"{name}{signature}")
    _library.impl(name, launch, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flashgen::{name}", fake, lib=_library)
    return getattr(torch.ops.flashgen, name).default
