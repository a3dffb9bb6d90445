"""The languages that kernels are written in: Triton, and Gluon, whose operations have mostly the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flashgen.lang.infix import Text, call


@dataclass(frozen=True)
class Dialect:
    """`module` is what a kernel calls the module of operations; `elsewhere` has those that it takes from another."""

    module: str
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def name(self, operation: str) -> str:
        """An operation, or a type, as a kernel names it."""
        return self.elsewhere.get(operation) or f"{self.module}.{operation}"

    def call(self, operation: str, *arguments: Text | str) -> Text:
        return call(self.name(operation), *arguments)


TRITON = Dialect("tl")
GLUON = Dialect("gl", {"sigmoid": TRITON.name("sigmoid")})
