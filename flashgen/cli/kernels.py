"""Kernels on the command line: `--kernel forward`, `backward` or `all`."""

from __future__ import annotations

from typing import Annotated

import typer

from flashgen.choices import check_choice

KERNEL_CHOICES = ("forward", "backward", "all")

KernelChoice = Annotated[
    str,
    typer.Option(
        "--kernel", metavar="WHICH", help="forward, backward, or all, which has those for serving too; by default all."
    ),
]


def chosen_kernels(which: str) -> tuple[str, ...]:
    """The names of the kernels."""
    from flashgen.runtime.registry import FAMILIES, TUNED

    check_choice("--kernel", which, KERNEL_CHOICES)
    backward = tuple(kernel for kernel in FAMILIES if kernel != "forward")
    return {"forward": ("forward",), "backward": backward, "all": TUNED}[which]
