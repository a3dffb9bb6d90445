"""Where the templates are, and how Jinja reads them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes

from flashgen.errors import EnvironmentProblem


def templates_folder() -> Path:
    """The templates: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "templates", package.parent / "templates"):
        if (folder / "module.py.jinja").is_file():
            return folder
    raise EnvironmentProblem(f"no templates beside {package}; expected the folder templates/: install flashgen again")


@lru_cache(maxsize=1)
def _loader() -> jinja2.FileSystemLoader:
    return jinja2.FileSystemLoader([str(templates_folder())])


def add_templates(folder: Path) -> None:
    """Look for templates there too."""
    _loader().searchpath.append(str(folder))


def remove_templates(folder: Path) -> None:
    """Look there no longer."""
    _loader().searchpath.remove(str(folder))


class _Environment(jinja2.Environment):
    """Compiles a template from the tree that `parse` has given of its text before, if it has."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._trees: dict[str, nodes.Template] = {}

    def parse(self, source: str, name: str | None = None, filename: str | None = None) -> nodes.Template:
        self._trees[source] = tree = super().parse(source, name, filename)
        return tree

    def compile(self, source: Any, *names: Any, **options: Any) -> Any:
        # Compiling changes the tree: it is nobody's then.
        return super().compile(self._trees.pop(source, source), *names, **options)


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """What all templates are read by."""
    environment = _Environment(
        loader=_loader(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        # Looking for constants to fold takes longer than they do.
        optimized=False,
    )
    environment.filters["pystr"] = repr
    environment.filters["prefix"] = lambda text, prefix: prefix + text
    environment.filters["suffix"] = lambda text, suffix: text + suffix
    return environment
