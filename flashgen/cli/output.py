"""What a command prints: text for people, or JSON lines for machines.

With `--json` standard output carries JSON alone, one document a line, and the text goes to standard error.
On a terminal work in progress is shown live; in a pipe every line is plain and final.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flashgen.cli.streams import is_unicode
from flashgen.printable import on_one_line, printable

if TYPE_CHECKING:
    from flashgen.api import Progress
    from flashgen.runtime.config import Config

# A pipe has no width: lines are never wrapped there.
PIPE_WIDTH = 100_000


@dataclass(frozen=True)
class Output:
    """Where a command's text and documents go."""

    console: Console
    machine: bool

    @classmethod
    def choose(cls, machine: bool) -> Output:
        stream = sys.stderr if machine else sys.stdout
        width = None if stream.isatty() else PIPE_WIDTH
        return cls(Console(file=stream, width=width, highlight=False, markup=False, emoji=False), machine)

    def line(self, text: str = "", style: str | None = None) -> None:
        self.console.print(Text(printable(text), style=style or ""), soft_wrap=True)

    def warn(self, text: str) -> None:
        """A line on standard error, whatever the output is for."""
        print(f"warning: {printable(text)}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """A line on standard error about what may be meant."""
        print(f"note: {printable(text)}", file=sys.stderr, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Columns that hold numbers alone, as text or not, are aligned to the right."""
        cells = [["-" if cell is None else on_one_line(str(cell)) for cell in row] for row in rows]
        if not self.console.is_terminal:
            for text in plain_table([list(columns), *cells]):
                self.line(text)
            return
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for index, column in enumerate(columns):
            column_cells = [row[index] for row in cells]
            numeric = all(map(_is_number, column_cells)) and any(cell != "-" for cell in column_cells)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        self.console.print(table)

    def document(self, value: object) -> None:
        """One JSON document on one line of standard output; nothing without `--json`."""
        if self.machine:
            print(json.dumps(to_json(value), ensure_ascii=not is_unicode(sys.stdout), allow_nan=False), flush=True)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """What a long task calls to say what is under way; see `flashgen.api.Progress`.

        On a terminal one live line shows it; in a pipe each step is a line, and what passes is left out.
        """
        if self.console.is_terminal:
            spinner = "dots" if is_unicode(self.console.file) else "line"
            with self.console.status("", spinner=spinner) as status:
                yield lambda text, passing=False: status.update(Text(printable(text)))
        else:
            yield lambda text, passing=False: None if passing else self.line(text)


def tile_text(config: Config) -> str:
    """A config as tables show it: "64x32 w4 s2" is BM 64, BN 32, 4 warps, 2 stages, then what else it says."""
    tile = f"{config.BM}x{config.BN} w{config.num_warps} s{config.num_stages}"
    return " ".join([tile, *(f"{name}={value}" for name, value in config.further.items())])


def plain_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines with aligned columns two spaces apart."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "", 1).lstrip("-").isdigit()


def to_json(value: Any) -> Any:
    """Dataclasses, enums and paths as plain JSON values; a number that JSON cannot write becomes null."""
    if hasattr(value, "as_dict"):
        return to_json(value.as_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return to_json(value.value)
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value
