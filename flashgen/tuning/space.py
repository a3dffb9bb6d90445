"""The configs that are worth trying, before anything is compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from flashgen.runtime.config import Config
from flashgen.runtime.defaults import hopper_backward_q_refuses, hopper_backward_refuses, hopper_refuses
from flashgen.runtime.hopper import product_width
from flashgen.work import ITEMSIZE

# Shared memory that one block may have, in bytes.
SHARED_LIMIT = {
    "sm_80": 163 * 1024,
    "sm_86": 99 * 1024,
    "sm_87": 163 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "sm_103": 227 * 1024,
    "sm_120": 99 * 1024,
    "sm_121": 99 * 1024,
    "gfx942": 64 * 1024,
}
SMALLEST_SHARED_LIMIT = min(SHARED_LIMIT.values())

# Float32 accumulators of one thread beyond which nothing but spilling is possible (a thread has 255 registers).
ACCUMULATORS = 256

TILES_Q = (16, 32, 64, 128, 256)
TILES_KV = (16, 32, 64, 128, 256)
WARPS = (4, 8)
STAGES = (1, 2, 3, 4)

# Where a search begins after the configs that are known: shapes that have won on some GPU, far apart.
STARTS: Mapping[str, tuple[Config, ...]] = {
    "forward": (
        Config(64, 64, 4, 3), Config(128, 64, 8, 3), Config(64, 128, 4, 2), Config(128, 64, 4, 3),
        Config(128, 128, 8, 2), Config(192, 128, 4, 2, "hopper", ping_pong=1),
        Config(192, 64, 4, 4, "hopper", ping_pong=1),
    ),
    "backward_q": (Config(128, 64, 8, 3), Config(64, 32, 4, 3), Config(64, 64, 4, 3), Config(128, 128, 8, 2)),
    "backward_kv": (
        Config(64, 64, 4, 2, fuse_dq=0), Config(64, 64, 4, 3, fuse_dq=1), Config(64, 128, 8, 2, fuse_dq=0),
        Config(32, 64, 4, 2, fuse_dq=0), Config(64, 128, 8, 2, fuse_dq=1),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Space:
    """The configs to search, in a fixed order, and how many were left out at once, by reason."""

    configs: tuple[Config, ...]
    dropped: Mapping[str, int]


@dataclass(frozen=True)
class Task:
    """What a space is for: a kernel on a kind of GPU, for one workload. A scheduled variant has other tile sizes."""

    kernel: str
    capability: str
    dtype: str
    head_dim: int
    v_head_dim: int
    q_len: int
    kv_len: int
    scheduled: bool = False


def search_space(task: Task) -> Space:
    """The configs of every backend that has the kernel, as far as they may run."""
    limit, kept, dropped = shared_limit(task.capability), [], Counter[str]()
    for config in (each for (kernel, _), space in SPACES.items() if kernel == task.kernel for each in space(task)):
        # The bounds are those of the portable kernels; other backends offer what fits.
        bounded = config.backend == "portable"
        if bounded and shared_bytes(task.kernel, config, task.dtype, task.head_dim, task.v_head_dim) > limit:
            dropped["shared memory"] += 1
        elif bounded and accumulators(task.kernel, config, task.head_dim, task.v_head_dim) > ACCUMULATORS:
            dropped["registers"] += 1
        else:
            kept.append(config)
    return Space(tuple(kept), dict(dropped))


def _forward(task: Task) -> Iterator[Config]:
    return (Config(*values) for values in product(*_tiles(task), WARPS, STAGES))


def _hopper_forward(task: Task) -> Iterator[Config]:
    """Two or three consumers of 64 rows; a schedule wants tiles whose sides are powers of two.

    Widths and stages are those that fit the shared memory beside Q and the output, and the registers.
    """
    if hopper_refuses(task.capability, task.dtype, task.v_head_dim) or task.q_len < 64:
        return
    widest = max(padded(task.head_dim), padded(task.v_head_dim))
    for consumers, BN, stages, ping_pong in product((2, 3), (64, 128), (2, 3, 4), (0, 1)):
        if consumers == 3 and (task.scheduled or widest > 128 or widest * BN > 8192):
            continue
        if BN * widest > 16384 and not (stages == 3 and shares_places(BN, task.head_dim, task.v_head_dim)):
            continue
        config = Config(64 * consumers, BN, 4, stages, "hopper", ping_pong=ping_pong)
        if hopper_shared_bytes(config, task.head_dim, task.v_head_dim) <= shared_limit(task.capability):
            yield config


def hopper_shared_bytes(config: Config, head_dim: int, v_head_dim: int) -> int:
    """Bytes of shared memory of the Hopper forward, with room for barriers: one or two tiles of Q, the output, or half
    of it, and stages of K and V, or of both together."""
    if shares_places(config.BN, head_dim, v_head_dim):
        width = product_width(head_dim)
        return 2 * (config.BM * (width + 128) + config.num_stages * config.BN * width) + 1024
    one, other = padded(head_dim), padded(v_head_dim)
    held = (2 if one <= 128 else 1) * one + min(other, 128)
    return 2 * (config.BM * held + config.num_stages * config.BN * (one + other)) + 1024


def shares_places(BN: int, head_dim: int, v_head_dim: int) -> bool:
    """Whether V of a tile takes the place of its K in the Hopper forward: SPLIT in its text."""
    width = product_width(head_dim)
    return width == product_width(v_head_dim) < padded(head_dim) and BN * width > 16384


def _backward_q(task: Task) -> Iterator[Config]:
    return (Config(*values) for values in product(*_tiles(task), WARPS, STAGES[:3]))


def _hopper_backward_q(task: Task) -> Iterator[Config]:
    """Two or three consumers of 64 rows, as in the forward; tiles of S and dP beside dQ have to fit the registers."""
    if hopper_backward_q_refuses(task.capability, task.dtype, task.head_dim) or task.q_len < 64:
        return
    widest = max(padded(task.head_dim), padded(task.v_head_dim))
    for consumers, BN, stages, ping_pong in product((2, 3), (64, 128), (2, 3, 4), (0, 1)):
        if BN * widest > 16384 or (consumers == 3 and (task.scheduled or BN * widest > 4096)):
            continue
        config = Config(64 * consumers, BN, 4, stages, "hopper", ping_pong=ping_pong)
        if hopper_backward_q_shared_bytes(config, task.head_dim, task.v_head_dim) <= shared_limit(task.capability):
            yield config


def hopper_backward_q_shared_bytes(config: Config, head_dim: int, v_head_dim: int) -> int:
    """Bytes of shared memory: Q and dO, stages of K, one less of V, barriers."""
    one, other = padded(head_dim), padded(v_head_dim)
    streamed = config.num_stages * one + (config.num_stages - 1) * other
    return 2 * (config.BM * (one + other) + config.BN * streamed) + 1024


def _backward_kv(task: Task) -> Iterator[Config]:
    shapes = product(*_tiles(task), WARPS, STAGES[:3])
    return (Config(*values, fuse_dq=fuse) for values, fuse in product(shapes, (0, 1)))


def _hopper_backward_kv(task: Task) -> Iterator[Config]:
    """128 keys for two consumers, as many queries as their registers and dQ's layout want, heads in groups or not."""
    if hopper_backward_refuses(task.capability, task.dtype, task.head_dim, task.v_head_dim) or task.kv_len < 64:
        return
    if max(task.head_dim, task.v_head_dim) > 128:
        yield from _hopper_wide_kv(task)
        return
    BM = 128 if max(task.head_dim, task.v_head_dim) <= 64 else 64
    for all_heads, stages, fuse_dq, delay_dq in product((None, 1), (2, 3), (0, 1, 2), (0, 1)):
        config = Config(BM, 128, 4, stages, "hopper", fuse_dq=fuse_dq, delay_dq=delay_dq, all_heads=all_heads)
        shared = hopper_backward_shared_bytes(config, task.v_head_dim, task.scheduled)
        if shared <= shared_limit(task.capability) and not (delay_dq and not fuse_dq):
            yield config


