"""flashgen: one YAML file in, one readable, proven, tuned module of Triton attention kernels out.

`build` renders, proves and tunes a spec and returns the imported module; `load` reads and checks a spec alone.
Importing this package loads none of the layers below: each name is fetched when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashgen.api import build
    from flashgen.spec import load

__version__ = "0.1.0"
__all__ = ["__version__", "build", "load"]

_HOMES = {"build": "flashgen.api", "load": "flashgen.spec"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
