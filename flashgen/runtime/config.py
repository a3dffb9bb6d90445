"""The tile sizes, launch options and further choices of one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

# What a kernel of a backend lets one choose beyond tiles and launch options: each axis with its values. None: a config
# need not have it.
AXES: Mapping[tuple[str, str], Mapping[str, tuple[int | None, ...]]] = {
    ("forward", "portable"): {},
    ("forward", "hopper"): {"ping_pong": (0, 1)},
    ("backward_q", "portable"): {},
    ("backward_q", "hopper"): {"ping_pong": (0, 1)},
    ("backward_kv", "portable"): {"fuse_dq": (0, 1)},
    ("backward_kv", "hopper"): {"fuse_dq": (0, 1, 2), "delay_dq": (0, 1), "all_heads": (None, 1)},
}
KERNELS = tuple(dict.fromkeys(kernel for kernel, _ in AXES))
BACKENDS = tuple(dict.fromkeys(backend for _, backend in AXES))


@dataclass(frozen=True)
class Config:
    """BM query rows and BN keys a tile, warps a program, and stages of the load pipeline, for one backend.

    The axes after `backend` are None in a config of a kernel that does not have them. `fuse_dq` 1: the kernel that
    makes dK and dV also adds up dQ, by atomics. The text form is "BM=64 BN=128 num_warps=4 num_stages=2 fuse_dq=1".

    For Hopper, num_warps are those of a consumer. The consumers of the forward and of the kernel that makes dQ alone
    have 64 rows: BM 128 for two of them, 192 for three. `ping_pong` 1: they take turns at the tensor cores. Those of
    the kernel that makes dK and dV have 64 keys each: BN is 128. For head dimensions above 128 they share 64 keys, and
    dQ is left to the other kernel. `fuse_dq` 2: dQ leaves by TMA, not from registers; `delay_dq` 1: the product for dQ
    is made one tile later; `all_heads` 1: tiles of all heads are one queue, not those of some heads after the other.
    """

    BM: int
    BN: int
    num_warps: int
    num_stages: int
    backend: str = "portable"
    fuse_dq: int | None = None
    ping_pong: int | None = None
    delay_dq: int | None = None
    all_heads: int | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"config backend is {self.backend!r}; expected {' or '.join(BACKENDS)}")
        for name, value in {**dict.fromkeys(_NEEDED), **self.as_dict()}.items():
            if name != "backend" and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(f"config {name} is {value!r}; expected an int")
        for name in ("BM", "BN"):
            size = getattr(self, name)
            if name == "BM" and self.backend == "hopper":
                sizes = (128, 192) if self.fuse_dq is None else (64, 128)
                if size not in sizes:
                    raise ValueError(f"config BM is {size}; expected {sizes[0]} or {sizes[1]} for the backend hopper")
            elif size < 16 or size > 256 or size & (size - 1):
                raise ValueError(f"config {name} is {size}; expected a power of two from 16 to 256")
        if self.backend == "hopper" and self.fuse_dq is not None:
            if self.BN not in (64, 128):
                raise ValueError(f"config BN is {self.BN}; expected 64 or 128 for the backend hopper")
            if self.wide and (self.BM != 64 or self.fuse_dq or self.delay_dq):
                raise ValueError(f"config is {self}; expected BM=64 fuse_dq=0 delay_dq=0 beside BN=64")
        if self.backend == "hopper" and self.num_warps != 4:
            raise ValueError(f"config num_warps is {self.num_warps}; expected 4 for the backend hopper")
        if self.num_warps not in (1, 2, 4, 8, 16):
            raise ValueError(f"config num_warps is {self.num_warps}; expected 1, 2, 4, 8 or 16")
        if not 1 <= self.num_stages <= 8:
            raise ValueError(f"config num_stages is {self.num_stages}; expected 1 to 8")

    @classmethod
    def of(cls, config: Config | Mapping[str, Any] | str) -> Config:
        """A Config as it is, or one from a mapping of its fields or from its text."""
        if isinstance(config, Config):
            return config
        if isinstance(config, str):
            return cls.parse(config)
        if not isinstance(config, Mapping) or not set(_NEEDED) <= set(config) <= set(_NAMES):
            raise TypeError(
                f"config is {config!r}; expected a Config or a mapping of {', '.join(_NEEDED)} and its kernel's axes"
            )
        return cls(**config)

    @classmethod
    def parse(cls, text: str) -> Config:
        """A Config from its text form; ValueError or TypeError for another text."""
        return _parsed(text)

    def for_kernel(self, kernel: str) -> Config:
        """This config, if `kernel` has its backend and its axes; ValueError otherwise."""
        axes = AXES.get((kernel, self.backend))
        if axes is None:
            backends = " or ".join(backend for name, backend in AXES if name == kernel)
            raise ValueError(f"config backend is {self.backend!r}; expected {backends}, as {kernel} has it")
        given = {name: value for name, value in self.further.items() if name != "backend"}
        for name in dict.fromkeys((*axes, *given)):
            if name not in axes:
                raise ValueError(f"config {name} is {given[name]}; expected none, {kernel} has no such axis")
            if given.get(name) not in axes[name]:
                values = " or ".join("none" if value is None else str(value) for value in axes[name])
                raise ValueError(f"config {name} is {given.get(name)}; expected {values} for {kernel}")
        return self

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, without axes that are None, and without the backend where it is the portable one."""
        values = {name: getattr(self, name) for name in _NAMES}
        if self.backend == "portable":
            del values["backend"]
        return {name: value for name, value in values.items() if value is not None}

    @property
    def further(self) -> dict[str, Any]:
        """What it says beyond tiles and launch options: the axes and, unless it is the portable one, the backend."""
        return {name: value for name, value in self.as_dict().items() if name not in _NEEDED}

    @property
    def compiled(self) -> Config:
        """This config as far as it changes what is compiled."""
        return replace(self, all_heads=None)

    @property
    def consumers(self) -> int:
        """For Hopper, the groups of four warps that compute."""
        return self.BM // 64 if self.fuse_dq is None else 2

    @property
    def wide(self) -> bool:
        """Whether it is for the Hopper backward of head dimensions above 128."""
        return self.backend == "hopper" and self.fuse_dq is not None and self.BN == 64

    def name_of(self, kernel: str) -> str:
        """What `kernel` is called in a generated module for configs such as this one."""
        if self.backend == "portable":
            return f"_{kernel}"
        return f"_{kernel}_{self.backend}_wide" if self.wide else f"_{kernel}_{self.backend}"

    @property
    def label(self) -> str:
        """The same for people: "64x128, 4 warps, 2 stages", then what else it says."""
        stages = f"{self.num_stages} stage{'s' * (self.num_stages > 1)}"
        further = [f"{name} {value}" for name, value in self.further.items()]
        return ", ".join([f"{self.BM}x{self.BN}", f"{self.num_warps} warps", stages, *further])

    def __str__(self) -> str:
        return " ".join([f"{name}={value}" for name, value in self.as_dict().items()])


_NAMES = tuple(field.name for field in fields(Config))
_NEEDED = _NAMES[:4]


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Config:
    pairs = [part.partition("=") for part in text.split()]
    values = {name: int(value) if value.isdecimal() else value for name, _, value in pairs}
    if len(values) < len(pairs) or not set(_NEEDED) <= set(values) <= set(_NAMES):
        raise ValueError(f"config is {text!r}; expected a text such as 'BM=64 BN=128 num_warps=4 num_stages=2'")
    return Config(**values)  # type: ignore[arg-type]
