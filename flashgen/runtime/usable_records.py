"""Records that a call may use: those whose configs the kernels that there are have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flashgen.runtime.record_files import read_table, records_in, table_path
from flashgen.runtime.records import Key, Record
from flashgen.runtime.registry import checked


def usable(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """The records, each config in its kernel's order of axes; ValueError where no kernel of its family has such."""
    return tuple(_with_checked_config(record) for record in records)


def _with_checked_config(record: Record) -> Record:
    config = checked(record.key.kernel, record.config, record.key.bucket.packed)
    return record if config is record.config else replace(record, config=config)


def usable_in(folder: Path) -> list[Record]:
    """The usable records of a variant's folder, of all GPU models."""
    return records_in(folder, usable)


def read_record(folder: Path, key: Key) -> Record | None:
    """The usable record of this very key in a variant's folder; None where there is none."""
    table = read_table(table_path(folder, key.gpu), check=usable)
    return next((record for record in table if record.key == key), None)
