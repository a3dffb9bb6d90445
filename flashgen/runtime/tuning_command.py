"""What a user does to have a config tuned, as warnings name it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

# Where commands put packages that are told no other folder.
_DEFAULT_OUT = "generated"
# What a spec is from that was no file.
_NO_FILE = "<dict>"


def tuning_command(source: str, mode: str, shipped: Path | None) -> str:
    """What finds the best config for calls of a form, said so that it can be pasted.

    `source` is the spec's path, `shipped` the folder of the records beside the package, if it has one.
    """
    if source == _NO_FILE:
        return "`flashgen.build` of its spec finds the best config for it, with `tune` where the spec has other sizes"
    words = ["flashgen", "tune", source, *_out_of(shipped), *([] if mode == "dense" else ["--mode", mode])]
    return f"`{shlex.join(words)}` finds the best config for it, with --shape where the spec has other sizes"


def _out_of(shipped: Path | None) -> list[str]:
    """The option for the folder of the package that these records are beside."""
    if not isinstance(shipped, Path):  # none, or that of an exported module
        return []
    out = str(shipped.parent.parent)
    try:
        here = os.path.relpath(os.path.realpath(out), os.path.realpath(os.curdir))
    except (OSError, ValueError):  # no working folder, or another drive
        here = out
    if here == _DEFAULT_OUT:
        return []
    return ["--out", out if here.startswith(os.pardir) else here]
