"""Tuned configs on disk: what a record says, what it depends on, and how it is written as JSON.

One record is one file, `<gpu>/<variant>/<kernel>-<dtype>-d<head_dim>x<v_head_dim>-<bucket>-<triton>-<digest>.json`
below a root.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flashgen.runtime.config import Config
from flashgen.runtime.registry import checked

RECORD_FORMAT = 1


class NewerFormat(ValueError):
    """A record of a flashgen that is newer than this one, which can tell nothing else of it."""


@dataclass(frozen=True)
class Bucket:
    """Problem sizes whose tuned configs are shared: each size is rounded up to a power of two.

    `batch_heads` is batch * heads, `group` heads // kv_heads. The text form is "bh32-g1-q8192-k8192".
    """

    batch_heads: int
    group: int
    q_len: int
    kv_len: int

    @classmethod
    def of(cls, batch_heads: int, group: int, q_len: int, kv_len: int) -> Bucket:
        return cls(*(1 << _exponent(size) for size in (batch_heads, group, q_len, kv_len)))

    @classmethod
    def parse(cls, text: str) -> Bucket:
        found = re.fullmatch(r"bh(\d{1,15})-g(\d{1,15})-q(\d{1,15})-k(\d{1,15})", text)
        if found is None:
            raise ValueError(f"shape bucket {text!r}; expected the form bh32-g1-q8192-k8192")
        return cls.of(*(int(size) for size in found.groups()))

    def distance(self, other: Bucket) -> int:
        """How many doublings apart the sizes are, summed over the four of them."""
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return sum(abs(_exponent(one) - _exponent(two)) for one, two in pairs)

    def __str__(self) -> str:
        return f"bh{self.batch_heads}-g{self.group}-q{self.q_len}-k{self.kv_len}"


@dataclass(frozen=True)
class Device:
    """What a GPU is: the driver's name for the model, its capability, and the Triton series that compiles for it."""

    gpu: str
    capability: str
    triton: str


@dataclass(frozen=True)
class Key:
    """Everything that a tuned config depends on.

    `gpu` is the model as the driver names it ("NVIDIA H200": models of one capability differ in clocks and memory),
    `capability` "sm_80" or "gfx942", `triton` major.minor (the compiler decides which config wins), `dtype` as torch
    spells it ("bfloat16"). `spec` and `templates` are the digests of the variant's meaning and the templates' text.
    """

    gpu: str
    capability: str
    triton: str
    variant: str
    kernel: str
    dtype: str
    head_dim: int
    v_head_dim: int
    bucket: Bucket
    spec: str
    templates: str

    @property
    def family(self) -> str:
        """The start of the file names of the records that differ from this one in the bucket alone."""
        return f"{self.kernel}-{self.dtype}-d{self.head_dim}x{self.v_head_dim}-"

    @property
    def suffix(self) -> str:
        """The end of those file names: the Triton series, and a digest of spec and templates."""
        digest = hashlib.sha256(f"{self.spec}/{self.templates}".encode()).hexdigest()[:8]
        return f"-{self.triton}-{digest}.json"

    @property
    def path(self) -> Path:
        """Where the record lies below a root."""
        return Path(gpu_slug(self.gpu), self.variant, f"{self.family}{self.bucket}{self.suffix}")

    def __str__(self) -> str:
        return (
            f"{self.variant} {self.kernel} {self.dtype} head_dim {self.head_dim}x{self.v_head_dim} {self.bucket} "
            f"on {self.gpu} ({self.capability}), triton {self.triton}"
        )


