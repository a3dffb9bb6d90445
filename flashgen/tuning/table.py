"""All that a search saw of one workload, as a JSON file: data for pictures, and for judging the search itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashgen.errors import UsageError
from flashgen.files import write_file
from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.records import Bucket, Key, gpu_slug
from flashgen.tuning.outcome import Entry, Outcome, Work, launched, timed
from flashgen.tuning.timing import Timing
from flashgen.tuning.workloads import Workload

TABLE_FORMAT = 1


@dataclass(frozen=True)
class Table:
    """The entries of one workload in the order in which they were tried, then those that were dropped.

    `versions`, `clocks` and `measured_at` are those of the record that was made of it, empty without one.
    """

    workload: Workload
    entries: tuple[Entry, ...]
    work: Work | None
    versions: Mapping[str, str]
    clocks: Mapping[str, float]
    measured_at: str

    @classmethod
    def of(cls, outcome: Outcome) -> Table:
        """What an outcome found; where a config was timed again in the final rounds, that timing counts."""
        final = {entry.config: entry for entry in outcome.ranking}
        entries = tuple(
            entry if entry.config not in final else Entry(**{**vars(entry), "timing": final[entry.config].timing})
            for entry in outcome.entries
        )
        record = outcome.record
        if record is None:
            return cls(outcome.workload, entries, outcome.work, {}, {}, "")
        return cls(outcome.workload, entries, outcome.work, record.versions, record.clocks, record.measured_at)

    @property
    def measured(self) -> list[Entry]:
        """What was launched, failures included."""
        return [entry for entry in self.entries if launched(entry)]

    @property
    def best(self) -> Entry:
        """The fastest entry; UsageError where nothing has a time."""
        found = timed(self.entries)
        if not found:
            raise UsageError(f"no config of {self.workload.key} has a time; expected one at least")
        return min(found, key=lambda pair: pair[1].median_us)[0]

    def to_json(self) -> str:
        """One line for each entry, so that two tables can be compared line by line."""
        head = {
            "format": TABLE_FORMAT,
            "key": {**asdict(self.workload.key), "bucket": str(self.workload.key.bucket)},
            "problem": asdict(self.workload.problem),
            "work": None if self.work is None else asdict(self.work),
            "versions": dict(self.versions),
            "clocks": dict(self.clocks),
            "measured_at": self.measured_at,
        }
        lines = ",\n    ".join(json.dumps(_fields(entry), sort_keys=True) for entry in self.entries)
        return json.dumps(head, indent=2, sort_keys=True)[:-2] + f',\n  "entries": [\n    {lines}\n  ]\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> Table:
        """Read what `to_json` wrote. Anything else raises ValueError."""
        try:
            fields = json.loads(text)
            if fields["format"] != TABLE_FORMAT:
                raise ValueError(f"the table's format is {fields['format']!r}; expected {TABLE_FORMAT}")
            key = Key(**{**fields["key"], "bucket": Bucket.parse(fields["key"]["bucket"])})
            work = None if fields["work"] is None else Work(**fields["work"])
            entries = tuple(_entry(entry) for entry in fields["entries"])
            workload = Workload(Problem(**fields["problem"]), key)
            return cls(workload, entries, work, fields["versions"], fields["clocks"], fields["measured_at"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a table of measurements: {error}") from error


def save(outcome: Outcome, folder: Path) -> Path:
    """Write an outcome's table below `folder`; return its path. EnvironmentProblem where that cannot be done."""
    path = folder / file_name(outcome.workload)
    write_file(path, Table.of(outcome).to_json())
    return path


def file_name(workload: Workload, suffix: str = ".json") -> str:
    """Of a workload on a GPU model, so that one folder may take what several GPUs have measured."""
    key = workload.key
    what = f"{key.variant}-{key.kernel}-{key.dtype}-d{key.head_dim}x{key.v_head_dim}-{key.bucket}"
    return f"{what}-{gpu_slug(key.gpu)}{suffix}"


def load(path: Path) -> Table:
    """Read a table; ValueError for a file that is none."""
    return Table.from_json(path.read_text(encoding="utf-8"))


def _fields(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), "config": entry.config.as_dict()}


def _entry(fields: dict[str, Any]) -> Entry:
    timing = fields["timing"] and Timing(**fields["timing"])
    return Entry(**{**fields, "config": Config.of(fields["config"]), "timing": timing})
