"""What a generated file is told that asks the runtime for what it does not have: another version of flashgen made it.

The modules that generated files import are of a class of their own. Whoever else asks them gets Python's own answer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FrameType, ModuleType

_PACKAGE = __name__.rpartition(".")[0]
# As the docstring of each generated file ends.
_MADE_BY = re.compile(r"^Generated from .* by\n\n +(\S.*)$", re.MULTILINE)


class Shared(ModuleType):
    """A module of the runtime."""

    def __getattr__(self, name: str) -> object:
        if not name.startswith("__"):
            _refuse(f"{self.__name__} has no {name!r}")
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)


class _Loader(SourceFileLoader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Shared(spec.name)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:  # fmt: skip
        if not fullname.startswith(f"{_PACKAGE}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None:
            _refuse(f"there is no {fullname}")
        elif isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def _refuse(what: str) -> None:
    """Raise ImportError where it is a generated file that asks."""
    asking: FrameType | None = sys._getframe(2)
    while asking is not None and "importlib" in asking.f_globals["__name__"]:
        asking = asking.f_back
    names = {} if asking is None else asking.f_globals
    if made := _MADE_BY.search(names.get("__doc__") or ""):
        raise ImportError(
            f"{what}: {names['__file__']} was made by another version of flashgen; make its package anew by: {made[1]}"
        )


def share() -> None:
    """Make the package and those of its modules that are imported from here on Shared ones."""
    sys.modules[_PACKAGE].__class__ = Shared
    sys.meta_path.insert(0, _Finder())
