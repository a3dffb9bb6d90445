"""Which tuned config answers a call.

The order in which a call's config is found:

| source            | what it is                                                | warns             |
|-------------------|-----------------------------------------------------------|-------------------|
| argument          | the caller's `config=`                                    |                   |
| user cache        | a record for this very key, in the user's cache folder    |                   |
| shipped           | a record for this very key, beside the generated module   |                   |
| nearest           | same GPU, the nearest shape bucket                        | once              |
| same capability   | another GPU of this capability, the nearest shape bucket  | once              |
| default           | the built-in default                                      | once for each key |

A record made from another spec, other templates or another Triton series is never applied. This file only reads;
records are written by `flashgen.tuning.cache`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from flashgen.runtime.config import Config
from flashgen.runtime.identity import Identity
from flashgen.runtime.memory import remember
from flashgen.runtime.records import Bucket, Device, Key, Record, gpu_slug


class RecordWarning(UserWarning):
    """A kernel runs with a config that was not tuned for it, or a record could not be read."""


def cache_folder() -> Path:
    """`FLASHGEN_CACHE_DIR`, else the platform's cache folder (the same as `platformdirs.user_cache_dir` names)."""
    chosen = os.environ.get("FLASHGEN_CACHE_DIR", "").strip()
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "").strip()
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "flashgen" / "flashgen" / "Cache"
    xdg = os.environ.get("XDG_CACHE_HOME", "").strip()
    if xdg and os.path.isabs(xdg):
        return Path(xdg) / "flashgen"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "flashgen"


def user_root() -> Path:
    """The folder of the user's own records."""
    return cache_folder() / "tuned"


def shipped_root(module_file: str | os.PathLike[str]) -> Path:
    """The folder of the records that are shipped beside a generated module."""
    return Path(module_file).parent / "tuned"


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


_reported: set[tuple[str, ...]] = set()


def _warn_once(mark: tuple[str, ...], message: str) -> None:
    if mark not in _reported:
        _reported.add(mark)
        warnings.warn(message, RecordWarning, stacklevel=3)


def read_record(path: Path) -> Record | None:
    """The record in this file; None where there is none. A damaged file is reported once and set aside."""
    try:
        content = path.read_bytes()
        record = Record.from_json(content.decode())
        if record.key.path.name != path.name or record.key.path.parent.name != path.parent.name:
            raise ValueError("its key is not the one that its path names")
        return record
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _set_aside(path, error)
        return None


def _set_aside(path: Path, error: Exception) -> None:
    aside = path.with_name(path.name + ".damaged")
    try:
        os.replace(path, aside)
        outcome = f"it was set aside as {aside.name}"
    except OSError:
        outcome = "it could not be set aside and is skipped"
    _warn_once(("damaged", str(path)), f"the tuned record {path} cannot be read ({error}); {outcome}")


def records_below(root: Path, gpu: str = "*", variant: str = "*", name: str = "*.json") -> list[Record]:
    """The readable records of a root, in the order of their paths. The last three are patterns for its three levels."""
    found = (read_record(path) for path in sorted(root.glob(f"{gpu}/{variant}/{name}")))
    return [record for record in found if record is not None]


def neighbours(key: Key, roots: Sequence[Path], gpu: str = "*") -> list[Record]:
    """Records that differ from `key` in the bucket or the GPU model alone, the nearest bucket first."""
    name = f"{key.family}*{key.suffix}"
    found = [record for root in roots for record in records_below(root, gpu, key.variant, name)]
    same = (key.capability, key.spec, key.templates)
    found = [r for r in found if (r.key.capability, r.key.spec, r.key.templates) == same and r.key != key]
    return sorted(found, key=lambda record: key.bucket.distance(record.key.bucket))


def lookup(key: Key, roots: Mapping[str, Path], default: Config, spec: str = "SPEC") -> Choice:
    """The config for `key`.

    `roots` maps a source's name to its folder, in the order in which they are asked. `spec` is the path for the
    command that a warning names.
    """
    for source, root in roots.items():
        record = read_record(root / key.path)
        if record is not None and record.key == key:
            return Choice(record.config, source, f"tuned for {key}: {record.median_us:.1f} us")
    folders = list(roots.values())
    mend = f"`flashgen tune {spec}` finds the best config for it"
    slug = gpu_slug(key.gpu)
    for source, gpu in (("nearest", slug), ("same capability", "*")):
        for record in neighbours(key, folders, gpu):
            if gpu == slug and record.key.gpu != key.gpu:
                continue
            detail = f"no record for {key}; using the one for {record.key.bucket} on {record.key.gpu}"
            _warn_once((source, key.gpu, key.variant, key.family), f"{detail}; {mend}")
            return Choice(record.config, source, detail)
    detail = f"no record for {key}; using the built-in default {default}"
    _warn_once(("default", str(key), key.suffix), f"{detail}; {mend}")
    return Choice(default, "default", detail)


# By what was asked: of a bucket by Lookup itself, of a call's layout by those who have one.
choices: dict[Hashable, Choice] = {}


def forget() -> None:
    """Make every module look its configs up again: after tuning, or after the cache folder has changed."""
    choices.clear()


@dataclass(frozen=True, eq=False)
class Lookup:
    """Finds the configs of one kernel of one generated module; a bucket's second question costs one dict lookup.

    `identity` is the module's, `kernel` one of those that it has the digests of. `default` gives the built-in config
    from (capability, dtype, head_dim, v_head_dim). `shipped` is the folder of the records beside the module.
    """

    identity: Identity
    kernel: str
    default: Callable[[str, str, int, int], Config]
    shipped: Path

    def __call__(
        self, index: int, dtype: Any, head_dim: int, v_head_dim: int, batch_heads: int, group: int, q_len: int,
        kv_len: int,
    ) -> Choice:  # fmt: skip
        """The choice for GPU `index` and `dtype` (a torch dtype) at these sizes; it warns as the table above says."""
        question = (
            self, index, dtype, head_dim, v_head_dim, (batch_heads - 1).bit_length(), (group - 1).bit_length(),
            (q_len - 1).bit_length(), (kv_len - 1).bit_length(),
        )  # fmt: skip
        choice = choices.get(question)
        if choice is None:
            bucket = Bucket.of(batch_heads, group, q_len, kv_len)
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
        """The same from the disk, nothing remembered."""
        key = self.key(device, dtype, head_dim, v_head_dim, bucket)
        roots = {"user cache": user_root(), "shipped": self.shipped}
        return lookup(key, roots, self.default(device.capability, dtype, head_dim, v_head_dim), self.identity.source)
