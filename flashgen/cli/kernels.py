"""Kernels on the command line: `--kernel forward`, `backward` or `all`."""

from __future__ import annotations

from typing import Annotated

import typer

from flashgen.errors import UsageError

KernelChoice = Annotated[
    str, typer.Option("--kernel", metavar="WHICH", help="forward, backward, or all; by default all.")
]


def chosen_kernels(which: str) -> tuple[str, ...]:
    """The names of the kernels."""
    from flashgen.runtime.config import KERNELS

    backward = tuple(kernel for kernel in KERNELS if kernel != "forward")
    choices = {"forward": ("forward",), "backward": backward, "all": KERNELS}
    if which not in choices:
        raise UsageError(f"--kernel {which!r}; expected {', '.join(choices)}")
    return choices[which]
