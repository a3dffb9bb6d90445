"""Kernels on the command line: `--kernel forward`, `backward` or `all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from flashgen.choices import check_choice
from flashgen.errors import UsageError
from flashgen.spec.variant import TuneShape

KERNEL_CHOICES = ("forward", "backward", "all")
# The forms of call that the forward and the backward kernels serve, and that have gradients.
TRAINED = frozenset({"dense", "varlen"})

KernelChoice = Annotated[
    str,
    typer.Option(
        "--kernel", metavar="WHICH", help="forward, backward, or all, which has those for serving too; by default all."
    ),
]


def check_kernels(which: str, shapes: Iterable[TuneShape]) -> None:
    """UsageError where the kernels serve none of the calls of these shapes: there would be nothing to do."""
    modes = {shape.mode for shape in shapes}
    if which != "all" and TRAINED.isdisjoint(modes):
        raise UsageError(
            f"--kernel {which} was given for calls of the form {' and '.join(sorted(modes))}, which have kernels of "
            "their own; expected --kernel all, or another --mode"
        )


def chosen_kernels(which: str) -> tuple[str, ...]:
    """The names of the kernels."""
    from flashgen.runtime.registry import FAMILIES, TUNED

    check_choice("--kernel", which, KERNEL_CHOICES)
    backward = tuple(kernel for kernel in FAMILIES if kernel != "forward")
    return {"forward": ("forward",), "backward": backward, "all": TUNED}[which]
