"""Which tuned config answers a call.

The order in which a call's config is found:

| source            | what it is                                                | warns             |
|-------------------|-----------------------------------------------------------|-------------------|
| argument          | the caller's `config=`                                    |                   |
| user cache        | a record for this very key, in the user's cache folder    |                   |
| shipped           | a record for this very key, beside the kernels            |                   |
| nearest           | same GPU, the nearest shape bucket                        | once              |
| same capability   | another GPU of this capability, the nearest shape bucket  | once              |
| default           | the built-in default                                      | once for each key |

A record made from another spec, other templates or another Triton series is never applied. This file only reads;
records are written by `flashgen.tuning.cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from flashgen.runtime.bounded_cache import remember
from flashgen.runtime.config import Config
from flashgen.runtime.identity import Identity
from flashgen.runtime.record_files import report_old, warn_once
from flashgen.runtime.record_folders import record_folders
from flashgen.runtime.records import Bucket, Device, Key, Record, exponent
from flashgen.runtime.registry import mode_of
from flashgen.runtime.replay import forget_replays
from flashgen.runtime.tuning_command import tuning_command
from flashgen.runtime.usable_records import read_record, usable_in


@lru_cache(maxsize=64)
def current_device(index: int) -> Device:
    """The GPU with this index."""
    import torch
    import triton

    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        capability = properties.gcnArchName.split(":")[0]
    else:
        capability = f"sm_{properties.major}{properties.minor}"
    return Device(properties.name, capability, ".".join(triton.__version__.split(".")[:2]))


@dataclass(frozen=True)
class Choice:
    """The config for a call, which source it came from, and a sentence that says so."""

    config: Config
    source: str
    detail: str


def neighbours(key: Key, folders: Iterable[Path]) -> list[Record]:
    """Records that differ from `key` in the bucket or the GPU model alone, the nearest bucket first.

    None of packed sequences for others, and the other way round: what is fast for one is not for the other.
    """
    found = [record for folder in folders for record in usable_in(folder)]
    found = [r for r in found if r.key != key and r.key.in_bucket_of(key) == key]
    found = [r for r in found if r.key.bucket.packed == key.bucket.packed]
    return sorted(found, key=lambda record: key.bucket.distance(record.key.bucket))


def stands_in(bucket: Bucket, other: Bucket, default: Callable[[Bucket], Config]) -> bool:
    """Whether a record for the other bucket may serve this one: where sizes call for other tiles it may not."""
    return bucket.packed == other.packed and default(bucket) == default(other)


def lookup(
    key: Key, folders: Mapping[str, Path], default: Callable[[Bucket], Config], spec: str = "SPEC"
) -> Choice:  # fmt: skip
    """The config for `key`; `default` gives the built-in one for a bucket.

    `folders` maps a source's name to its folder of the variant's records, in the order in which they are asked. `spec`
    is the path for the command that a warning names.
    """
    for source, folder in folders.items():
        record = read_record(folder, key)
        if record is not None:
            return Choice(record.config, source, f"tuned for {key}: {record.median_us:.1f} us")
    for folder in folders.values():
        report_old(folder, key.variant)
    mode = mode_of(key.kernel, key.bucket.packed)
    mend = tuning_command(spec, mode, folders.get("shipped"))
    near = [r for r in neighbours(key, folders.values()) if stands_in(key.bucket, r.key.bucket, default)]
    same_gpu = [record for record in near if record.key.gpu == key.gpu]
    for source, records in (("nearest", same_gpu), ("same capability", near)):
        if records:
            nearest = records[0]
            detail = f"no record for {key}; using the one for {nearest.key.bucket} on {nearest.key.gpu}"
            warn_once((source, key.gpu, key.variant, key.family, mode), f"{detail}; {mend}")
            return Choice(nearest.config, source, detail)
    config = default(key.bucket)
    detail = f"no record for {key}; using the built-in default {config}"
    warn_once(("default", str(key), key.suffix), f"{detail}; {mend}")
    return Choice(config, "default", detail)


# By what was asked: of a bucket by Lookup itself, of a call's layout by those who have one.
choices: dict[Hashable, Choice] = {}


def forget() -> None:
    """Make every module look its configs up again: after tuning, or after the cache folder has changed."""
    choices.clear()
    forget_replays()


@dataclass(frozen=True, eq=False)
class Lookup:
    """Finds the configs of one kernel of one generated module; a bucket's second question costs one dict lookup.

    `identity` is the module's, `kernel` one of those that it has the digests of. `default` gives the built-in config
    from (capability, dtype, head_dim, v_head_dim) and the bucket. `shipped` is the folder of the records beside the
    kernels.
    """

    identity: Identity
    kernel: str
    default: Callable[..., Config]
    shipped: Path

    def __call__(
        self, index: int, dtype: Any, head_dim: int, v_head_dim: int, batch_heads: int, group: int, q_len: int,
        kv_len: int, block_size: int = 0, cache: str = "", tokens: int = 0,
    ) -> Choice:  # fmt: skip
        """The choice for GPU `index` and `dtype` (a torch dtype) at these sizes; it warns as the table above says.

        `block_size` and `cache` are those of a paged cache, `tokens` that of packed sequences, as in `Bucket`.
        """
        question = (
            self, index, dtype, head_dim, v_head_dim, exponent(batch_heads), exponent(group), exponent(q_len),
            exponent(kv_len), block_size, cache, tokens and 1 + exponent(tokens),
        )  # fmt: skip
        choice = choices.get(question)
        if choice is None:
            bucket = Bucket.of(batch_heads, group, q_len, kv_len, block_size, cache, tokens)
            choice = self.find(current_device(index), str(dtype).removeprefix("torch."), head_dim, v_head_dim, bucket)
            remember(choices, question, choice)
        return choice

    def key(self, device: Device, dtype: str, head_dim: int, v_head_dim: int, bucket: Bucket) -> Key:
        identity = self.identity
        return Key(
            device.gpu, device.capability, device.triton, identity.variant, self.kernel, dtype, head_dim, v_head_dim,
            bucket, identity.spec, identity.templates[self.kernel],
        )  # fmt: skip

    def find(self, device: Device, dtype: str, head_dim: int, v_head_dim: int, bucket: Bucket) -> Choice:
        """The choice as the disk has it now, nothing remembered."""
        key = self.key(device, dtype, head_dim, v_head_dim, bucket)
        return lookup(
            key,
            record_folders(self.identity.variant, self.shipped),
            partial(self.default, device.capability, dtype, head_dim, v_head_dim),
            self.identity.source,
        )


def lookups(
    identity: Identity, shipped: Path, **defaults: Callable[..., Config]
) -> dict[str, Lookup]:  # fmt: skip
    """What finds the configs of each family of kernels, by its name; each is given by its built-in default."""
    return {family: Lookup(identity, family, default, shipped) for family, default in defaults.items()}
