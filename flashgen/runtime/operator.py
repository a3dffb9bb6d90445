"""Registration of a generated module's function as a torch operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_libraries: dict[str, torch.library.Library] = {}


def operator(name: str, signature: str, launch: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Register `flashgen::<name><signature>` and return it as a callable.

    `launch` runs it on any device, `fake` gives outputs of the right shape without running it. Registering a name
    again replaces the earlier operator, so that a module may be imported anew.
    """
    earlier = _libraries.pop(name, None)
    if earlier is not None:
        earlier._destroy()
    library = _libraries[name] = torch.library.Library("flashgen", "FRAGMENT")
    library.define(f"{name}{signature}")
    library.impl(name, launch, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flashgen::{name}", fake, lib=library)
    return getattr(torch.ops.flashgen, name).default
