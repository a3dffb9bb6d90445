"""What may lie where records are expected: malformed texts, and things that are no file to read."""

import json
import os
import socket

from flashgen.runtime.config import Config
from flashgen.runtime.record_table import to_text
from flashgen.runtime.records import Bucket, Key, Record

KEY = Key(
    gpu="NVIDIA H200", capability="sm_90", triton="3.6", variant="alibi", kernel="forward", dtype="bfloat16",
    head_dim=128, v_head_dim=128, bucket=Bucket.of(32, 1, 8192, 8192), spec="0123456789ab", templates="ba9876543210",
)  # fmt: skip
RECORD = Record(
    KEY, Config(BM=128, BN=64, num_warps=8, num_stages=3), 812.5, 0.004, 40, {"crashed": 1}, {"shared memory": 7},
    {"triton": "3.6.0"}, {"sm_mhz": 1980.0}, "2025-01-01T00:00:00+00:00",
)  # fmt: skip
TEXT = to_text([RECORD])
TABLE = json.loads(TEXT)
# All that the record says, in one line.
FIELDS = {**TABLE["shared"], **TABLE["records"][0]}
HUGE = 10**400


def table(*records, **changes):
    return json.dumps({"format": 2, "shared": {}, "records": records, **changes})


def _with(**changes):
    return table({**FIELDS, **changes})


def _config(**changes):
    values = {"BM": 128, "BN": 64, "num_warps": 8, "num_stages": 3, **changes}
    return _with(config=" ".join(f"{name}={value}" for name, value in values.items()))


def _raw(name, text):
    """A field as JSON that Python would not write."""
    return _with(**{name: "HERE"}).replace('"HERE"', text)


def _wrong(kind):
    """Values of other types than a field's."""
    values = {"null": None, "list": [1], "dict": {"a": 1}, "text": "1", "number": 1.5, "whole": 1, "truth": True}
    return {name: value for name, value in values.items() if name not in kind}


def _each(name, make, values):
    """A text for each value of a field."""
    return {f"{name} {ascii(value)[:40]}": make(value) for value in values}


def _inside(name, key):
    """The same for JSON of a value in a field that is a dict."""
    return lambda text: _raw(name, f'{{"{key}": {text}}}')


# What each field may be.
_TYPES = {
    "variant": "text", "gpu": "text", "bucket": "text", "spec": "text", "config": "text", "median_us": "number whole",
    "spread": "number whole", "tried": "whole", "failed": "dict", "dropped": "dict", "versions": "dict",
    "clocks": "dict", "measured_at": "text", "note": "text",
}  # fmt: skip
_REQUIRED = ("gpu", "kernel", "bucket", "spec", "templates", "config", "median_us", "spread", "tried")
_OF_TABLES = {"format": "whole", "shared": "dict", "records": "list"}
_WRONG_TYPES = {
    f"{name}: {what}": _with(**{name: value}) for name, kind in _TYPES.items() for what, value in _wrong(kind).items()
}
_WRONG_TABLES = {
    f"{name} of the table: {what}": table(FIELDS, **{name: value})
    for name, kind in _OF_TABLES.items()
    for what, value in _wrong(kind).items()
    if (name, what) != ("format", "truth")
}
_MISSING = {
    f"{name} missing": table({key: value for key, value in FIELDS.items() if key != name}) for name in _REQUIRED
}
_ASTRAY = ("../../escaped", "/etc/passwd", "", "..", "a/b", "a\\b", "a\0b", "x" * 300, "é", "a\nb", "~root")
_NAMES = {
    f"{name} {ascii(value)[:40]}": _with(**{name: value})
    for name in ("variant", "kernel", "dtype", "triton")
    for value in _ASTRAY
}
_GPUS = ("\x1b[2J", "\u202egnp", "\ud800", "x" * 3000, "NVIDIA A100", "")
_BUCKETS = ("", "big", "bh1", "bh-1-g1-q1-k1", "bh1-g1-q1-k" + "9" * 30)
_CONFIGS = (
    {"BM": 7}, {"BM": -64}, {"BM": HUGE}, {"BN": "many"}, {"BN": None}, {"num_warps": 3}, {"num_stages": 99},
    {"num_stages": True}, {"backend": "cuda"}, {"fuse_dq": 1}, {"BK": 1},
)  # fmt: skip
_TIMES = ("NaN", "Infinity", "-Infinity", "0", "-1.5", "1e999", str(HUGE), "1e18", "-0.0")

MALFORMED = {
    **_WRONG_TYPES,
    **_WRONG_TABLES,
    **_MISSING,
    **_NAMES,
    "a field too many": _with(more=1),
    "a field too many in the table": table(FIELDS, more=1),
    "one key twice": table(FIELDS, {**FIELDS, "median_us": 1.0}),
    "a good record and a bad one": table(FIELDS, {**FIELDS, "tried": -1}),
    "a record that is none": table(FIELDS, None),
    "as an earlier flashgen wrote one": json.dumps({**RECORD.as_dict(), "format": 1}),
    **_each("head_dim", lambda value: _with(head_dim=value), (0, -64, True, "64", HUGE, 1 << 40, None)),
    **_each("bucket", lambda text: _with(bucket=text), _BUCKETS),
    **_each("gpu", lambda text: _with(gpu=text), _GPUS),
    **_each("median_us", lambda text: _raw("median_us", text), _TIMES),
    **_each("spread", lambda text: _raw("spread", text), ("NaN", "-0.1", "1e400", str(HUGE))),
    **_each("clocks", _inside("clocks", "sm_mhz"), ("NaN", "-Infinity", str(HUGE), '"fast"', "null", "true")),
    **_each("tried", lambda text: _raw("tried", text), ("-1", str(HUGE), "1e3", "9" * 5000)),
    **_each("failed", _inside("failed", "crashed"), ("-1", "null", "1.5", "{}", "false")),
    **_each("config", lambda changes: _config(**changes), _CONFIGS),
    "note with an escape": _with(note="\x1b]0;owned\x07"),
    "note that is long": _with(note="x" * 5000),
    "empty": "",
    "white space": " \n",
    "truncated": TEXT[:200],
    "twice": TEXT + TEXT,
    "list": "[]",
    "null": "null",
    "number": "1",
    "deep lists": "[" * 50_000,
    "deep objects": '{"a":' * 20_000,
    "deep but whole": "[" * 20_000 + "]" * 20_000,
    "deep within": _raw("note", "[" * 500 + "]" * 500),
    "comment": "// a record\n" + TEXT,
}  # fmt: skip
MALFORMED_BYTES = {
    **{name: text.encode("utf-8", "surrogatepass") for name, text in MALFORMED.items()},
    "binary": bytes(range(256)),
    "zeros": bytes(4096),
    "utf-16": TEXT.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + TEXT.encode(),
    "not utf-8": TEXT.replace("NVIDIA", "NVIDIA\xff").encode("latin-1"),
}

# What stays where it is: it cannot be read whole, or is not ours to judge.
LEFT = {
    "a newer format": lambda path: path.write_text(table(FIELDS, format=4)),
    "a newer format with other fields": lambda path: path.write_text('{"format": 5, "rows": []}'),
    "too long": lambda path: path.write_text(TEXT + " " * (1 << 23)),
    "endless": lambda path: os.truncate(_touched(path), 1 << 40),
    "folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "socket": lambda path: _bind(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "loop": lambda path: path.symlink_to(path.name),
}


def _touched(path):
    path.touch()
    return path


def _bind(path):
    # A socket's address is short: bind it by its name alone.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("s")
        os.rename("s", path.name)
    finally:
        os.chdir(here)
