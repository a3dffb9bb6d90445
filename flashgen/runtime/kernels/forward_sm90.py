"""The forward kernel for Hopper: a warp that loads, and two or three groups of four that compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.kernels.kernel import Kernel, Task, query_tiles
from flashgen.runtime.kernels.portable import Row, column
from flashgen.runtime.kernels.sm90 import BARRIERS, HOPPER, multiprocessors, never_on, product_width
from flashgen.runtime.kernels.sm90_queries import (
    QUERY_TILES,
    consumers_of,
    head_group,
    query_options,
    query_spill_limit,
)
from flashgen.runtime.launching import Setup, relaunch
from flashgen.runtime.meanwhile import Relaunch
from flashgen.runtime.streams import tile_counter
from flashgen.runtime.variant import Variant
from flashgen.runtime.widths import padded

_DEFAULTS: Row = (
    Config(128, 128, 4, 3, "hopper", ping_pong=1),
    Config(128, 128, 4, 2, "hopper", ping_pong=1),
    Config(128, 64, 4, 2, "hopper", ping_pong=1),
)
_NARROW = Config(128, 64, 4, 4, "hopper", ping_pong=1)
_BY_FORM: dict[str, Row] = {
    # Three consumers suit long rows of full tiles: they share the registers of two, and a narrow mask wastes their
    # rows. Scores of their own want more registers.
    "plain": (Config(192, 128, 4, 2, "hopper", ping_pong=1), *_DEFAULTS[1:]),
    # A mask of what is loaded for each key takes registers, and its mixed tiles are many.
    "by key": (_DEFAULTS[0], _NARROW, _DEFAULTS[2]),
    # Consumers that take turns wait for what comes from memory in each other's turn, too.
    "pairs": (_DEFAULTS[0].but(ping_pong=0), _DEFAULTS[1].but(ping_pong=0), _DEFAULTS[2]),
    # Beside a mask, addresses and quotients of each pair leave wide tiles too few registers.
    "lookups": (_NARROW, _NARROW, _DEFAULTS[2]),
}
# Sines and logarithms of each pair leave a consumer of 64 rows no registers: small programs that take turns are faster.
_LEAVES = frozenset({"functions"})
# What there is of keys in pages alone.
_PAGES = ("block_table_ptr", "stride_table", "items_ptr", "count_ptr", "num_blocks", "step_page", "step_slot")
NO_PAGES: Mapping[str, None] = dict.fromkeys(_PAGES)
# Where V takes the place of its K there is room for three tiles of 128 keys. The many mixed tiles of schedules lack
# registers there.
_SHARED = Config(128, 128, 4, 3, "hopper", ping_pong=1)


def _refuses(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> str:
    # What it writes by TMA.
    odd = f"rows of out must be a multiple of 16 bytes, v_head_dim is {v_head_dim}" if v_head_dim % 8 else ""
    return never_on(capability, dtype, head_dim, v_head_dim) or odd


def _default(form: str, capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    walks_schedule = form in ("scheduled", "by key")
    if not walks_schedule and head_dim == v_head_dim and shares_places(_SHARED.BN, head_dim, v_head_dim):
        return _SHARED
    return _BY_FORM.get(form, _DEFAULTS)[column(head_dim, v_head_dim)]


def _space(task: Task) -> Iterator[Config]:
    """Two or three consumers of 64 rows; a schedule wants tiles whose sides are powers of two.

    Widths and stages are those that fit the registers.
    """
    if task.q_len < 64:
        return
    widest = max(padded(task.head_dim), padded(task.v_head_dim))
    for consumers, BN, stages, ping_pong in product((2, 3), (64, 128), (2, 3, 4), (0, 1)):
        if consumers == 3 and (task.scheduled or widest > 128 or widest * BN > 8192):
            continue
        if BN * widest > 16384 and not (stages == 3 and shares_places(BN, task.head_dim, task.v_head_dim)):
            continue
        yield Config(64 * consumers, BN, 4, stages, "hopper", ping_pong=ping_pong)


def _shared_bytes(config: Config, task: Task) -> int:
    """With room for barriers: one or two tiles of Q, the output, or half of it, and stages of K and V, or of both
    together."""
    if shares_places(config.BN, task.head_dim, task.v_head_dim):
        width = product_width(task.head_dim)
        return 2 * (config.BM * (width + 128) + config.num_stages * config.BN * width) + BARRIERS
    one, other = padded(task.head_dim), padded(task.v_head_dim)
    held = (2 if one <= 128 else 1) * one + min(other, 128)
    return 2 * (config.BM * held + config.num_stages * config.BN * (one + other)) + BARRIERS


def shares_places(BN: int, head_dim: int, v_head_dim: int) -> bool:
    """Whether wide tiles lie in two parts, each a power of two, and V of a tile takes the place of its K."""
    width = product_width(head_dim)
    return width == value_width(v_head_dim) < padded(head_dim) and BN * width > 16384


def value_width(dim: int) -> int:
    """V's columns: a second product takes as long as the columns that it saves, unless these are many."""
    return padded(dim) if dim <= 128 else product_width(dim)


