"""The kernel for Hopper that makes dK and dV, and where a config fuses it parts of dQ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch
from triton.experimental.gluon import language as gl

from flashgen.runtime.backward import Gradients, Incoming, num_rows, query_gradient
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.descriptors import Tile, Tiling
from flashgen.runtime.kernels.kernel import HelperKernel, Kernel, Task, key_tiles
from flashgen.runtime.kernels.sm90 import (
    BARRIERS,
    CONSUMER_TILES,
    HOPPER,
    multiprocessors,
    product_width,
)
from flashgen.runtime.kernels.sm90_keys import (
    hopper_key_gradients,
    key_head_group,
    key_options,
    key_tensors,
    key_tilings,
    key_types,
    refuses_keys,
    v_block_width,
)
from flashgen.runtime.launching import Setup, relaunch
from flashgen.runtime.streams import tile_counter
from flashgen.runtime.variant import Variant

# What the two consumers hold of dQ: the elements of a tile.
_DQ_ELEMENTS = 8192
# Elements of dQ that one program brings into their order.
_FRAGMENT = 4096
# The widest heads of this kernel.
_WIDEST = 128

_FRAGMENTS_LAYOUT = gl.NVMMASharedLayout(0, 32, rank=2)
_FRAGMENTS = Tile((16, 256), torch.float32, _FRAGMENTS_LAYOUT)


def _refuses(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> str:
    widest = max(head_dim, v_head_dim)
    wide = f"BN is 128; expected 64 for head dimensions up to {widest}" if widest > _WIDEST else ""
    return refuses_keys(capability, dtype, head_dim, v_head_dim) or wide


def _misfit(config: Config, head_dim: int, v_head_dim: int) -> str:
    wide = config.BM > 64 and max(head_dim, v_head_dim) > 64
    return f"BM is {config.BM}; expected 64 for head dimensions above 64" if wide else ""


def _default(form: str, capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    # The bits of dropout take a consumer's time: dQ through shared memory takes fewer of its instructions.
    fuse_dq = 2 if form == "dropout" else 1
    if max(head_dim, v_head_dim) <= 64:
        # Beside parts in shared memory, or what a schedule's masks read of each row, two tiles of dS find no room.
        # Packed sequences, whose walks are short, and what is read for each pair, which takes registers, gain nothing.
        delay_dq = 0 if form in ("scheduled", "pairs", "dropout", "packed") else 1
        return Config(128, 128, 4, 2, "hopper", fuse_dq=fuse_dq, delay_dq=delay_dq)
    # A causal mask or a window alone have short walks along the queries, where dQ of a tile waits not; beside dropout's
    # bits a delay gains as little.
    delay_dq = 0 if form in ("masked", "dropout") else 1
    return Config(64, 128, 4, 2, "hopper", fuse_dq=fuse_dq, delay_dq=delay_dq)


def _space(task: Task) -> Iterator[Config]:
    """128 keys for two consumers, as many queries as their registers and dQ's layout want, heads in groups or not."""
    if task.kv_len < 64:
        return
    BM = 128 if max(task.head_dim, task.v_head_dim) <= 64 else 64
    for all_heads, stages, fuse_dq, delay_dq in product((None, 1), (2, 3), (0, 1, 2), (0, 1)):
        if fuse_dq or not delay_dq:
            yield Config(BM, 128, 4, stages, "hopper", fuse_dq=fuse_dq, delay_dq=delay_dq, all_heads=all_heads)


def _shared_bytes(config: Config, task: Task) -> int:
    """K and V, stages of Q and dO with lse and delta, buffers of dS, parts of dQ, barriers.

    And, where a schedule says which tiles there are, what the mask reads of each row, 4 bytes in each consumer.

    And dK and dV as they leave, which is for variants whose programs take tiles in turn; others need no more: through
    dS where that is large, else one after the other if they are as wide.
    """
    width, v_width = _width(config), v_block_width(task.v_head_dim)
    columns = width + v_width
    buffers = (4 if config.delay_dq else 2) if config.fuse_dq else 0
    stages = config.num_stages * config.BM * (2 * columns + 8)
    leaving = 0 if buffers * config.BM >= 2 * width else 2 * 128 * (width if width == v_width else columns)
    parts = 32768 * (config.fuse_dq == 2)
    rows = 8 * config.BM * task.scheduled
    return 2 * 128 * columns + stages + buffers * 2 * 128 * config.BM + parts + leaving + rows + BARRIERS


def _width(config: Config) -> int:
    """Columns of a tile of q and k: as many as make a tile of dq what the consumers hold."""
    return _DQ_ELEMENTS // config.BM


def _constants(config: Config, head_dim: int, v_head_dim: int) -> dict[str, int | None]:
    widths = {"HEAD_DIM": product_width(head_dim), "V_HEAD_DIM": product_width(v_head_dim)}
    tiles = {"BM": config.BM, "BN": config.BN, "STAGES": config.num_stages}
    dq = {"FUSE_DQ": config.fuse_dq, "DELAY_DQ": config.delay_dq}
    return {**widths, **tiles, **dq, **({} if config.fuse_dq else {"dq_sums": None})}


def _types(
    dtype: torch.dtype, config: Config, head_dim: int, v_head_dim: int, grouped: bool, packed: bool
) -> dict[str, str]:  # fmt: skip
    rows, width, v_width = config.BN // 2, _width(config), v_block_width(v_head_dim)
    types = key_types(dtype, config.BM, rows, width, v_width, packed)
    return types | {"dq_sums": f"tensordesc<fp32[16, 256],{_FRAGMENTS_LAYOUT!r}>" if config.fuse_dq == 2 else "*fp32"}


