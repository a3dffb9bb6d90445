"""What became of each case, as JSON lines: so a soak resumes, and many runs are joined."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import flashgen
from flashgen.files import append_lines, lines_of


@dataclass(frozen=True)
class Row:
    """One case: its seed, index and the draws before it that said nothing (`voids`), and what was found.

    `kind` is "passed" or what failed. `source` is the digest of this flashgen, `case` that of the case. `small` is
    the case, made small, as YAML, where it failed.
    """

    seed: int
    index: int
    device: str
    voids: int
    kind: str
    detail: str
    share: float
    seconds: float
    case: str
    source: str
    small: str = ""

    @property
    def passed(self) -> bool:
        return self.kind == "passed"


def read(path: Path | None) -> list[Row]:
    """The rows of a file, of each case the last; none where there is no such file. A line cut short is left out."""
    found = {}
    for line in lines_of(path) if path else ():
        try:
            row = Row(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[row.seed, row.index, row.device, row.source] = row
    return list(found.values())


def append(path: Path, row: Row) -> None:
    append_lines(path, [json.dumps(asdict(row))])


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Changes with every file of flashgen and its templates."""
    package = Path(flashgen.__file__).parent
    templates = [folder for folder in (package.parent / "templates", package / "templates") if folder.is_dir()]
    files = [*package.rglob("*.py"), *(path for folder in templates for path in folder.glob("*.jinja"))]
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(path.read_bytes())
    return whole.hexdigest()[:12]


def table(rows: Sequence[Row], seconds: float, left: int) -> list[str]:
    """A few lines that say how it went."""
    failed = Counter(row.kind for row in rows if not row.passed)
    refused = Counter(row.detail.split(": ", 1)[-1][:100] for row in rows if row.kind == "refused")
    close = max((row.share for row in rows if row.passed), default=0.0)
    lines = [
        f"cases    {len(rows):6}",
        f"passed   {sum(row.passed for row in rows):6}   the closest came to {100 * close:.0f} % of its budget",
        f"failed   {sum(failed.values()):6}   {_counted(failed)}".rstrip(),
        f"refused  {failed['refused']:6}   {_counted(refused)}".rstrip(),
        f"drawn anew {sum(row.voids for row in rows):4}   of no pair to see, or no finite answer",
        f"seconds  {seconds:6.0f}",
    ]
    return lines + ([f"left     {left:6}   when the time was up; --resume takes them up again"] if left else [])


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(8))


def failures(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not row.passed]
