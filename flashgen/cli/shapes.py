"""Problem sizes on the command line: `--shape batch=2,heads=16,q_len=8192`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from flashgen.choices import check_choice
from flashgen.errors import UsageError
from flashgen.printable import in_short
from flashgen.spec.accept import MAX_HEAD_DIM
from flashgen.spec.modes import CACHES, MODES, misfit, tune_shape
from flashgen.spec.variant import DTYPES, TuneShape

Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="SIZES",
        help="Sizes such as batch=2,heads=16,q_len=8192,head_dim=128, instead of the spec's; also kv_heads, kv_len, "
        "v_head_dim, with --mode paged block_size and cache, with --mode varlen max_len and min_len alone. Repeatable.",
    ),
]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", metavar="DTYPE", help="Only these dtypes; repeatable.")]

# The largest of each: what kernels take, and counts that fit 31 bits.
MAX_LENGTH = 2**24 - 1
LARGEST = {
    **dict.fromkeys(("batch", "heads", "kv_heads"), 2**31 - 1),
    **dict.fromkeys(("q_len", "kv_len", "max_len", "min_len"), MAX_LENGTH),
    **dict.fromkeys(("head_dim", "v_head_dim"), MAX_HEAD_DIM),
    "block_size": 2**16,
}
Modes = Annotated[
    list[str] | None,
    typer.Option("--mode", metavar="MODE", help="Only calls of this form: dense, decode, paged or varlen; repeatable."),
]


def parse_shape(text: str, mode: str = "dense") -> TuneShape:
    """A shape from `name=number` pairs, and `cache=dtype` of a paged cache; what is left out is as in a spec."""
    sizes: dict[str, int | str] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name in sizes:
            raise UsageError(f"--shape {text!r}: found {name} again; expected each name once")
        sizes[name] = value if name == "cache" and value in CACHES else _number(name, value, part, text)
    missing = [name for name in ("batch", "heads", *MODES[mode].needs) if name not in sizes]
    if missing:
        required = ", ".join(("batch", "heads", *MODES[mode].needs))
        raise UsageError(f"--shape {text!r}: {', '.join(missing)} not found; expected {required} at least")
    wrong = misfit(mode, sizes)
    if wrong is not None:
        raise UsageError(f"--shape {text!r}: found {wrong[0]}; expected {wrong[1]}")
    shape = tune_shape(mode, sizes)
    if shape.heads % shape.kv_heads:
        raise UsageError(f"--shape {text!r}: heads must be a multiple of kv_heads")
    return shape


def _number(name: str, number: str, part: str, text: str) -> int:
    if name not in LARGEST or not re.fullmatch(r"0*[1-9][0-9]{0,9}", number) or int(number) > LARGEST[name]:
        raise UsageError(
            f"--shape {in_short(text, 100)!r}: found {in_short(part.strip(), 60)!r}; expected NAME=NUMBER with one "
            f"of {', '.join(LARGEST)} and a number of 1 or more, at most {LARGEST.get(name, MAX_LENGTH)}"
        )
    return int(number)


def chosen_modes(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """The forms of call that were asked for; None for those of the spec's own shapes."""
    for mode in given or ():
        check_choice("--mode", mode, MODES)
    return tuple(dict.fromkeys(given)) if given else None


def chosen_shapes(given: Sequence[str] | None, modes: Sequence[str] | None = None) -> tuple[TuneShape, ...] | None:
    """The shapes that were asked for, for each of these forms of call; None for the spec's own."""
    return tuple(parse_shape(text, mode) for mode in modes or ("dense",) for text in given) if given else None


def chosen_dtypes(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """The dtypes that were asked for; None for the spec's own."""
    for dtype in given or ():
        if dtype not in DTYPES:
            raise UsageError(f"--dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    return tuple(given) if given else None