def _helpers(config: Config) -> tuple[HelperKernel, ...]:
    """What brings dQ into its order."""
    return (HelperKernel("collect_dq", {"HEAD_DIM": _width(config)}),) if config.fuse_dq else ()


def _without_dq(config: Config) -> Config:
    """Tiles of 128 queries leave room for one more in the place of dS."""
    return config.but(fuse_dq=0, delay_dq=0, num_stages=3 if config.BM == 128 else config.num_stages)


def _programs(variant: Variant, call: Call, config: Config) -> int:
    """One for each tile of keys of a head of k and v, or as many as the GPU runs at once, which share these tiles."""
    tiles = key_tiles(call, config, call.sizes.kv_heads)
    in_turn = variant.takes("backward_kv_sm90", "counter_ptr")
    return min(tiles, multiprocessors(call.q.get_device())) if in_turn else tiles


def _tilings(
    call: Call, rows: Incoming, sums: torch.Tensor | None, dk: torch.Tensor, dv: torch.Tensor, config: Config
) -> dict[str, Tiling]:
    """How the kernel sees what it reads and writes by tiles; dq where no threads add to it."""
    width, v_width = _width(config), v_block_width(call.sizes.v_head_dim)
    tilings = key_tilings(call, rows, dk, dv, config.BM, config.BN // 2, width, v_width)
    return {**tilings, "dq_sums": _fragments(sums)} if sums is not None and config.fuse_dq == 2 else tilings


def _launch(
    variant: Variant, call: Call, config: Config, rows: Incoming, schedule: Mapping[str, Any],
    dq_sums: torch.Tensor | None, input_sums: Mapping[str, torch.Tensor] | None,
) -> Gradients:  # fmt: skip
    """dk and dv, and dq where there are `dq_sums`, else None; adds to `input_sums` where there are any."""
    dk, dv = hopper_key_gradients(call)
    sums: Mapping[str, Any] = input_sums or dict.fromkeys(f"{each.name}_ptr" for each in variant.sums)
    tensors = {**key_tensors(call, rows, config), "dk_desc": dk, "dv_desc": dv, "dq_sums": dq_sums}
    tensors |= {**sums, **schedule}
    if variant.takes("backward_kv_sm90", "counter_ptr"):
        tensors["counter_ptr"] = tile_counter(call)
    relaunch(
        variant.kernels["backward_kv_sm90"], (call.layout, call.own, rows.strides, config), tensors,
        lambda: BACKWARD_KV_SM90_KERNEL.setup(
            call, config, _programs(variant, call, config),
            # All heads at once are too many for the longest tiles of each to be taken together.
            {**rows.numbers, "head_group": key_head_group(call, config), "by_rank": 0 if config.all_heads else 1},
            {"LEARNED": input_sums is not None},
            _tilings(call, rows, dq_sums, dk, dv, config),
        ),
    )  # fmt: skip
    return None if dq_sums is None else _collected(variant, call, config, rows, dq_sums), dk, dv


def _collected(
    variant: Variant, call: Call, config: Config, rows: Incoming, dq_sums: torch.Tensor
) -> torch.Tensor:  # fmt: skip
    """dq from its sums, which the kernel has left by tiles."""
    dq = query_gradient(call)
    (collect,) = _helpers(config)
    numbers = {**call.numbers, **rows.numbers}
    relaunch(
        variant.kernels["collect_dq"], (call.layout, config),
        {"sums_ptr": dq_sums, "dq_ptr": dq, "cu_seqlens_q_ptr": call.given.get("cu_seqlens_q_ptr")},
        lambda: Setup(dq_sums.numel() // _FRAGMENT, numbers, collect.constants, {}),
    )  # fmt: skip
    return dq


def _query_sums(call: Call, config: Config) -> torch.Tensor | None:
    """Where the kernel adds up dq without its scale, if it does: room for float32 [rows, columns], by tiles of 64 x 64.

    The rows are those of all heads that `incoming` has; `_delta` clears them.
    """
    if not config.fuse_dq:
        return None
    batch, heads, _ = call.sizes.rows
    shape = batch * heads * num_rows(call), _width(config)
    return torch.empty(shape, dtype=torch.float32, device=call.q.device)


def _fragments(sums: torch.Tensor) -> Tiling:
    """The sums of dq by tiles of 4096 elements, wherever these belong."""
    return Tiling((sums.numel() // 256, 256), (256, 1), _FRAGMENTS)


BACKWARD_KV_SM90_KERNEL = Kernel(
    name="backward_kv_sm90",
    family="backward_kv",
    backend="hopper",
    capability=HOPPER,
    function="_backward_kv_sm90",
    serves=f"float16 and bfloat16 on {HOPPER}, head dimensions that are multiples of 8, up to {_WIDEST}",
    refuses=_refuses,
    misfit=_misfit,
    domain={
        "BM": (64, 128), "BN": (128,), **CONSUMER_TILES,
        "fuse_dq": (0, 1, 2), "delay_dq": (0, 1), "all_heads": (None, 1),
    },
    default=_default,
    space=_space,
    tried_at_once={"all_heads": 1},
    host_axes=("all_heads",),
    shared_bytes=_shared_bytes,
    constants=_constants,
    types=_types,
    options=key_options,
    launch=_launch,
    helpers=_helpers,
    without_dq=_without_dq,
    query_sums=_query_sums,
    sums_inputs=True,
    packs=True,
    barriers=("_backward_kv_sm90", "_write", "_number"),
)  # fmt: skip
