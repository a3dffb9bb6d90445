"""`flashgen convert`."""

from __future__ import annotations

from typing import Annotated

import typer

from flashgen.cli.failure import guarded


@guarded
def convert(
    mod: Annotated[str, typer.Argument(metavar="FILE.py:NAME", help="A score_mod or a mask_mod of FlexAttention.")],
    mask: Annotated[
        str | None, typer.Option("--mask", metavar="FILE.py:NAME", help="A mask_mod to go with it.")
    ] = None,
) -> None:
    """Print the spec of FlexAttention's mods; the file that has them is run, as Python imports it."""
    from flashgen.flex.converted import converted

    print(converted(mod, mask), end="")
