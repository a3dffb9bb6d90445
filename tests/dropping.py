"""The gallery with dropout."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

import yaml
from gallery import FOLDER

from flashgen.codegen import generate, load_module
from flashgen.spec import load
from flashgen.spec.variant import Variant


@cache
def dropping(name: str, p: float = 0.1) -> Variant:
    """A variant of the gallery whose attention drops weights, by this probability where nothing else is said."""
    spec = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return load({**spec, "name": f"{spec['name']}_dropout", "dropout": p})


@cache
def dropping_module(name: str, folder: Path) -> ModuleType:
    """Its generated module, in a folder."""
    return load_module(generate(dropping(name), folder))
