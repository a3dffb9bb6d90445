"""What a kernel is to the rest of the house: its record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from flashgen.runtime.call import Call
from flashgen.runtime.config import NEEDED, Config, know_axes
from flashgen.runtime.descriptors import Tiling
from flashgen.runtime.launching import Setup
from flashgen.runtime.records import Bucket

# Bytes of spills a thread beyond which a config is dropped. Spilled registers outside the inner loop cost little: on
# recorded tables of whole spaces a kernel that spills 1000 bytes a thread came within 2 % of the best, and none beyond
# this limit within 15 %.
SPILL_LIMIT = 1024

# Values that one entry of a config may have; None: a config need not have it.
Values = tuple[int | None, ...]


@dataclass(frozen=True)
class Task:
    """What a space is for: a family of kernels on a kind of GPU, for one workload.

    A scheduled variant has other tile sizes.
    """

    kernel: str
    capability: str
    dtype: str
    head_dim: int
    v_head_dim: int
    q_len: int
    kv_len: int
    scheduled: bool = False
    # Query heads that share a KV head.
    group: int = 1
    # Whether sequences are packed.
    packed: bool = False
    # Whether products are those of float32, which tensor cores do not have.
    exact: bool = False

    @property
    def rows(self) -> int:
        """Rows of a KV head where its query heads lie in one tile."""
        return self.q_len * self.group

    @property
    def sizes(self) -> tuple[str, str, int, int]:
        """Capability, dtype and head dimensions, as kernels are asked whether they serve them."""
        return self.capability, self.dtype, self.head_dim, self.v_head_dim


class HelperKernel(NamedTuple):
    """A kernel that a launch of another one needs: the function, the constants and the launch options."""

    function: str
    constants: Mapping[str, int]
    options: Mapping[str, int] = {}


def query_tiles(call: Call, config: Config) -> int:
    """One program for each tile of queries of each head."""
    return call.sizes.query_tiles(config.BM)


def key_tiles(call: Call, config: Config, heads: int) -> int:
    """One program for each tile of keys of so many heads."""
    return call.sizes.key_tiles(config.BN, heads)


def nothing(*_: Any) -> str:
    """No complaint."""
    return ""


def unchanged(config: Config) -> Config:
    """The config, as it is without dQ where a kernel makes none."""
    return config


@dataclass(frozen=True, eq=False)
class Kernel:
    """All that the house knows of one kernel; whoever tunes, proves, compiles or explains kernels reads it here.

    `name` is the kernel's own, `family` what it computes, by which records know it: kernels of a family stand in for
    one another. `mode` is the form of call that it serves: "dense", "decode" (few queries) or "paged"; `packs`: it
    serves packed sequences too. `backend` is how its configs name it among these. `function` is the kernel in a
    generated module. `launch` launches it, of (variant, call, config, further arguments, the same for all kernels of a
    family).

    `serves` says for people which calls it takes, `refuses` why it does not take (capability, dtype, head_dim,
    v_head_dim), "" where it does; `capability` is the only one that it runs on, "" for any. `domain` has the values
    that each entry of its configs may have; `misfit` says what is wrong with one of them for (head_dim, v_head_dim).

    `default` is the built-in config for a form of variant ("", "plain", "masked", "scheduled", "by key", "pairs",
    "lookups", "functions", "dropout", "packed" without a schedule) and (capability, dtype, head_dim, v_head_dim);
    variants of the forms that it `leaves` have the built-in config of another kernel of the family. `suited` is the
    same as it suits the sizes of a call and so many bytes that are read for each pair, of (config, bucket, pair_bytes,
    capability, dtype, head_dim, v_head_dim). `space` has what is worth trying for a task, `starts` where a search
    begins after the configs that are known, `tried_at_once` the axes whose values are tried of the default itself: what
    they do to one config they do to most. `shared_bytes` is what a config needs of shared memory at least,
    `as_launched` is the config as it is compiled for a KV head of so many rows, `accumulators` how many float32 values
    a thread holds, `spill_limit` the bytes of spills from which on it is slow.

    `constants` are the compile-time arguments of (config, head_dim, v_head_dim), and None for arguments that are not
    there; `types` the types of arguments that do not follow from their names, of (dtype, config, head_dim,
    v_head_dim, grouped heads, packed sequences); `options` those of a launch; `host_axes` the axes that are the
    launch's alone. `helpers` are further kernels that a launch needs.

    For dK and dV: `without_dq` is a config that leaves dQ to another kernel, `query_sums` makes room where tiles of dQ
    are added up before they are brought into order; `sums_inputs`: gradients of learned inputs may be added up
    there too, as far as the variant allows it, where sequences are dense.

    `barriers` are the functions that hand data over by barriers, or to roles that begin at once, which no sanitizer
    follows.
    """

    name: str
    family: str
    function: str
    serves: str
    domain: Mapping[str, Values]
    default: Callable[[str, str, str, int, int], Config]
    space: Callable[[Task], Iterable[Config]]
    shared_bytes: Callable[[Config, Task], int]
    constants: Callable[[Config, int, int], Mapping[str, int | None]]
    options: Callable[[Config], dict[str, Any]]
    launch: Callable[..., Any]
    backend: str = "portable"
    capability: str = ""
    mode: str = "dense"
    packs: bool = False
    tuned: bool = True
    leaves: frozenset[str] = frozenset()
    refuses: Callable[[str, str, int, int], str] = nothing
    misfit: Callable[[Config, int, int], str] = nothing
    starts: tuple[Config, ...] = ()
    tried_at_once: Mapping[str, int] = field(default_factory=dict)
    accumulators: Callable[[Config, Task], int] = lambda config, task: 0
    suited: Callable[[Config, Bucket, int, str, str, int, int], Config] = lambda config, *_: config
    as_launched: Callable[[Config, int], Config] = lambda config, rows: config
    spill_limit: Callable[[Config], int] = lambda config: SPILL_LIMIT
    types: Callable[[torch.dtype, Config, int, int, bool, bool], Mapping[str, str]] = lambda *_: {}
    host_axes: tuple[str, ...] = ()
    helpers: Callable[[Config], tuple[HelperKernel, ...]] = lambda config: ()
    without_dq: Callable[[Config], Config] = unchanged
    query_sums: Callable[[Call, Config], torch.Tensor | None] = lambda call, config: None
    sums_inputs: bool = False
    barriers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        know_axes(self.axes)

    @property
    def axes(self) -> Mapping[str, Values]:
        """What its configs say beyond tiles and launch options."""
        return {name: values for name, values in self.domain.items() if name not in NEEDED}

    def setup(
        self, call: Call, config: Config, programs: int, numbers: Mapping[str, Any] | None = None,
        constants: Mapping[str, Any] | None = None, tilings: Mapping[str, Tiling] | None = None,
    ) -> Setup:  # fmt: skip
        """How a launch is set up beside its tensors: what follows from a call and a config, and what else is given."""
        s = call.sizes
        tiles = {"num_q_tiles": -(-s.q_len // config.BM), "num_k_tiles": -(-s.kv_len // config.BN)}
        return Setup(
            programs,
            {**call.numbers, **tiles, **(numbers or {})},
            {**self.constants(config, s.head_dim, s.v_head_dim), **(constants or {})},
            self.options(config),
            tilings or {},
        )

    def complaints(self, config: Config) -> list[str]:
        """What is wrong with a config of this backend as one of this kernel's."""
        given = config.values
        strange = [name for name in given if name not in self.domain]
        found = [f"config {name} is {given[name]}; expected none, {self.family} has no such axis" for name in strange]
        for name, values in self.domain.items():
            if given.get(name) not in values:
                place = "" if name in NEEDED and self.backend == "portable" else f" for {self.name}"
                found.append(f"config {name} is {given.get(name)}; expected {_choice(values)}{place}")
        return found

    def ordered(self, config: Config) -> Config:
        """The config with its axes in this kernel's order."""
        axes = tuple((name, value) for name in self.axes if (value := config.axis(name)) is not None)
        return config if axes == config.axes else replace(config, axes=axes)

    def compiled(self, config: Config) -> Config:
        """A config as far as it changes what is compiled."""
        return config.but(**dict.fromkeys(self.host_axes)) if self.host_axes else config


def _choice(values: Values) -> str:
    numbers = [value for value in values if value is not None]
    if len(values) == len(numbers) > 3 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    *some, last = ["none" if value is None else str(value) for value in values]
    return f"{', '.join(some)} or {last}" if some else last
