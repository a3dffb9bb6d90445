"""What the decode kernels have in common: how keys are split over the GPU, and the merge of what splits found."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from flashgen.runtime.config import Config
from flashgen.runtime.device.merge import merge_splits
from flashgen.runtime.launching import Setup, relaunch
from flashgen.runtime.records import exponent
from flashgen.runtime.variant import Variant

# More queries are the forward kernel's, whose tiles they fill; so are fewer keys, which one program walks in no time.
MOST_QUERIES = 16
FEWEST_KEYS = 512
# What a processor of NVIDIA's GPUs has of registers, of which these kernels take up to so many a thread.
_REGISTERS, _OF_A_THREAD = 65536, 128
# Bytes of shared memory that the driver keeps for itself of each program's.
_RESERVED = 1024
# What the interpreter is taken for: so few that sequences of a test are split.
_INTERPRETED = 8
# Splits that the merge of a row reads at a time.
_MERGED = 16
# The tensors that it is given.
_MERGE_READS = (
    "out_ptr", "lse_ptr", "max_ptr", "residue_ptr", "acc_ptr", "m_ptr", "l_ptr", "shift_ptr", "sinks_ptr", "items_ptr",
    "count_ptr", "cu_seqlens_q_ptr",
)  # fmt: skip


def few_queries(q_len: int, kv_len: int) -> bool:
    """Whether a dense call is for the decode kernel."""
    return 1 <= q_len <= MOST_QUERIES and kv_len >= FEWEST_KEYS


def row_tile(config: Config, rows: int) -> int:
    """The rows of a tile: as many as there are of a KV head, up to a config's, and 16 at least."""
    return min(config.BM, 1 << exponent(max(16, rows)))


def worth_trying(rows: int) -> tuple[int, ...]:
    """The BM that tell tiles of so many rows apart: of those that hold them all one, of 64 rows at least.

    With the others a KV head's keys are read again for each tile; of more rows than 128 that is so with each.
    """
    least = min(128, max(16, 1 << (rows - 1).bit_length()))
    return (*(BM for BM in (32, 64, 128) if least // 4 <= BM < least), max(least, 64))


def shared_bytes(config: Config, widths: tuple[int, int], itemsize: int, of_key: int) -> int:
    """The shared memory of a decode kernel: its pipeline of K and V, and what it hands over between threads.

    `widths` are those of a tile of K and of V, `itemsize` is that of q and `of_key` that of the keys. A kernel
    compiled for compute capability 9.0 takes as much, to the byte, for tiles of 16 and 32 rows (Triton 3.6).
    """
    pipeline = max(1, config.num_stages - 1) * config.BN * sum(widths) * of_key
    handed_over = config.BM * (widths[0] + config.BN) * itemsize
    values = config.BN * widths[1] * itemsize if of_key < itemsize else 0
    return pipeline + handed_over + values


def shared_bytes_beside(
    config: Config, rows: int, widths: tuple[int, int], itemsize: int, of_key: int, pair_bytes: int
) -> int:
    """The most that `shared_bytes` comes to, for tiles of so many rows, and so many bytes read for each pair.

    They are in the pipeline too, and what threads exchange of them has a place beside it.
    """
    tile = config.but(BM=row_tile(config, rows))
    return shared_bytes(tile, widths, itemsize, of_key) + (tile.num_stages + 1) * tile.BM * tile.BN * pair_bytes


@lru_cache(maxsize=1024)
def programs_at_once(gpu: int, config: Config, widths: tuple[int, int], itemsize: int, of_key: int) -> int:
    """How many programs of a config, with its tile's own rows, a GPU runs at once; -1 is the interpreter."""
    if gpu < 0:
        return _INTERPRETED
    found = torch.cuda.get_device_properties(gpu)
    room = found.shared_memory_per_multiprocessor
    by_shared = room // (shared_bytes(config, widths, itemsize, of_key) + _RESERVED)
    by_registers = _REGISTERS // (_OF_A_THREAD * 32 * config.num_warps)
    return max(1, min(by_shared, by_registers)) * found.multi_processor_count


@lru_cache(maxsize=1024)
def even_splits(programs: int, key_tiles: int, at_once: int) -> int:
    """Into how many splits to cut `key_tiles` tiles of keys that each of so many programs would walk alone.

    The fewest for which the GPU is done soonest, when it runs `at_once` programs at a time and each takes as long as
    its tiles, and one more to begin and end with.
    """
    most = max(1, min(key_tiles, 2 * at_once // max(programs, 1)))

    def time_of(splits: int) -> int:
        return -(-programs * splits // at_once) * (-(-key_tiles // splits) + 1)

    return min(range(1, most + 1), key=time_of)


class Partials(NamedTuple):
    """What splits leave for the merge, float32: acc [items, kv_heads, BM, V_HEAD_DIM], the others without columns."""

    acc: torch.Tensor
    m: torch.Tensor
    l: torch.Tensor  # noqa: E741 - as kernels call it
    shift: torch.Tensor | None

    @classmethod
    def room(cls, like: torch.Tensor, rows: int, width: int, shifted: bool) -> Partials:
        """Room for so many rows, not yet written; `shifted`: their logits lack something."""
        sums = torch.empty((rows, width + (3 if shifted else 2)), dtype=torch.float32, device=like.device).view(-1)
        acc, *others = sums.split([rows * width, *[rows] * (3 if shifted else 2)])
        return cls(acc, others[0], others[1], others[2] if shifted else None)

    @property
    def named(self) -> dict[str, torch.Tensor | None]:
        return {"acc_ptr": self.acc, "m_ptr": self.m, "l_ptr": self.l, "shift_ptr": self.shift}


def merge_partials(
    variant: Variant, key: tuple[Hashable, ...], tensors: Mapping[str, Any], tiles: int, numbers: Mapping[str, int],
    BM: int, rows: int, V_HEAD_DIM: int,
) -> None:  # fmt: skip
    """Merge the splits of `tiles` tiles of BM rows each, a few rows a program where there are many.

    `tensors` and `numbers` go by the names of kernels' parameters, the variant's inputs among the tensors; one that is
    not there is left out. The numbers, and with them all of the launch, follow from `key`.
    """
    given = {**tensors, "sinks_ptr": tensors[f"{variant.sink}_ptr"] if variant.sink else None}
    per_program = 1 if rows <= 64 else 16
    parts = -(-min(rows, BM) // per_program)
    sizes = {
        "BM": BM, "ROWS": per_program, "PARTS": parts, "SPLITS": _MERGED, "V_HEAD_DIM": V_HEAD_DIM,
        "NATURAL": variant.natural,
    }  # fmt: skip
    relaunch(
        merge_splits, (*key, variant.natural), {name: given.get(name) for name in _MERGE_READS},
        lambda: Setup(tiles * parts, numbers, sizes, {"num_warps": 2}),
    )  # fmt: skip
