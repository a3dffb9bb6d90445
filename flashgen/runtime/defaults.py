"""The built-in configs, for a GPU and shape without a record.

Chosen by compiling the gallery for each of them: they fit its shared memory and, for 16-bit dtypes, spill hardly any
registers. Full-precision products of float32 take many; there these configs spill the least.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from flashgen.runtime.config import Config

# The largest head dimension of each column below.
_UP_TO = (64, 128, 256)

_AMPERE = (Config(64, 64, 4, 3), Config(32, 64, 4, 2), Config(32, 64, 8, 2))
_HOPPER = (Config(64, 64, 4, 3), Config(64, 64, 4, 3), Config(64, 32, 4, 2))
# The members of a generation with little shared memory.
_SMALL = (Config(64, 32, 4, 2), Config(32, 64, 4, 2), Config(32, 64, 8, 2))
# Also for a GPU that is not listed: 64 KiB of shared memory are enough.
_OTHER = (Config(64, 64, 4, 2), Config(64, 64, 4, 1), Config(64, 32, 4, 1))

# For 16-bit dtypes.
_HALF = {
    **dict.fromkeys(("sm_80", "sm_87"), _AMPERE),
    **dict.fromkeys(("sm_90", "sm_100", "sm_103"), _HOPPER),
    **dict.fromkeys(("sm_86", "sm_89", "sm_120", "sm_121"), _SMALL),
}
_SINGLE = (Config(32, 32, 8, 1), Config(16, 32, 4, 1), Config(16, 32, 4, 1))
_SINGLE_BY_TMA = (Config(32, 32, 8, 1), Config(16, 32, 8, 1), Config(16, 16, 8, 1))
_TMA = ("sm_90", "sm_100", "sm_103", "sm_120", "sm_121")


def default_config(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """The config for a GPU of this capability, "sm_90" or "gfx942"; "" stands for one that is not known."""
    column = bisect_left(_UP_TO, max(head_dim, v_head_dim))
    if dtype == "float32":
        return (_SINGLE_BY_TMA if capability in _TMA else _SINGLE)[column]
    return _HALF.get(capability, _OTHER)[column]


def default_scheduled_config(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """The same for a variant with a schedule: tiles of at least 512 pairs, each with an index of 4 bytes.

    The schedule then takes under 0.2 % of one score matrix in float32, the dtype with the smallest tiles.
    """
    config = default_config(capability, dtype, head_dim, v_head_dim)
    return config if config.BM * config.BN >= 512 else replace(config, BN=512 // config.BM)
