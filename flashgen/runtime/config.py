"""The tile sizes, launch options and further choices of one kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

# What every config says.
NEEDED = ("BM", "BN", "num_warps", "num_stages")
PORTABLE = "portable"

# The axes that some kernel has.
_known_axes: set[str] = set()


def know_axes(names: Iterable[str]) -> None:
    """Have every config answer to the names of a kernel's axes."""
    _known_axes.update(names)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Config:
    """BM query rows and BN keys a tile, warps a program, and stages of the load pipeline, for one backend.

    What a kernel lets one choose beyond these are its axes: `axes` has their values by name, and each is an attribute.
    Which there are, and what each entry may be, says the kernel's record; here are values alone. The text form is
    "BM=64 BN=128 num_warps=4 num_stages=2 fuse_dq=1".
    """

    BM: int
    BN: int
    num_warps: int
    num_stages: int
    backend: str
    # In the order in which they are written, which makes no difference.
    axes: tuple[tuple[str, int], ...]

    def __init__(
        self, BM: int, BN: int, num_warps: int, num_stages: int, backend: str = PORTABLE,
        axes: tuple[tuple[str, int], ...] = (), **more: int | None,
    ) -> None:  # fmt: skip
        chosen = {name: value for name, value in {**dict(axes), **more}.items() if value is not None}
        values: dict[str, Any] = {"BM": BM, "BN": BN, "num_warps": num_warps, "num_stages": num_stages, **chosen}
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"config {name} is {value!r}; expected an int")
        for name in chosen:
            if hasattr(Config, name) or name == "axes":
                raise ValueError(f"config {name} is {chosen[name]}; expected another name of an axis")
        for name, value in {**values, "backend": backend, "axes": tuple(chosen.items())}.items():
            object.__setattr__(self, name, value)

    # No fields: FSDP copies a plan, this with it, by passing all fields to __init__.
    @cached_property
    def _said(self) -> tuple[Any, ...]:
        return self.BM, self.BN, self.num_warps, self.num_stages, self.backend, frozenset(self.axes)

    @cached_property
    def _hash(self) -> int:
        """It is asked for on each launch."""
        return hash(self._said)

    def __eq__(self, other: object) -> bool:
        return self._said == other._said if isinstance(other, Config) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        """A hash is of its process."""
        return Config, (self.BM, self.BN, self.num_warps, self.num_stages, self.backend, self.axes)

    def __getattr__(self, name: str) -> Any:
        """An axis that this config does not have is None."""
        if name in _known_axes:
            return None
        raise AttributeError(f"a config has no {name!r}; expected BM, BN, num_warps, num_stages, backend or an axis")

    @classmethod
    def of(cls, config: Config | Mapping[str, Any] | str) -> Config:
        """A Config as it is, or one from a mapping of its values, from its text, or from that of an exported file."""
        if isinstance(config, Config):
            return config
        if isinstance(config, str):
            return cls.parse(config)
        if hasattr(config, "as_dict"):
            config = config.as_dict()
        if not isinstance(config, Mapping) or not set(NEEDED) <= set(config) or "axes" in config:
            raise TypeError(
                f"config is {config!r}; expected a Config or a mapping of {', '.join(NEEDED)} and its kernel's axes"
            )
        return cls(**config)

    @classmethod
    def parse(cls, text: str) -> Config:
        """A Config from its text form; ValueError or TypeError for another text."""
        pairs = [part.partition("=") for part in text.split()]
        values: dict[str, Any] = {name: int(value) if value.isdecimal() else value for name, _, value in pairs}
        if len(values) < len(pairs) or not set(NEEDED) <= set(values) or "axes" in values:
            raise ValueError(f"config is {text!r}; expected a text such as 'BM=64 BN=128 num_warps=4 num_stages=2'")
        return cls(**values)

    def axis(self, name: str) -> int | None:
        """The value of an axis, None where the config does not have it."""
        return dict(self.axes).get(name)

    def but(self, **values: int | None) -> Config:
        """The config with other values; None takes an axis away."""
        chosen: dict[str, Any] = {**self.values, **values}
        return Config(**chosen, backend=self.backend)

    @property
    def values(self) -> dict[str, int]:
        """Its numbers by name."""
        return {**{name: getattr(self, name) for name in NEEDED}, **dict(self.axes)}

    def as_dict(self) -> dict[str, Any]:
        """All that it says by name, without the backend where it is the portable one."""
        return {**{name: getattr(self, name) for name in NEEDED}, **self.further}

    @property
    def further(self) -> dict[str, Any]:
        """What it says beyond tiles and launch options: the axes and, unless it is the portable one, the backend."""
        return {**({} if self.backend == PORTABLE else {"backend": self.backend}), **dict(self.axes)}

    @property
    def label(self) -> str:
        """The config for people: "64x128, 4 warps, 2 stages", then what else it says."""
        stages = f"{self.num_stages} stage{'s' * (self.num_stages > 1)}"
        further = [f"{name} {value}" for name, value in self.further.items()]
        return ", ".join([f"{self.BM}x{self.BN}", f"{self.num_warps} warps", stages, *further])

    def __str__(self) -> str:
        # torch.compile may take a number for a symbol, of which it writes no text.
        said = [(name, value if isinstance(value, str) else int(value)) for name, value in self.as_dict().items()]
        return " ".join([f"{name}={value}" for name, value in said])

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.as_dict().items())})"
