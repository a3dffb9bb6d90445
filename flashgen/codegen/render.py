"""From a Variant to the text of its module: the views, the templates, and ruff for the layout."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import jinja2

from flashgen import spec as specs
from flashgen.codegen.forward import forward_view, uses_schedule
from flashgen.codegen.module import module_view
from flashgen.codegen.schedule import schedule_view
from flashgen.errors import EnvironmentProblem
from flashgen.spec.variant import Variant


def render(variant: Variant) -> str:
    """The text of the generated module."""
    forward = forward_view(variant)
    schedule = schedule_view(variant) if uses_schedule(variant) else None
    kernels = _environment().get_template("kernels.py.jinja").render(forward=forward, schedule=schedule)
    templates = {"forward": templates_digest(kernels)}
    view = module_view(variant, forward, schedule, kernels, specs.digest(variant), templates)
    return formatted(_environment().get_template("module.py.jinja").render(v=view))


def templates_digest(kernels: str) -> str:
    """12 hex digits of the kernels' text: it changes with the templates and the emitters wherever that is felt."""
    return hashlib.sha256(re.sub(r"\s+", " ", kernels).encode()).hexdigest()[:12]


def templates_folder() -> Path:
    """The templates: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "templates", package.parent / "templates"):
        if (folder / "module.py.jinja").is_file():
            return folder
    raise EnvironmentProblem(f"no templates beside {package}; expected the folder templates/: install flashgen again")


def formatted(source: str) -> str:
    """The source as ruff lays it out."""
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "120", "--stdin-filename", "m.py"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EnvironmentProblem(f"ruff could not format the generated module: {done.stderr.strip()}")
    return done.stdout


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_folder()),
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
