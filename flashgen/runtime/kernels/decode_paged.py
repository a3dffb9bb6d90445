"""The paged decode kernel's record: the dense one's configs, for keys that lie in pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flashgen.runtime.config import Config
from flashgen.runtime.kernels.decode import DECODE_KERNEL
from flashgen.runtime.kernels.kernel import Task
from flashgen.runtime.kernels.portable import key_bytes

# What is compiled where no call says otherwise: one query a sequence, and a cache in the dtype of q.
_BLOCK_SIZE = 16
_NOT_GIVEN = ("cu_seqlens_q_ptr", "k_scale_ptr", "v_scale_ptr")


def _constants(config: Config, head_dim: int, v_head_dim: int) -> Mapping[str, int | None]:
    sizes = DECODE_KERNEL.constants(config, head_dim, v_head_dim)
    return {**sizes, "BLOCK_SIZE": _BLOCK_SIZE, "TOKEN_SCALES": False, "NVIDIA": False, **dict.fromkeys(_NOT_GIVEN)}


def _least_bytes(config: Config, task: Task) -> int:
    """A cache may have 8 bits where q has 16."""
    return key_bytes(config, task) // 2


DECODE_PAGED_KERNEL = replace(
    DECODE_KERNEL,
    name="decode_paged",
    family="decode_paged",
    function="_decode_paged",
    serves="new queries over keys in a paged cache",
    mode="paged",
    shared_bytes=_least_bytes,
    constants=_constants,
)
