"""What the assembler is known to get wrong, in kernels that a block compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton import knobs

from flashgen.codegen.offline import wrong_sums
from flashgen.codegen.ptx import joined_negations


@dataclass
class Compiled:
    """The files of kernels, PTX and machine code, each with the kernel's name."""

    files: list[Path] = field(default_factory=list)

    def lost_negations(self) -> str:
        """The kernels in which a maximum or minimum would lose a minus, empty where there are none."""
        wrong = [(path.stem, joined_negations(path.read_text(encoding="utf-8"))) for path in self._with(".ptx")]
        return ", ".join(f"{name}: {' '.join(registers)}" for name, registers in wrong if registers)

    def wrong_sums(self, capability: str) -> str:
        """The kernels in which the assembler for this GPU got a sum wrong, empty where there are none."""
        wrong = [(path.stem, wrong_sums(_asm(path), capability)) for path in self._with(".cubin")]
        return ", ".join(f"{name}: {what}" for name, what in wrong if what)

    def _with(self, suffix: str) -> Iterator[Path]:
        return (path for path in self.files if path.suffix == suffix)


def _asm(cubin: Path) -> dict[str, Any]:
    """Machine code and the PTX that it was made from, which lies beside it."""
    return {"cubin": cubin.read_bytes(), "ptx": cubin.with_suffix(".ptx").read_text(encoding="utf-8")}


@contextmanager
def watched() -> Iterator[Compiled]:
    """Notes every kernel that Triton compiles within the block, or takes from its cache."""
    compiled, before = Compiled(), knobs.compilation.listener

    def note(*, metadata_group: Mapping[str, str], **others: Any) -> None:
        if before is not None:
            before(metadata_group=metadata_group, **others)
        compiled.files += map(Path, metadata_group.values())

    knobs.compilation.listener = note
    try:
        yield compiled
    finally:
        knobs.compilation.listener = before
