"""The decode kernels, dense and paged: few queries over many keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flashgen.runtime.config import Config
from flashgen.runtime.kernels.kernel import Kernel, Task
from flashgen.runtime.kernels.portable import (
    PORTABLE_TILES,
    Table,
    default_from,
    key_bytes,
    portable_constants,
    portable_options,
    tile_shapes,
)

# Tiles of keys that the mask of a variant without limits is asked for at a time.
CHUNK = 32

_DEFAULTS: Table = {
    "sm80": (Config(64, 64, 4, 4), Config(64, 64, 4, 3), Config(32, 32, 4, 3)),
    "sm90": (Config(64, 64, 4, 4), Config(64, 64, 4, 3), Config(64, 64, 4, 2)),
    "sm100": (Config(64, 64, 4, 4), Config(64, 64, 4, 3), Config(64, 64, 4, 2)),
    "small": (Config(64, 64, 4, 3), Config(64, 32, 4, 3), Config(32, 32, 4, 2)),
    "other": (Config(64, 64, 4, 2), Config(64, 32, 4, 2), Config(32, 32, 4, 1)),
    "float32": (Config(32, 32, 4, 2), Config(16, 32, 4, 2), Config(16, 16, 4, 2)),
    "float32 by TMA": (Config(32, 32, 4, 2), Config(16, 32, 4, 2), Config(16, 16, 4, 2)),
}


def _space(task: Task) -> Iterator[Config]:
    return (Config(*shape) for shape in tile_shapes(task))


def _constants(config: Config, head_dim: int, v_head_dim: int) -> Mapping[str, int | None]:
    return {**portable_constants(config, head_dim, v_head_dim), "CHUNK": CHUNK}


DECODE_KERNEL = Kernel(
    name="decode",
    family="decode",
    function="_decode",
    serves="few queries over many keys",
    domain=PORTABLE_TILES,
    default=default_from(_DEFAULTS),
    space=_space,
    shared_bytes=key_bytes,
    constants=_constants,
    options=portable_options,
    tuned=False,
)
