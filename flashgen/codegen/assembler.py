"""The assembler that Triton turns PTX into machine code with: which one it is for a GPU, and what is known of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from triton import knobs
from triton.backends.nvidia.compiler import get_ptxas

# Releases of CUDA whose ptxas takes the minus out of max(max(t, -u), v), and of such minima, of signed integers.
LOSES_NEGATIONS = ("12.8", "12.9")
# Those whose ptxas, in some sums of 64 bits, takes both words of an operand from the same register.
DOUBLES_WORDS = ("12.8",)


@dataclass(frozen=True)
class Assembler:
    """A ptxas: its release of CUDA, where it lies, and the variable that names another one, or names this one."""

    version: str
    path: str
    variable: str
    is_named: bool

    @property
    def loses_negations(self) -> bool:
        return self.version in LOSES_NEGATIONS

    @property
    def doubles_words(self) -> bool:
        return self.version in DOUBLES_WORDS

    def __str__(self) -> str:
        return f"{self.version}, named by {self.variable}" if self.is_named else self.version


def assembler(capability: str) -> Assembler | None:
    """The one for GPUs of a capability such as "sm_80"; None where there is none, as for AMD's."""
    architecture = re.fullmatch(r"sm_(\d+)", capability)
    if architecture is None:
        return None
    try:
        tool = get_ptxas(int(architecture[1]))
        newer = knobs.nvidia.ptxas_blackwell
    except (OSError, RuntimeError):  # It cannot be run, or is in a build of Triton for other GPUs alone.
        return None
    variable = "TRITON_PTXAS_BLACKWELL_PATH" if tool.path == newer.path else "TRITON_PTXAS_PATH"
    return Assembler(tool.version, tool.path, variable, knobs.getenv(variable) == tool.path)
