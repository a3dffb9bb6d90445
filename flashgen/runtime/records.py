"""Tuned configs: what a record says, and what it depends on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

from flashgen.runtime.config import Config

_SIZE = r"(\d{1,15})"
_BUCKET = re.compile(
    rf"bh{_SIZE}-g{_SIZE}-q{_SIZE}-k{_SIZE}(?:-t{_SIZE})?(?:-p{_SIZE}(?:-([a-z0-9_]{{1,20}}))?)?", re.ASCII
)
# In doublings: as far as a problem of 256 times the size.
_OTHER_CACHE = 8


@dataclass(frozen=True)
class Bucket:
    """Problem sizes whose tuned configs are shared: each size is rounded up to a power of two.

    `batch_heads` is batch * heads, `group` heads // kv_heads. The text form is "bh32-g1-q8192-k8192". Of a paged
    cache `block_size` are the keys of a page, 0 for none, and `cache` the dtype, "" for that of q:
    "bh2048-g4-q1-k8192-p16-int8". Of packed sequences the lengths are the longest, and `tokens` the queries of all
    together, 0 where sequences are not packed: "bh512-g1-q4096-k4096-t65536".
    """

    batch_heads: int
    group: int
    q_len: int
    kv_len: int
    block_size: int = 0
    cache: str = ""
    tokens: int = 0

    @classmethod
    def of(
        cls, batch_heads: int, group: int, q_len: int, kv_len: int, block_size: int = 0, cache: str = "",
        tokens: int = 0,
    ) -> Bucket:  # fmt: skip
        batch_heads, group, q_len, kv_len = (1 << exponent(size) for size in (batch_heads, group, q_len, kv_len))
        block_size, tokens = (1 << exponent(size) if size else 0 for size in (block_size, tokens))
        return cls(batch_heads, group, q_len, kv_len, block_size, cache, tokens)

    @classmethod
    def parse(cls, text: str) -> Bucket:
        found = _BUCKET.fullmatch(text)
        if found is None:
            raise ValueError(
                f"shape bucket {text!r}; expected the form bh32-g1-q8192-k8192, or with -p16, -p16-int8 or -t65536"
            )
        batch_heads, group, q_len, kv_len, tokens, block_size = (int(size or 0) for size in found.groups()[:-1])
        return cls.of(batch_heads, group, q_len, kv_len, block_size, found[7] or "", tokens)

    @property
    def packed(self) -> bool:
        """Whether it is one of packed sequences: kernels of a family that serve these are not all that there are."""
        return self.tokens > 0

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.batch_heads, self.group, self.q_len, self.kv_len, self.block_size, self.tokens

    @property
    def rows(self) -> int:
        """Of all heads that share a KV head."""
        return self.group * self.q_len

    @property
    def keys(self) -> int:
        """Of all KV heads."""
        return self.batch_heads // self.group * self.kv_len

    def distance(self, other: Bucket) -> int:
        """How many doublings apart the sizes are, summed over all of them; a cache of another dtype is further."""
        apart = sum(abs(exponent(one) - exponent(two)) for one, two in zip(self.sizes, other.sizes, strict=True))
        return apart + (_OTHER_CACHE if self.cache != other.cache else 0)

    def __str__(self) -> str:
        pages = "".join(f"-{each}" for each in (f"p{self.block_size}", self.cache) if each) if self.block_size else ""
        tokens = f"-t{self.tokens}" if self.packed else ""
        return f"bh{self.batch_heads}-g{self.group}-q{self.q_len}-k{self.kv_len}{tokens}{pages}"


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
        """The start of the names of the records that differ from this one in the bucket alone."""
        return f"{self.kernel}-{self.dtype}-d{self.head_dim}x{self.v_head_dim}-"

    @property
    def suffix(self) -> str:
        """The end of those names: the Triton series, and a digest of spec and templates."""
        digest = hashlib.sha256(f"{self.spec}/{self.templates}".encode()).hexdigest()[:8]
        return f"-{self.triton}-{digest}"

    @property
    def name(self) -> str:
        """What it is called where it needs a name, as a path is written: GPU, variant, and the rest."""
        return f"{gpu_slug(self.gpu)}/{self.variant}/{self.family}{self.bucket}{self.suffix}"

    def in_bucket_of(self, other: Key) -> Key:
        """The key on the GPU and in the bucket of another one."""
        return replace(self, gpu=other.gpu, bucket=other.bucket)

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

    def as_dict(self) -> dict[str, Any]:
        """All that it says as JSON has it, the config by its axes."""
        return {
            **{name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()},
            "key": {**asdict(self.key), "bucket": str(self.key.bucket)},
            "config": self.config.as_dict(),
        }


def exponent(size: int) -> int:
    """Of the power of two that a size is rounded up to.

    A size that torch traces is compared with each: what is traced then serves all that are rounded up to the same.
    """
    if isinstance(size, int):
        return (size - 1).bit_length() if size > 1 else 0
    return next(power for power in count() if size <= 1 << power)


def gpu_slug(gpu: str) -> str:
    """A GPU's name as one of a file: "NVIDIA H200" gives "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") or "unnamed"
