"""What the kernels for Hopper that own queries have in common, forward and for dQ: 64 rows a consumer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.kernels.kernel import SPILL_LIMIT, Values
from flashgen.runtime.kernels.sm90 import CONSUMER_TILES, consumer_options, even_share, multiprocessors

# What their configs may be.
QUERY_TILES: Mapping[str, Values] = {
    "BM": (128, 192),
    "BN": (16, 32, 64, 128, 256),
    **CONSUMER_TILES,
    "ping_pong": (0, 1),
}
# K and V of the heads whose tiles are taken together, in bytes: they should stay in the 50 MB of the L2 cache.
_GROUP_BYTES = 32 << 20


def consumers_of(config: Config) -> int:
    """The groups of four warps that compute, 64 rows each."""
    return config.BM // 64


def query_options(config: Config) -> dict[str, Any]:
    """Launch options."""
    return consumer_options(consumers_of(config))


def query_spill_limit(config: Config) -> int:
    """Three consumers have 160 registers a thread, and two do as well where these do not suffice: beyond what waits
    for a row of tiles to end."""
    return 32 if consumers_of(config) == 3 else SPILL_LIMIT


def head_group(call: Call) -> int:
    """How many heads are taken together: those whose K and V fit the L2 cache, in groups of like size.

    But no more than leave tiles of two lengths to run at once: those of one length want memory at the same time.
    """
    s = call.sizes
    shared, most = s.heads // s.kv_heads, multiprocessors(call.q.get_device()) // 2
    # Both dtypes have two bytes.
    at_once = max(1, _GROUP_BYTES // (2 * s.kv_len * (s.head_dim + s.v_head_dim))) * shared
    return even_share(s.batch * s.heads, min(at_once, max(most, shared)))