def hopper_backward_shared_bytes(config: Config, v_head_dim: int, scheduled: bool) -> int:
    """Bytes of shared memory: K and V, stages of Q and dO with lse and delta, buffers of dS, parts of dQ, barriers.

    And, where a schedule says which tiles there are, what the mask reads of each row, 4 bytes in each consumer.

    And dK and dV as they leave, which is for variants whose programs take tiles in turn; others need no more: through
    dS where that is large, else one after the other if they are as wide.
    """
    width, v_width = 8192 // config.BM, max(64, padded(v_head_dim))
    columns = width + v_width
    buffers = (4 if config.delay_dq else 2) if config.fuse_dq else 0
    stages = config.num_stages * config.BM * (2 * columns + 8)
    leaving = 0 if buffers * config.BM >= 2 * width else 2 * 128 * (width if width == v_width else columns)
    parts = 32768 * (config.fuse_dq == 2)
    rows = 8 * config.BM * scheduled
    return 2 * 128 * columns + stages + buffers * 2 * 128 * config.BM + parts + leaving + rows + 1024


def _hopper_wide_kv(task: Task) -> Iterator[Config]:
    """Tiles of 64 by 64, as many stages as fit."""
    for stages in (2, 3):
        config = Config(64, 64, 4, stages, "hopper", fuse_dq=0, delay_dq=0)
        if hopper_wide_shared_bytes(config, task.head_dim, task.v_head_dim) <= shared_limit(task.capability):
            yield config