def _constants(config: Config, head_dim: int, v_head_dim: int) -> dict[str, int | None]:
    return {
        "BM": config.BM,
        "BN": config.BN,
        "HEAD_DIM": product_width(head_dim),
        "V_HEAD_DIM": value_width(v_head_dim),
        "STAGES": config.num_stages,
        "CONSUMERS": consumers_of(config),
        "PING_PONG": config.ping_pong,
        "SPLIT": shares_places(config.BN, head_dim, v_head_dim),
        "BLOCK_SIZE": 0,
        **NO_PAGES,
    }


def _programs(call: Call, config: Config) -> int:
    """As many programs as the GPU runs at once: one for each multiprocessor, which it fills. Or one for each tile."""
    tiles = query_tiles(call, config)
    return tiles if config.persistent == 0 else min(tiles, multiprocessors(call.q.get_device()))


def _launch(
    variant: Variant, call: Call, config: Config, tensors: Mapping[str, Any], by: Relaunch = relaunch
) -> None:  # fmt: skip
    """As `launch_forward`."""
    if variant.takes("forward_sm90", "counter_ptr"):
        tensors = {**tensors, "counter_ptr": tile_counter(call)}
    by(
        variant.kernels["forward_sm90"], (call.layout, call.own, config),
        tensors,
        lambda: FORWARD_SM90_KERNEL.setup(
            call, config, _programs(call, config), {"head_group": _heads_together(call, config), **NO_PAGES}
        ),
    )  # fmt: skip


def launch_over_pages(
    variant: Variant, call: Call, config: Config, tensors: Mapping[str, Any], tiles: int,
    numbers: Callable[[], Mapping[str, Any]],
) -> None:  # fmt: skip
    """Launch it for at most so many `tiles` of queries of a head over keys in pages: `call` has caches as k and v.

    `numbers` are what a call over pages has beside that one, and follow from the same layout.
    """
    if variant.takes("forward_sm90", "counter_ptr"):
        tensors = {**tensors, "counter_ptr": tile_counter(call)}
    # There are more of these than in a launch for dense or packed sequences: launches are told apart by their number.
    tensors = {"q_ptr": call.q, "k_ptr": call.k, "v_ptr": call.v, **tensors}
    programs = min(tiles * call.sizes.heads, multiprocessors(call.q.get_device()))

    def setup() -> Setup:
        over_pages = dict(numbers())
        block_size = {"BLOCK_SIZE": over_pages.pop("BLOCK_SIZE")}
        return FORWARD_SM90_KERNEL.setup(call, config, programs, {"head_group": 1, **over_pages}, block_size)

    relaunch(variant.kernels["forward_sm90"], (call.layout, call.own, config), tensors, setup)


def _heads_together(call: Call, config: Config) -> int:
    return call.sizes.batch * call.sizes.heads if config.all_heads else head_group(call)


FORWARD_SM90_KERNEL = Kernel(
    name="forward_sm90",
    family="forward",
    backend="hopper",
    capability=HOPPER,
    function="_forward_sm90",
    serves=f"float16 and bfloat16 on {HOPPER}, v_head_dim a multiple of 8",
    refuses=_refuses,
    domain={**QUERY_TILES, "persistent": (None, 0), "all_heads": (None, 1)},
    default=_default,
    leaves=_LEAVES,
    space=_space,
    # Three consumers of 128 keys are the default where registers suffice.
    starts=(_DEFAULTS[0], Config(192, 64, 4, 4, "hopper", ping_pong=1)),
    shared_bytes=_shared_bytes,
    spill_limit=query_spill_limit,
    constants=_constants,
    options=query_options,
    launch=_launch,
    packs=True,
    host_axes=("persistent", "all_heads"),
    barriers=("_forward_sm90", "_write", "_number"),
)
