"""Records as text: a table of JSON for one GPU and variant, a line each.

What all of its records have in common, such as the GPU and the versions, is said once, in `shared`; a field that says
nothing is left out. This is about the form of a table alone: whether a kernel has a record's config, which only who
runs it need know, says `flashgen.runtime.usable_records`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flashgen.runtime.config import Config
from flashgen.runtime.records import Bucket, Key, Record

# That of every table that is read; where a record is of packed sequences, which readers of the first one take for
# malformed, a table is of the second.
TABLE_FORMAT, PACKED_FORMAT = 2, 3


class NewerFormat(ValueError):
    """A table of a flashgen that is newer than this one, which can tell nothing else of it."""


_NUMBER = (int, float)
# The columns in their order: the type of each, and of the values of what is itself a mapping.
_KEY: Mapping[str, Any] = {
    "variant": str, "gpu": str, "capability": str, "triton": str, "kernel": str, "dtype": str, "head_dim": int,
    "v_head_dim": int, "bucket": str,
}  # fmt: skip
_DIGESTS: Mapping[str, Any] = {"spec": str, "templates": str}
_FOUND: Mapping[str, Any] = {"config": str, "median_us": _NUMBER, "spread": _NUMBER, "tried": int}
_MORE: Mapping[str, Any] = {
    "failed": dict, "dropped": dict, "clocks": dict, "versions": dict, "measured_at": str, "note": str,
}  # fmt: skip
_COLUMNS = {**_KEY, **_FOUND, **_MORE, **_DIGESTS}
_VALUES: Mapping[str, Any] = {"failed": int, "dropped": int, "clocks": _NUMBER, "versions": str}

# What these are called in JSON.
_KINDS = {str: "a string", int: "an integer", _NUMBER: "a number", dict: "an object", list: "an array"}

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", re.ASCII)
_WORDS = ("variant", "kernel", "dtype", "triton", "capability")
_SIZES = ("head_dim", "v_head_dim")
_MOST_NUMBER = 1e18
# Of one text.
MOST_LETTERS = 2000
_MOST_SIZE, _MOST_DEPTH = 1 << 20, 32


def to_text(records: Iterable[Record]) -> str:
    """The table of these records, in an order that depends on nothing else; `parse` reads it."""
    records = tuple(records)
    version = PACKED_FORMAT if any(record.key.bucket.tokens for record in records) else TABLE_FORMAT
    rows = sorted((_row(record) for record in records), key=_order)
    shared = {name: rows[0][name] for name in _COLUMNS if rows and all(row[name] == rows[0][name] for row in rows)}
    # Those that tell records apart stay in their lines.
    for name in ("kernel", "dtype", "head_dim", "v_head_dim", "bucket", *_FOUND):
        shared.pop(name, None)
    lines = [
        {name: value for name, value in row.items() if name not in shared and value not in ({}, "")} for row in rows
    ]
    head = ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in shared.items() if value)
    body = ",\n".join(f"    {line}" for line in _aligned(lines))
    return f'{{\n  "format": {version},\n  "shared": {{\n{head}\n  }},\n  "records": [\n{body}\n  ]\n}}\n'


def parse(text: str) -> tuple[Record, ...]:
    """The records of a table. NewerFormat for what a newer flashgen wrote, ValueError for anything else."""
    if _depth(text) > _MOST_DEPTH:
        raise ValueError(f"its JSON is nested too deeply; expected at most {_MOST_DEPTH} levels")
    table = json.loads(text, parse_constant=_no_number)
    written = table.get("format") if isinstance(table, dict) else None
    if isinstance(written, int) and written > PACKED_FORMAT:
        raise NewerFormat(f"its format is {_shown(written)}, of a newer flashgen; this one reads {PACKED_FORMAT}")
    _expect(table, {"format": int, "shared": dict, "records": list}, "the table")
    if table["format"] < TABLE_FORMAT:
        raise ValueError(f"format of the table is {_shown(written)}; expected {TABLE_FORMAT} to {PACKED_FORMAT}")
    records = tuple(_record(line, table["shared"]) for line in table["records"])
    for key, number in Counter(record.key for record in records).items():
        if number > 1:
            raise ValueError(f"it has {number} records for {key}; expected one")
    return records


def _row(record: Record) -> dict[str, Any]:
    fields = record.as_dict()
    fields |= {**fields.pop("key"), "config": str(record.config)}
    return {name: fields[name] for name in _COLUMNS}


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """By kernel, dtype and sizes; then whatever else tells two records apart."""
    bucket = Bucket.parse(row["bucket"])
    sizes = (row["head_dim"], row["v_head_dim"], bucket.q_len, bucket.kv_len, bucket.batch_heads, bucket.group)
    return row["kernel"], row["dtype"], *sizes, bucket.block_size, bucket.cache, json.dumps(row)


def _aligned(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each row as JSON, with cells as wide as their column as far as all rows have it."""
    cells = [{name: f"{json.dumps(name)}: {json.dumps(value)}" for name, value in row.items()} for row in rows]
    widths = {
        name: max(len(row[name]) for row in cells)
        for name in (*_KEY, *_FOUND)
        if all(name in row for row in cells)
    }  # fmt: skip
    texts = []
    for row in cells:
        *first, last = row
        padded = [f"{row[name]}, ".ljust(widths.get(name, 0) + 2) for name in first]
        texts.append("{" + "".join(padded) + row[last] + "}")
    return texts


