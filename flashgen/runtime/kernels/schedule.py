"""The kernel that classifies tiles for a mask that is no interval of keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.kernels.kernel import HelperKernel, Kernel
from flashgen.runtime.launching import Setup, relaunch
from flashgen.runtime.meanwhile import compiled_meanwhile, compiles_freely
from flashgen.runtime.schedule import by_key, compact, state_shape
from flashgen.runtime.variant import Variant

# Tiles that one program classifies: long chunks share work, short ones keep the GPU busy.
_CHUNKS = (8, 32)
_MANY = 1 << 17


def schedules(config: Config) -> tuple[HelperKernel, ...]:
    """What makes schedules for tiles of a config."""
    warps = max(1, config.BM * config.BN // 2048)
    return tuple(
        HelperKernel("_classify", {"BM": config.BM, "BN": config.BN, "CHUNK": chunk}, {"num_warps": warps})
        for chunk in _CHUNKS
    )


def make_schedule(
    variant: Variant, call: Call, config: Config, turned: bool = False, walker: Kernel | None = None,
    tensors: Mapping[str, Any] = {},
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Which tiles of keys each tile of queries needs, or where `turned` the other way round: as Plan has them.

    `walker` is the kernel of the forward pass that will walk the schedule, with these `tensors` beside it, if there is.
    """
    shape = state_shape(call, config, variant.by_batch, variant.by_head)
    batch, heads, q_tiles, kv_tiles = shape
    states = torch.empty(shape, dtype=torch.int8, device=call.q.device)
    classifier = schedules(config)[states.numel() > _MANY]
    relaunch(
        variant.kernels["schedule"], (call.layout, call.own, config), {"states_ptr": states, **call.given},
        lambda: Setup(
            -(-kv_tiles // classifier.constants["CHUNK"]) * q_tiles * batch * heads,
            {**call.numbers, "num_k_tiles": kv_tiles, "schedule_heads": heads},
            classifier.constants, classifier.options,
            first=None if walker is None else partial(_compile_at_once, variant, call, config, walker, tensors),
        ),
    )  # fmt: skip
    return compact(by_key(states, call.sizes.q_len % config.BM != 0) if turned else states)


def _compile_at_once(
    variant: Variant, call: Call, config: Config, walker: Kernel, tensors: Mapping[str, Any]
) -> None:  # fmt: skip
    """Have all kernels that make the schedule compiled, and the one that walks it at the same time: that takes longest.

    They are compiled where they are launched, so a schedule is made for that.
    """
    if not compiles_freely(call.q.get_device()):
        return
    # To the compiler one schedule is as good as another.
    nowhere = torch.empty(4, dtype=torch.int32, device=call.q.device)
    walked = {**tensors, "counts_ptr": nowhere, "tiles_ptr": nowhere}
    with compiled_meanwhile(call.q.get_device(), lambda by: walker.launch(variant, call, config, walked, by)):
        make_schedule(variant, call, config)
