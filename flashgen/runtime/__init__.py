"""What generated modules need at run time. Imports torch, triton and the standard library alone.

The names of `public` are those of this package. They are there from the first time that one of them is asked for:
what reads records alone should not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashgen.runtime.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if not name.startswith("__") or name == "__all__":
        public = import_module("flashgen.runtime.public")
        globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
        if name in globals():
            return globals()[name]
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}; a package that another version of flashgen generated asks for "
        f"what that one had: build it again, by the command that stands in its first lines"
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
