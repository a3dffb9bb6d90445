"""Problem sizes on the command line: `--shape batch=2,heads=16,q_len=8192`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from flashgen.errors import UsageError
from flashgen.printable import in_short
from flashgen.spec.accept import MAX_HEAD_DIM
from flashgen.spec.variant import DTYPES, TuneShape

Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="SIZES",
        help="Sizes such as batch=2,heads=16,q_len=8192,head_dim=128, instead of the spec's; also kv_heads, kv_len, "
        "v_head_dim. Repeatable.",
    ),
]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", metavar="DTYPE", help="Only these dtypes; repeatable.")]

REQUIRED = ("batch", "heads", "q_len")
# The largest of each: what kernels take, and counts that fit 31 bits.
MAX_LENGTH = 2**24 - 1
LARGEST = {
    **dict.fromkeys(("batch", "heads", "kv_heads"), 2**31 - 1),
    **dict.fromkeys(("q_len", "kv_len"), MAX_LENGTH),
    **dict.fromkeys(("head_dim", "v_head_dim"), MAX_HEAD_DIM),
}


def parse_shape(text: str) -> TuneShape:
    """A shape from `name=number` pairs; kv_heads and kv_len are heads and q_len where they are not given."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in LARGEST or not re.fullmatch(r"0*[1-9][0-9]{0,9}", number) or int(number) > LARGEST[name]:
            raise UsageError(
                f"--shape {in_short(text, 100)!r}: found {in_short(part.strip(), 60)!r}; expected NAME=NUMBER with one "
                f"of {', '.join(LARGEST)} and a number of 1 or more, at most {LARGEST.get(name, MAX_LENGTH)}"
            )
        if name in sizes:
            raise UsageError(f"--shape {text!r}: found {name} again; expected each name once")
        sizes[name] = int(number)
    missing = [name for name in REQUIRED if name not in sizes]
    if missing:
        raise UsageError(f"--shape {text!r}: {', '.join(missing)} not found; expected {', '.join(REQUIRED)} at least")
    sizes.setdefault("kv_heads", sizes["heads"])
    sizes.setdefault("kv_len", sizes["q_len"])
    if sizes["heads"] % sizes["kv_heads"]:
        raise UsageError(f"--shape {text!r}: heads must be a multiple of kv_heads")
    return TuneShape(**sizes)


def chosen_shapes(given: Sequence[str] | None) -> tuple[TuneShape, ...] | None:
    """The shapes that were asked for; None for the spec's own."""
    return tuple(parse_shape(text) for text in given) if given else None


def chosen_dtypes(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """The dtypes that were asked for; None for the spec's own."""
    for dtype in given or ():
        if dtype not in DTYPES:
            raise UsageError(f"--dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    return tuple(given) if given else None