def _record(line: object, shared: Mapping[str, Any]) -> Record:
    _expect_kind(line, dict, "a record")
    assert isinstance(line, dict)
    absent = {name: kind() for name, kind in _MORE.items()}
    fields = {**absent, **shared, **line}
    _expect(fields, _COLUMNS, "a record")
    for name, values in _VALUES.items():
        for each in fields[name].values():
            _expect_kind(each, values, f"a value of {name}")
    for name, value in fields.items():
        for each in (*value, *value.values()) if isinstance(value, dict) else (value,):
            _expect_plain(each, name)
    _expect_words(fields)
    if not fields["median_us"] > 0:
        raise ValueError(f"median_us is {fields['median_us']}; expected a positive time")
    fields["bucket"] = Bucket.parse(fields["bucket"])
    key = Key(**{name: fields.pop(name) for name in (*_KEY, *_DIGESTS)})
    try:
        config = Config.parse(fields.pop("config"))
    except TypeError as error:
        raise ValueError(str(error)) from error
    return Record(key=key, config=config, **fields)


def _expect_words(fields: Mapping[str, Any]) -> None:
    """What names are made of leads nowhere else."""
    for name in _WORDS:
        if not (len(fields[name]) <= 100 and _WORD.fullmatch(fields[name])):
            raise ValueError(f"{name} is {fields[name]!r}; expected letters, digits, '_', '.', '+' and '-'")
    for name in _SIZES:
        if not 0 < fields[name] <= _MOST_SIZE:
            raise ValueError(f"{name} is {_shown(fields[name])}; expected a size")


def _expect_plain(value: object, name: str) -> None:
    """Texts that a terminal shows as they are, numbers that are finite and, as all that is counted, not negative."""
    if isinstance(value, str) and not (len(value) <= MOST_LETTERS and value.isprintable()):
        raise ValueError(f"a text of {name} is {_shown(value)}; expected one line of at most {MOST_LETTERS} letters")
    if isinstance(value, _NUMBER) and not 0 <= value < _MOST_NUMBER:
        raise ValueError(f"a number of {name} is {_shown(value)}; expected one from 0 to {_MOST_NUMBER:g}")


def _no_number(text: str) -> None:
    raise ValueError(f"a number is {text}, which JSON does not have; expected a finite one")


def _depth(text: str) -> int:
    """How deeply brackets are nested, those within texts included."""
    deepest = depth = 0
    for sign in re.findall(r"[][{}]", text):
        depth += 1 if sign in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _shown(value: object) -> str:
    try:
        text = ascii(value)
    except ValueError:  # An integer of more digits than Python writes.
        return "a long number"
    return text if len(text) <= 60 else f"{text[:60]}..."


def _expect(fields: object, kinds: Mapping[str, Any], what: str) -> None:
    _expect_kind(fields, dict, what)
    assert isinstance(fields, dict)
    for name in fields:
        if name not in kinds:
            raise ValueError(f"{what} has an unknown field {_shown(name)}; expected {', '.join(kinds)}")
    for name, kind in kinds.items():
        if name not in fields:
            raise ValueError(f"{what} has no field {name}; expected {', '.join(kinds)}")
        _expect_kind(fields[name], kind, f"{name} of {what}")


def _expect_kind(value: object, kind: Any, what: str) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{what} is {_shown(value)}; expected {_KINDS[kind]}")
