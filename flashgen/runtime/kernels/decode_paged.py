"""The paged decode kernel's record: the dense one's configs, for keys that lie in pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from flashgen.runtime.config import Config
from flashgen.runtime.decoding import shared_bytes_beside
from flashgen.runtime.gpus import shared_limit
from flashgen.runtime.kernels.decode import DECODE_DEFAULTS, DECODE_KERNEL
from flashgen.runtime.kernels.kernel import Task
from flashgen.runtime.kernels.portable import Table, default_from, key_bytes
from flashgen.runtime.records import Bucket
from flashgen.runtime.widths import tile_widths

_DEFAULTS: Table = {
    **DECODE_DEFAULTS,
    "sm90": (Config(64, 128, 4, 2), Config(64, 128, 4, 2), Config(64, 64, 4, 2), Config(16, 32, 4, 2)),
}

# What is compiled where no call says otherwise: one query a sequence, and a cache in the dtype of q.
_BLOCK_SIZE = 16
# Rows from which on the products are a warpgroup's, which reads its tiles of 16 bits from shared memory.
_ROWS_BY_WARPGROUP = 64
# Rows of a KV head that fill tiles of a forward kernel's size.
_MANY_ROWS = 128
# Keys of the widest tile.
_WIDEST_BN = 128
_NOT_GIVEN = ("cu_seqlens_q_ptr", "k_scale_ptr", "v_scale_ptr")


def _constants(config: Config, head_dim: int, v_head_dim: int) -> Mapping[str, int | None]:
    sizes = DECODE_KERNEL.constants(config, head_dim, v_head_dim)
    return {**sizes, "BLOCK_SIZE": _BLOCK_SIZE, "TOKEN_SCALES": False, "CONVERTED": False, **dict.fromkeys(_NOT_GIVEN)}


def converts_in_place(BM: int, of_key: int, device: torch.device) -> bool:
    """Whether values are to be converted before threads exchange them: of 8 bits, where each warp has its products."""
    return of_key == 1 and BM < _ROWS_BY_WARPGROUP and device.type == "cuda" and not torch.version.hip


def _suited(
    config: Config, bucket: Bucket, pair_bytes: int, capability: str, dtype: str, head_dim: int, v_head_dim: int
) -> Config:
    """As many bytes in flight where a cache has 8 bits, by wider tiles up to 128 keys, else by a further stage.

    Tiles of more rows, and warps, where there are as many, since each tile of rows reads the keys again: as long as
    they fit.
    """
    widths, chosen = tile_widths(head_dim, v_head_dim), config
    rows, cache = bucket.rows, bucket.cache
    if rows >= _MANY_ROWS and max(widths) <= 128:
        chosen = config.but(BM=_MANY_ROWS, num_warps=8, num_stages=3)
    elif cache and rows < _ROWS_BY_WARPGROUP:
        wider = {"BN": 2 * config.BN} if config.BN < _WIDEST_BN else {"num_stages": config.num_stages + 1}
        chosen = config.but(**wider)
    needed = shared_bytes_beside(chosen, rows, widths, 2, 1 if cache else 2, pair_bytes)
    return chosen if dtype != "float32" and needed <= shared_limit(capability) else config


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
    default=default_from(_DEFAULTS),
    constants=_constants,
    suited=_suited,
)
