"""The Hopper forward kernel: which calls it serves, and what its launch hands it beyond what a call has."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton

from flashgen.runtime.call import Call
from flashgen.runtime.config import Config

# K and V of the heads whose tiles are taken together, in bytes: they should stay in the 50 MB of the L2 cache.
_GROUP_BYTES = 32 << 20


def hopper_blocks(call: Call, config: Config) -> dict[str, int]:
    """The constants that the kernel is compiled for."""
    return _blocks(config, call.sizes.head_dim, call.sizes.v_head_dim)


@lru_cache(maxsize=256)
def _blocks(config: Config, head_dim: int, v_head_dim: int) -> dict[str, int]:
    return {
        "BM": config.BM,
        "BN": config.BN,
        "HEAD_DIM": product_width(head_dim),
        "V_HEAD_DIM": value_width(v_head_dim),
        "STAGES": config.num_stages,
        "CONSUMERS": config.consumers,
        "PING_PONG": config.ping_pong or 0,
    }


@lru_cache(maxsize=256)
def product_width(dim: int) -> int:
    """A head dimension as products take it: a power of two, or from 65 on the sum of two, such as 96 = 64 + 32."""
    width: int = max(16, triton.next_power_of_2(dim))
    half = width // 2
    return width if width <= 64 else min(width, half + max(16, triton.next_power_of_2(dim - half)))


@lru_cache(maxsize=256)
def value_width(dim: int) -> int:
    """V's: a second product takes as long as the columns that it saves, unless these are many."""
    return max(16, triton.next_power_of_2(dim)) if dim <= 128 else product_width(dim)


def hopper_programs(call: Call, config: Config) -> int:
    """As many programs as the GPU runs at once: one for each multiprocessor, which it fills. Or one for each tile."""
    s = call.sizes
    return min(-(-s.q_len // config.BM) * s.batch * s.heads, multiprocessors(call.q.get_device()))


def head_group(call: Call) -> int:
    """How many heads are taken together: those whose K and V fit the L2 cache, in groups of like size.

    But no more than leave tiles of two lengths to run at once: those of one length want memory at the same time.
    """
    return _head_group(multiprocessors(call.q.get_device()) // 2, call.sizes.batch, *call.lengths)


@lru_cache(maxsize=256)
def _head_group(
    most: int, batch: int, heads: int, kv_heads: int, q_len: int, kv_len: int, head_dim: int, v_head_dim: int
) -> int:
    # Both dtypes have two bytes.
    at_once = max(1, _GROUP_BYTES // (2 * kv_len * (head_dim + v_head_dim))) * (heads // kv_heads)
    return even_share(batch * heads, min(at_once, max(most, heads // kv_heads)))


def even_share(heads: int, at_once: int) -> int:
    """How many heads each group has where at most `at_once` go together and groups are of like size."""
    groups = -(-heads // at_once)
    return -(-heads // groups)


@lru_cache(maxsize=64)
def multiprocessors(gpu: int) -> int:
    """Those of a GPU."""
    return torch.cuda.get_device_properties(gpu).multi_processor_count
