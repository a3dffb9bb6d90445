"""`flashgen convert`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from flashgen.cli.failure import guarded
from flashgen.cli.options import Json
from flashgen.cli.output import Output


@guarded
def convert(
    mod: Annotated[str, typer.Argument(metavar="FILE.py:NAME", help="A score_mod or a mask_mod of FlexAttention.")],
    mask: Annotated[
        str | None, typer.Option("--mask", metavar="FILE.py:NAME", help="A mask_mod to go with it.")
    ] = None,
    json: Json = False,
) -> None:
    """Print the spec of FlexAttention's mods. The file that has them is run, as Python imports it."""
    from flashgen.flex.converted import converted

    # What the file and its mods print is no part of the spec.
    with redirect_stdout(sys.stderr):
        text = converted(mod, mask)
    output = Output.choose(json)
    print(text, end="", file=output.console.file)
    output.document({"spec": text})
