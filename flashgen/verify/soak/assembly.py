"""What the assembler is known to get wrong, in the PTX of kernels that a block compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton import knobs

from flashgen.codegen.ptx import joined_negations


@dataclass
class Compiled:
    """The files of PTX of kernels, each with the kernel's name."""

    files: list[tuple[str, Path]] = field(default_factory=list)

    def lost_negations(self) -> str:
        """The kernels in which a maximum or minimum would lose a minus, empty where there are none."""
        wrong = [(name, joined_negations(path.read_text(encoding="utf-8"))) for name, path in self.files]
        return ", ".join(f"{name}: {' '.join(registers)}" for name, registers in wrong if registers)


@contextmanager
def watched() -> Iterator[Compiled]:
    """Notes every kernel that Triton compiles within the block, or takes from its cache."""
    compiled, before = Compiled(), knobs.compilation.listener

    def note(*, metadata_group: Mapping[str, str], **others: Any) -> None:
        if before is not None:
            before(metadata_group=metadata_group, **others)
        compiled.files += [(Path(name).stem, Path(at)) for name, at in metadata_group.items() if name.endswith(".ptx")]

    knobs.compilation.listener = note
    try:
        yield compiled
    finally:
        knobs.compilation.listener = before
