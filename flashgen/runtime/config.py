"""The tile sizes and launch options of one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Config:
    """BM query rows and BN keys a tile, warps a program, and stages of the load pipeline."""

    BM: int
    BN: int
    num_warps: int
    num_stages: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"config {name} is {value!r}; expected an int")
        for name in ("BM", "BN"):
            size = getattr(self, name)
            if size < 16 or size > 256 or size & (size - 1):
                raise ValueError(f"config {name} is {size}; expected a power of two from 16 to 256")
        if self.num_warps not in (1, 2, 4, 8, 16):
            raise ValueError(f"config num_warps is {self.num_warps}; expected 1, 2, 4, 8 or 16")
        if not 1 <= self.num_stages <= 8:
            raise ValueError(f"config num_stages is {self.num_stages}; expected 1 to 8")

    @classmethod
    def of(cls, config: Config | Mapping[str, Any]) -> Config:
        """A Config as it is, or one from a mapping with exactly its fields."""
        if isinstance(config, Config):
            return config
        names = [field.name for field in fields(cls)]
        if not isinstance(config, Mapping) or set(config) != set(names):
            raise TypeError(f"config is {config!r}; expected a Config or a mapping of {', '.join(names)}")
        return cls(**config)
