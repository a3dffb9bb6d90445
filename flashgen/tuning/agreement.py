"""Whether another tuning run agrees with tables of measurements: `python -m flashgen.tuning.agreement TABLES RECORDS`.

TABLES is a folder that `flashgen tune --table` wrote, RECORDS that of the user's records, `tuned` in the cache, or
one of generated packages. Each record's config is looked up in the table of the same workload, whatever the kernel's
text: 1.02 means that the table has a config that is 2 % faster. The exit status is 1 where one is beyond that or not
in its table, or no table has a record.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flashgen.runtime.config import Config
from flashgen.runtime.records import Key, Record
from flashgen.runtime.usable_records import usable
from flashgen.tuning.outcome import timed
from flashgen.tuning.stored import list_records, shipped_folders
from flashgen.tuning.table import Table, load

LIMIT = 1.02


@dataclass(frozen=True)
class Agreement:
    """A record's config beside the best of a table. `ratio` of their times in the table, None where it has no time of
    the config; `same_text` says whether both are of the same kernel's text."""

    key: Key
    best: Config
    chosen: Config
    ratio: float | None
    same_text: bool

    @property
    def ok(self) -> bool:
        return self.ratio is not None and self.ratio <= LIMIT

    def __str__(self) -> str:
        key, shown = self.key, "not in the table" if self.ratio is None else f"{self.ratio:.4f}"
        text = "" if self.same_text else ", of another kernel's text"
        name = f"{key.variant} {key.kernel} {key.dtype} d{key.head_dim} {key.bucket}"
        return f"{name}: {shown} (chosen {self.chosen.label}; best {self.best.label}{text})"


def agreements(tables: Sequence[Table], records: Sequence[Record]) -> Iterator[Agreement]:
    """Each table with each record of its workload."""
    for table in tables:
        times = {entry.config: timing.median_us for entry, timing in timed(table.entries)}
        best = min(times, key=lambda config: times[config], default=None)
        for record in records:
            if best is not None and _workload(record.key) == _workload(table.workload.key):
                ratio = times[record.config] / times[best] if record.config in times else None
                same = record.key == table.workload.key
                yield Agreement(record.key, best, record.config, ratio, same)


def _workload(key: Key) -> Key:
    """What a key says apart from texts."""
    return replace(key, spec="", templates="")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all agreements; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m flashgen.tuning.agreement", description=__doc__.split(":", 1)[0])
    parser.add_argument("tables", type=Path, metavar="TABLES", help="a folder that `flashgen tune --table` wrote")
    parser.add_argument(
        "records", type=Path, metavar="RECORDS", help="a folder of packages, or that of the user's records"
    )
    chosen = parser.parse_args(arguments)
    tables = [load(path) for path in sorted(chosen.tables.glob("*.json"))]
    folders = shipped_folders(chosen.records) or [("", path) for path in sorted(chosen.records.glob("*"))]
    records = [entry.record for entry in list_records(folders, usable)]
    found = list(agreements(tables, records))
    for one in found:
        print(one)
    print(f"{sum(one.ok for one in found)} of {len(found)} within {LIMIT - 1:.0%}")
    return 0 if found and all(one.ok for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