@dataclass(frozen=True)
class Record:
    """A tuned config and how it was found.

    `median_us` is the median time of one launch, `spread` its interquartile range as a share of the median. `tried`
    counts the configs that were launched, `failed` those of them that gave no time, by reason, and `dropped` those
    that were judged hopeless before any launch. `versions` names triton, torch, the driver and flashgen; `clocks` the
    GPU's state by quantity and unit. `measured_at` is the time in UTC, ISO 8601.
    """

    key: Key
    config: Config
    median_us: float
    spread: float
    tried: int
    failed: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    measured_at: str = ""
    note: str = ""

    def to_json(self) -> str:
        fields = {**asdict(self), "config": self.config.as_dict(), "format": RECORD_FORMAT}
        fields["key"]["bucket"] = str(self.key.bucket)
        return json.dumps(fields, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read what `to_json` wrote. NewerFormat for what a newer flashgen wrote, ValueError for anything else."""
        if _depth(text) > _MOST_DEPTH:
            raise ValueError("JSON that is nested too deeply")
        fields = json.loads(text, parse_constant=_no_number)
        written = fields.get("format") if isinstance(fields, dict) else None
        if isinstance(written, int) and written > RECORD_FORMAT:
            raise NewerFormat(f"its format is {_shown(written)}, of a newer flashgen; this one reads {RECORD_FORMAT}")
        _expect(fields, {name: kind for name, (kind, _) in _RECORD_FIELDS.items()} | {"format": int}, "the record")
        if fields.pop("format") != RECORD_FORMAT:
            raise ValueError(f"the record's format is not {RECORD_FORMAT}")
        _expect(fields["key"], _KEY_FIELDS, "key")
        for name, (kind, values) in _RECORD_FIELDS.items():
            inner = fields[name] if kind is dict else {}
            if values and not all(isinstance(each, values) and not isinstance(each, bool) for each in inner.values()):
                raise ValueError(f"a value of {name} has the wrong type")
            for each in (*inner, *inner.values()) if kind is dict else (fields[name],):
                _expect_plain(each, name)
        _expect_words(fields["key"])
        if not fields["median_us"] > 0:
            raise ValueError(f"median_us is {fields['median_us']}; expected a positive time")
        key = Key(**{**fields["key"], "bucket": Bucket.parse(fields["key"]["bucket"])})
        try:
            config = checked(key.kernel, Config.of(fields["config"]))
        except TypeError as error:
            raise ValueError(str(error)) from error
        return cls(**{**fields, "key": key, "config": config})


_NUMBER = (int, float)
_MOST_NUMBER = 1e18
_RECORD_FIELDS: dict[str, tuple[Any, Any]] = {
    "key": (dict, None),
    "config": (dict, None),
    "median_us": (_NUMBER, None),
    "spread": (_NUMBER, None),
    "tried": (int, None),
    "failed": (dict, int),
    "dropped": (dict, int),
    "versions": (dict, str),
    "clocks": (dict, _NUMBER),
    "measured_at": (str, None),
    "note": (str, None),
}
_KEY_FIELDS: dict[str, Any] = {
    "gpu": str, "capability": str, "triton": str, "variant": str, "kernel": str, "dtype": str,
    "head_dim": int, "v_head_dim": int, "bucket": str, "spec": str, "templates": str,
}  # fmt: skip


# What a file's name is made of, and names of folders: nothing that leads elsewhere.
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", re.ASCII)
_WORDS = ("variant", "kernel", "dtype", "triton", "capability")
_SIZES = ("head_dim", "v_head_dim")
_MOST_LETTERS, _MOST_SIZE, _MOST_DEPTH = 2000, 1 << 20, 32


def _expect_words(key: Mapping[str, Any]) -> None:
    for name in _WORDS:
        if not (len(key[name]) <= 100 and _WORD.fullmatch(key[name])):
            raise ValueError(f"{name} of key is {key[name]!r}; expected letters, digits, '_', '.', '+' and '-'")
    for name in _SIZES:
        if not 0 < key[name] <= _MOST_SIZE:
            raise ValueError(f"{name} of key is {_shown(key[name])}; expected a size")


def _expect_plain(value: object, name: str) -> None:
    """Texts that a terminal shows as they are, numbers that are finite and, as all that is counted, not negative."""
    if isinstance(value, str) and not (len(value) <= _MOST_LETTERS and value.isprintable()):
        raise ValueError(f"a text of {name} is {_shown(value)}; expected one line of at most {_MOST_LETTERS} letters")
    if isinstance(value, _NUMBER) and not 0 <= value < _MOST_NUMBER:
        raise ValueError(f"a number of {name} is {_shown(value)}; expected one from 0 to {_MOST_NUMBER:g}")


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


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
    if not isinstance(fields, dict) or set(fields) != set(kinds):
        raise ValueError(f"{what} does not have the fields {', '.join(sorted(kinds))}")
    for name, kind in kinds.items():
        if not isinstance(fields[name], kind) or isinstance(fields[name], bool):
            raise ValueError(f"{name} of {what} is {_shown(fields[name])}, which has the wrong type")


def _exponent(size: int) -> int:
    return (size - 1).bit_length() if size > 1 else 0


def gpu_slug(gpu: str) -> str:
    """A GPU's name as a folder: "NVIDIA H200" gives "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") or "unnamed"
