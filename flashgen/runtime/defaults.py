"""The built-in configs, for a GPU and shape without a record: they fit every GPU that Triton compiles for."""

from __future__ import annotations

from flashgen.runtime.config import Config


def default_config(dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """A config whose tiles of q, k and v fit 64 KiB of shared memory, whatever the head dims."""
    wide = max(head_dim, v_head_dim)
    if dtype == "float32":
        return Config(32, 32, 4, 1) if wide <= 64 else Config(16, 32, 4, 1) if wide <= 128 else Config(16, 16, 4, 1)
    if wide <= 64:
        return Config(64, 64, 4, 2)
    return Config(64, 64, 4, 1) if wide <= 128 else Config(64, 32, 4, 1)
