"""The kernel that classifies tiles for a mask that is no interval of keys."""

from __future__ import annotations

from flashgen.runtime.config import Config
from flashgen.runtime.kernels.kernel import Beside

# Tiles that one program classifies: long chunks share work, short ones keep the GPU busy.
_CHUNKS = (8, 32)


def schedules(config: Config) -> tuple[Beside, ...]:
    """What makes schedules for tiles of a config."""
    warps = max(1, config.BM * config.BN // 2048)
    return tuple(
        Beside("_classify", {"BM": config.BM, "BN": config.BN, "CHUNK": chunk}, {"num_warps": warps})
        for chunk in _CHUNKS
    )
