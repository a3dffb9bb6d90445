"""Which record would answer a call, and why each earlier source has none: `flashgen.runtime.lookup` in words."""

from __future__ import annotations

import glob
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import torch
import triton

from flashgen.codegen import default_of, identity
from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.lookup import Choice, current_device, lookup, stands_in
from flashgen.runtime.record_files import report_old, table_path
from flashgen.runtime.record_folders import record_folders, shipped_in
from flashgen.runtime.records import Bucket, Device, Key, Record
from flashgen.runtime.registry import TUNED
from flashgen.runtime.usable_records import usable_in
from flashgen.spec.variant import Variant
from flashgen.tuning.workloads import workloads

# What may differ between a key and the record that a source answers with.
TOLERATED: Mapping[str, tuple[str, ...]] = {"nearest": ("bucket",), "same capability": ("bucket", "gpu")}


@dataclass(frozen=True)
class Difference:
    """A field of a key: what the call has, and what the record has."""

    field: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.field} is {self.found}, not {self.wanted}"


@dataclass(frozen=True)
class Step:
    """A source that was asked: whether its answer is used, in a sentence, and for one that has no answer how the
    record that comes nearest differs."""

    source: str
    used: bool
    text: str
    differences: tuple[Difference, ...] = ()

    def __str__(self) -> str:
        return "; ".join([f"{self.source}: {self.text}", *map(str, self.differences)])


@dataclass(frozen=True)
class Traced:
    """All sources that are asked for one problem, the one that answers last."""

    problem: Problem
    key: Key
    choice: Choice
    steps: tuple[Step, ...]


# A GPU that flashgen does not know may be asked about too.
_CAPABILITY = re.compile(r"sm_[0-9]{2,3}|gfx[0-9a-f]{3,4}")


def device_named(gpu: str | None, capability: str | None) -> Device:
    """A GPU model by its name and capability, with the Triton that is installed; GPU 0 where neither is given."""
    if capability is not None and not _CAPABILITY.fullmatch(capability):
        raise UsageError(f"--capability {capability!r}; expected a target as compilers name it: sm_80, gfx942")
    if gpu is not None and capability is not None:
        return Device(gpu, capability, ".".join(triton.__version__.split(".")[:2]))
    if not torch.cuda.is_available():
        raise EnvironmentProblem(
            "no GPU that torch can use was found; expected one, or both --gpu and --capability, "
            "for example --gpu 'NVIDIA A100' --capability sm_80"
        )
    here = current_device(0)
    return Device(gpu or here.gpu, capability or here.capability, here.triton)


def traced(
    variant: Variant, out: Path, asked: list[Problem], device: Device, kernels: Sequence[str] = TUNED
) -> tuple[Traced, ...]:
    """The sources for each kernel and problem; those in the same shape bucket stand together.

    `out` has the generated modules.
    """
    own = identity(variant)
    folders = record_folders(variant.name, shipped_in(variant.module_in(out)))
    for folder in folders.values():
        # What cannot be read is warned of here; the lookups below are silent.
        usable_in(folder)
        report_old(folder, variant.name)
    found = []
    for workload in workloads(asked, own, device, kernels, variant.dropout is not None):
        key = workload.key
        sizes = (key.capability, key.dtype, key.head_dim, key.v_head_dim)
        default = partial(default_of(variant, key.kernel, key.bucket.packed), *sizes)
        with warnings.catch_warnings():
            # What a lookup warns of is what is said here.
            warnings.simplefilter("ignore")
            choice = lookup(key, folders, default, variant.source)
            steps = _steps(key, folders, default, choice)
        found.append(Traced(workload.problem, key, choice, steps))
    return tuple(found)


def _steps(
    key: Key, folders: Mapping[str, Path], default: Callable[[Bucket], Config], choice: Choice
) -> tuple[Step, ...]:  # fmt: skip
    steps: list[Step] = []
    for source in (*folders, *TOLERATED, "default"):
        if source == choice.source:
            return (*steps, Step(source, True, choice.detail))
        asked = [folders[source]] if source in folders else list(folders.values())
        steps.append(_miss(source, key, asked, default))
    return tuple(steps)


def _miss(source: str, key: Key, folders: list[Path], default: Callable[[Bucket], Config]) -> Step:
    """Why a source has no answer."""
    tolerated = TOLERATED.get(source, ())
    records = [record for folder in folders for record in usable_in(folder)]
    differing = [(differences(key, record, default, tolerated), record) for record in records]
    # For a neighbour the very record of the key would be no miss.
    closest = min(
        (entry for entry in differing if entry[0]),
        key=lambda e: (e[1].key.kernel != key.kernel, len(e[0]), key.bucket.distance(e[1].key.bucket)),
        default=None,
    )
    tables = [table_path(folder, key.gpu) for folder in folders]
    damaged = sorted(path for table in tables for path in table.parent.glob(f"{glob.escape(table.name)}.*damaged"))
    text = f"no record of it in {tables[0]}" if source not in TOLERATED else f"no record of {_reach(source, key)}"
    if damaged:
        text += f" ({damaged[0].name} is damaged and was set aside)"
    if closest is None:
        return Step(source, False, f"{text}; no record of {key.variant} at all")
    return Step(source, False, f"{text}; the closest record is the one for {closest[1].key}", closest[0])


def differences(
    key: Key, record: Record, default: Callable[[Bucket], Config], tolerated: tuple[str, ...] = ()
) -> tuple[Difference, ...]:  # fmt: skip
    """The fields in which a record's key is another one, beside those that are tolerated.

    A bucket that may not stand in for the key's is never tolerated.
    """
    names = [field.name for field in fields(Key) if field.name not in tolerated]
    if "bucket" in tolerated and not stands_in(key.bucket, record.key.bucket, default):
        names.append("bucket")
    pairs = [(name, str(getattr(key, name)), str(getattr(record.key, name))) for name in names]
    return tuple(Difference(name, wanted, found) for name, wanted, found in pairs if wanted != found)


def _reach(source: str, key: Key) -> str:
    return f"{key.gpu if source == 'nearest' else key.capability} in a shape bucket that may stand in for its own"
