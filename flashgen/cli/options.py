"""The arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Specs = Annotated[
    list[str],
    typer.Argument(metavar="SPEC", help="Paths of specs, or names of the gallery (variants/NAME.yaml)."),
]
Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="The path of a spec, or a name of the gallery (variants/NAME.yaml).")
]


def path_option(*names: str, metavar: str, help: str) -> Any:
    """An option with a path. One of no letters, as a shell has for a variable that is not set, is not this folder."""

    def parsed(text: str | Path) -> Path:
        if text == "":
            raise typer.BadParameter("''; expected a path")
        return Path(text)

    return typer.Option(*names, metavar=metavar, help=help, parser=parsed)


Out = Annotated[Path, path_option("--out", metavar="DIR", help="The folder of the generated modules.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, text on standard error.")]


Preset = Annotated[
    str, typer.Option("--preset", metavar="PRESET", help="How long to search for configs: quick, default or full.")
]
DEFAULT_OUT = Path("generated")


def seed_option(help: str) -> Any:
    """--seed, within what NumPy takes."""
    return typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help=help)
