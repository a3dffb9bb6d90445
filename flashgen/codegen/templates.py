"""Where the templates are, and how Jinja reads them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import jinja2

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


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=_loader(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["pystr"] = repr
    environment.filters["prefix"] = lambda text, prefix: prefix + text
    environment.filters["suffix"] = lambda text, suffix: text + suffix
    return environment