def hopper_wide_shared_bytes(config: Config, head_dim: int, v_head_dim: int) -> int:
    """The same for wide heads: K and V, stages of Q and dO with lse and delta and of P in float32, barriers."""
    columns = max(64, padded(head_dim)) + max(64, padded(v_head_dim))
    return 2 * config.BN * columns + config.num_stages * config.BM * (2 * columns + 8 + 4 * config.BN) + 1024


# What each backend of a kernel has to offer.
SPACES: Mapping[tuple[str, str], Callable[[Task], Iterator[Config]]] = {
    ("forward", "portable"): _forward,
    ("forward", "hopper"): _hopper_forward,
    ("backward_q", "portable"): _backward_q,
    ("backward_q", "hopper"): _hopper_backward_q,
    ("backward_kv", "portable"): _backward_kv,
    ("backward_kv", "hopper"): _hopper_backward_kv,
}


def _tiles(task: Task) -> tuple[list[int], list[int]]:
    """Numbers of query rows and of keys: at most one step beyond the lengths; for a schedule at least 32 by 32."""
    least = 32 if task.scheduled else 16
    tiles_q = [tile for tile in TILES_Q if least <= tile <= max(2 * task.q_len, 32)]
    tiles_kv = [tile for tile in TILES_KV if least <= tile <= max(2 * task.kv_len, 32)]
    # 16 rows waste most of a tensor core; they are for short queries and for tiles too large otherwise.
    if task.q_len > 64 and min(task.head_dim, task.v_head_dim) <= 128:
        tiles_q = [tile for tile in tiles_q if tile > 16]
        tiles_kv = [tile for tile in tiles_kv if tile > 16]
    return tiles_q, tiles_kv


def shared_limit(capability: str) -> int:
    """Bytes of shared memory for a block; an unknown GPU is taken for the smallest known one."""
    return SHARED_LIMIT.get(capability, SMALLEST_SHARED_LIMIT)


def padded(dim: int) -> int:
    """A head dimension as the kernel's tiles have it: a power of two, at least 16."""
    return max(16, 1 << (dim - 1).bit_length())


def shared_bytes(kernel: str, config: Config, dtype: str, head_dim: int, v_head_dim: int) -> int:
    """A lower bound of the shared memory that a kernel needs: what this rejects cannot run.

    A pipeline of several stages holds at least `num_stages - 1` tiles each of the two tensors that are streamed: K and
    V, in the kernel that makes dK and dV Q and dO. Without one, a single tile may be there at a time, and what stays
    may live in registers. The compiler judges the rest.
    """
    rows = config.BM if kernel == "backward_kv" else config.BN
    one, other = (rows * padded(dim) * ITEMSIZE[dtype] for dim in (head_dim, v_head_dim))
    return max(one, other) if config.num_stages == 1 else (config.num_stages - 1) * (one + other)


def accumulators(kernel: str, config: Config, head_dim: int, v_head_dim: int) -> int:
    """Float32 values that one thread holds: a tile of pairs, and the output, dQ, or dK and dV."""
    pairs = config.BM * config.BN
    held = {
        "forward": config.BM * padded(v_head_dim),
        "backward_q": config.BM * padded(head_dim),
        "backward_kv": config.BN * (padded(head_dim) + padded(v_head_dim)),
    }
    return (pairs + held[kernel]) // (32 * config.num_warps)


def distance(one: Config, two: Config) -> int:
    """How many steps apart: doublings of tiles and warps, single stages, one for each other axis or backend."""
    sizes = [(one.BM, two.BM), (one.BN, two.BN), (one.num_warps, two.num_warps)]
    steps = sum(abs(a.bit_length() - b.bit_length()) for a, b in sizes) + abs(one.num_stages - two.num_stages)
    return steps + len({name for name, _ in one.further.items() ^ two.further.items()})
