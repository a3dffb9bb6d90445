"""The decode kernels, dense and paged: few queries over many keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.decoding import (
    Partials,
    even_splits,
    merge_partials,
    programs_at_once,
    row_tile,
    shared_bytes_beside,
    worth_trying,
)
from flashgen.runtime.gpus import shared_limit
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
from flashgen.runtime.launching import relaunch
from flashgen.runtime.records import Bucket
from flashgen.runtime.variant import Variant
from flashgen.runtime.widths import tile_widths

# Tiles of keys that the mask of a variant without limits is asked for at a time.
CHUNK = 32

DECODE_DEFAULTS: Table = {
    "sm80": (Config(64, 64, 4, 4), Config(64, 64, 4, 3), Config(32, 32, 4, 3), Config(16, 32, 4, 2)),
    "sm90": (Config(64, 128, 4, 2), Config(64, 128, 4, 3), Config(64, 64, 4, 2), Config(16, 32, 4, 2)),
    "sm100": (Config(64, 64, 4, 4), Config(64, 64, 4, 3), Config(64, 64, 4, 2), Config(16, 32, 4, 2)),
    "small": (Config(64, 64, 4, 3), Config(64, 32, 4, 3), Config(32, 32, 4, 2), Config(16, 16, 4, 2)),
    "other": (Config(64, 64, 4, 2), Config(64, 32, 4, 2), Config(32, 32, 4, 1), Config(16, 16, 4, 1)),
    "float32": (Config(32, 32, 4, 2), Config(16, 32, 4, 2), Config(16, 16, 4, 2), Config(16, 16, 8, 1)),
    "float32 by TMA": (Config(32, 32, 4, 2), Config(16, 32, 4, 2), Config(16, 16, 4, 2), Config(16, 16, 8, 1)),
}

# From so many keys of all KV heads on, tiles of 256 are several for each program that a GPU runs at once.
_MANY_KEYS = 1 << 19
# Where heads are narrow, tiles are small: of twice as many keys as much is under way as of wide heads.
_for_many_keys = default_from({**DECODE_DEFAULTS, "sm90": (Config(64, 256, 4, 3), *DECODE_DEFAULTS["sm90"][1:])})


def _space(task: Task) -> Iterator[Config]:
    shapes = dict.fromkeys(shape[1:] for shape in tile_shapes(task))
    return (Config(BM, *shape) for BM in worth_trying(task.rows) for shape in shapes)


def _suited(
    config: Config, bucket: Bucket, pair_bytes: int, capability: str, dtype: str, head_dim: int, v_head_dim: int
) -> Config:
    """Tiles for many keys where there are so many; as many stages as have room."""
    itemsize, widths = getattr(torch, dtype).itemsize, tile_widths(head_dim, v_head_dim)
    sizes = (bucket.rows, widths, itemsize, itemsize, pair_bytes)
    if not pair_bytes and bucket.keys >= _MANY_KEYS:
        config = _for_many_keys("", capability, dtype, head_dim, v_head_dim)
    while pair_bytes and config.num_stages > 1 and shared_bytes_beside(config, *sizes) > shared_limit(capability):
        config = config.but(num_stages=config.num_stages - 1)
    return config


def _as_launched(config: Config, rows: int) -> Config:
    return config.but(BM=row_tile(config, rows))


def _constants(config: Config, head_dim: int, v_head_dim: int) -> Mapping[str, int | None]:
    return {**portable_constants(config, head_dim, v_head_dim), "CHUNK": CHUNK}


def launch_decode(variant: Variant, call: Call, config: Config, tensors: Mapping[str, Any]) -> None:
    """Write out, lse and residue, which are among the `tensors`: the splits of all tiles, and the merge of these."""
    s, q = call.sizes, call.q
    rows = s.q_len * (s.heads // s.kv_heads)
    BM, widths = row_tile(config, rows), tile_widths(s.head_dim, s.v_head_dim)
    tiles = s.batch * -(-rows // BM)
    keys = s.kv_len if variant.span is None else min(s.kv_len, variant.span + s.q_len)
    at_once = programs_at_once(q.get_device(), config.but(BM=BM), widths, q.itemsize, q.itemsize)
    splits = even_splits(tiles * s.kv_heads, -(-keys // config.BN), at_once)
    programs = tiles * splits * s.kv_heads
    parts = Partials.room(q, programs * BM if splits > 1 else 0, widths[1], variant.takes("decode", "shift_ptr"))
    relaunch(
        variant.kernels["decode"], (call.layout, call.own, config), {**tensors, **parts.named},
        lambda: DECODE_KERNEL.setup(call, config, programs, {"num_splits": splits}, {"BM": BM}),
    )  # fmt: skip
    if splits > 1:
        numbers = {
            **_strides(call), "batch": s.batch, "total_q": 0, "heads": s.heads, "kv_heads": s.kv_heads,
            "q_len": s.q_len, "v_head_dim": s.v_head_dim, "num_tiles": tiles // s.batch, "num_splits": splits,
        }  # fmt: skip
        merge_partials(
            variant, (call.layout, config, splits), {**tensors, **parts.named}, tiles * s.kv_heads, numbers, BM, rows,
            widths[1],
        )  # fmt: skip


def _strides(call: Call) -> dict[str, int]:
    """The strides of out and lse."""
    s = call.sizes
    head = s.q_len * s.v_head_dim
    return {
        "stride_ob": s.heads * head, "stride_oh": head, "stride_om": s.v_head_dim,
        "stride_lb": s.heads * s.q_len, "stride_lh": s.q_len, "stride_lm": 1,
    }  # fmt: skip


DECODE_KERNEL = Kernel(
    name="decode",
    family="decode",
    function="_decode",
    serves="few queries over many keys",
    domain=PORTABLE_TILES,
    default=default_from(DECODE_DEFAULTS),
    space=_space,
    shared_bytes=key_bytes,
    constants=_constants,
    options=portable_options,
    launch=launch_decode,
    mode="decode",
    as_launched=_as_launched,
    suited=_suited,
)
