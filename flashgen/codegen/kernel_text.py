"""A kernel as the renderer knows it: which file it is, what the file computes, and what it is rendered from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flashgen.analysis.facts import Facts
from flashgen.codegen.pairs import Function
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class KernelText:
    """A file of a variant's package.

    `name` is the file's, `title` what it computes, or what that is of a variant. `view` works out what the macro
    `text(v)` of the template is given, None for a variant without the kernel; a view has the `functions` that the
    kernel calls. `template` is `name` by default, in the folder of templates or in `folder`. `launched` has by the
    name that the runtime knows it by each function that is launched: by default `_NAME` by `name`.
    """

    name: str
    title: str | Callable[[Variant], str]
    view: Callable[[Views], Any]
    template: str = ""
    launched: tuple[tuple[str, str], ...] = ()
    folder: Path | None = None

    def what(self, variant: Variant) -> str:
        """What the file of a variant computes."""
        return self.title if isinstance(self.title, str) else self.title(variant)

    @property
    def source(self) -> str:
        """Its template."""
        return f"{self.template or self.name}.py.jinja"

    @property
    def functions(self) -> tuple[tuple[str, str], ...]:
        """The functions that are launched, by the names that the runtime knows."""
        return self.launched or ((self.name, f"_{self.name}"),)


@dataclass
class Views:
    """The views of the kernels so far, None for one that the variant does not have, and the functions of these."""

    facts: Facts
    _views: dict[str, Any] = field(default_factory=dict)
    _functions: dict[str, Function] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self._views[name]

    @property
    def functions(self) -> tuple[Function, ...]:
        """By whose names no others go."""
        return tuple(self._functions.values())

    def add(self, text: KernelText) -> None:
        """Work out a kernel's view."""
        view = self._views[text.name] = text.view(self)
        for function in view.functions if view is not None else ():
            self._functions.setdefault(function.name, function)
