"""The configs of a call: those that the caller names, else those that are on record, and what they say to a launch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from flashgen.runtime.bounded_cache import remember
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.kernels.backward_pairs import BACKWARD_PAIRS_KERNEL, for_bytes
from flashgen.runtime.kernels.learned import LEARNED_KERNEL, for_loads, tiles_of_consumer
from flashgen.runtime.lookup import Choice, Lookup, choices, current_device
from flashgen.runtime.paged import PagedCall
from flashgen.runtime.records import Bucket
from flashgen.runtime.registry import checked, kernel_like, kernel_of

_BACKWARD = ("backward_kv", "backward_q")


def config_text(
    config: Config | Mapping[str, Any] | str | None, family: str = "forward", packed: bool = False
) -> str | None:  # fmt: skip
    """A config as the operator takes it; ValueError where no kernel has such, while compiling only at the launch.

    `packed`: it is for packed sequences.
    """
    if config is None:
        return None
    if torch.compiler.is_compiling():
        return str(Config.of(config))
    # A mapping has no hash.
    return _checked_text(family, config if isinstance(config, str) else Config.of(config), packed)


@lru_cache(maxsize=1024)
def _checked_text(family: str, config: Config | str, packed: bool) -> str:
    return str(checked(family, Config.of(config), packed))


def backward_config_text(configs: Mapping[str, Any] | None, packed: bool = False) -> str | None:
    """Configs of the backward kernels by name, as the operator takes them: "backward_kv: BM=...; backward_q: ..."."""
    if configs is None:
        return None
    if not isinstance(configs, Mapping) or not set(configs) <= set(_BACKWARD):
        raise TypeError(f"backward_config is {configs!r}; expected a mapping of {' and '.join(_BACKWARD)} to configs")
    return "; ".join([f"{kernel}: {config_text(config, kernel, packed)}" for kernel, config in configs.items()])


@lru_cache(maxsize=1024)
def config_of(text: str | None, kernel: str) -> str | None:
    """The config of one backward kernel in what backward_config_text gave, None where it has none."""
    parts = [] if text is None else [part.partition(": ") for part in text.split("; ")]
    return next((config for name, _, config in parts if name == kernel), None)


def choose_config(text: str | None, configs: Lookup, call: Call) -> Config:
    """The config that the caller names, else the one that is on record for this GPU and these sizes."""
    s, q = call.layout.sizes, call.q
    if text is not None:
        named = choices.get((text, configs, call.layout))
        if named is None:
            named = Choice(_named(text, configs.kernel, call), "argument", "the caller names it")
            remember(choices, (text, configs, call.layout), named)
        return named.config
    if not q.is_cuda:
        return configs.default("", _dtype(call), s.head_dim, s.v_head_dim)
    choice = choices.get((configs, call.layout))
    if choice is None:
        heads, group = s.batch * s.heads, s.heads // s.kv_heads
        choice = configs(
            q.device.index, q.dtype, s.head_dim, s.v_head_dim, heads, group, s.q_len, s.kv_len, tokens=s.tokens
        )  # fmt: skip
        remember(choices, (configs, call.layout), choice)
    return choice.config


def _named(text: str, family: str, call: Call) -> Config:
    """The caller's config; ValueError where its kernel does not serve the call."""
    s = call.layout.sizes
    config = _parsed(text, family, s.packed)
    kernel = kernel_of(family, config)
    why = kernel.refuses(_capability(call), _dtype(call), s.head_dim, s.v_head_dim)
    why = why or kernel.misfit(config, s.head_dim, s.v_head_dim)
    if why:
        raise ValueError(f"config backend is {config.backend!r}; {why}")
    return config


@lru_cache(maxsize=1024)
def _parsed(text: str, family: str, packed: bool = False) -> Config:
    return checked(family, Config.parse(text), packed)


def _capability(call: Call) -> str:
    return current_device(call.q.get_device()).capability if call.q.is_cuda else "the interpreter"


def _dtype(call: Call) -> str:
    return str(call.q.dtype).removeprefix("torch.")


@lru_cache(maxsize=1024)
def options(config: Config) -> Mapping[str, Any]:
    """The options of a launch in this config."""
    return kernel_like(config).options(config)


def backward_configs(
    text: str | None, for_kv: Lookup, for_q: Lookup, call: Call, fuse_dq: bool
) -> tuple[Config, Config | None]:
    """The configs of `_backward_kv` and `_backward_q`: those that the caller names, else those on record.

    Without `fuse_dq` a config that fuses is taken with a dQ of its own. With it `_backward_q` has nothing to do: None,
    unless the caller names one.
    """
    kv = choose_config(config_of(text, "backward_kv"), for_kv, call)
    kv = kv if fuse_dq else unfused(kv)
    if kv.fuse_dq and config_of(text, "backward_q") is None:
        return kv, None
    return kv, choose_config(config_of(text, "backward_q"), for_q, call)


@lru_cache(maxsize=1024)
def unfused(config: Config) -> Config:
    """A config of `_backward_kv` that leaves dQ to `_backward_q`, else like this one where it can use that."""
    return kernel_of("backward_kv", config).without_dq(config) if config.fuse_dq else config


def inputs_config(call: Call, scheduled: bool = False, loads: int = 1) -> Config:
    """The config of `_backward_inputs`, which is not tuned. `loads` is how many values it reads for each pair."""
    s = call.sizes
    form = "scheduled" if scheduled else ""
    return for_loads(LEARNED_KERNEL.default(form, _capability(call), _dtype(call), s.head_dim, s.v_head_dim), loads)


def pairs_config(call: Call, pair_bytes: int) -> Config:
    """The config of `_backward_pairs`, which is not tuned, where so many bytes are read for each pair."""
    s = call.sizes
    chosen = BACKWARD_PAIRS_KERNEL.default("", _capability(call), _dtype(call), s.head_dim, s.v_head_dim)
    return for_bytes(chosen, pair_bytes)


def choose_paged(text: str | None, configs: Lookup, call: PagedCall, batch_invariant: bool) -> Config:
    """The config of a call over a paged cache: the caller's, the one on record, or the built-in default.

    Of a batch the longest lengths are known, and how many keys its table has room for. The default for one query a
    sequence alone is the same whatever the batch is: what is not to depend on it has that.
    """
    if text is not None:
        return _parsed(text, configs.kernel)
    s, q, cache = call.layout.sizes, call.tensors.q, call.tensors.k_cache.dtype
    dtype = str(q.dtype).removeprefix("torch.")
    of_cache = "" if cache == q.dtype else str(cache).removeprefix("torch.")
    if batch_invariant or not q.is_cuda:
        capability = current_device(q.get_device()).capability if q.is_cuda else "the interpreter"
        bucket = Bucket.of(s.heads, s.heads // s.kv_heads, 1, 1, call.layout.block_size, of_cache)
        return configs.default(capability, dtype, s.head_dim, s.v_head_dim, bucket)
    choice = choices.get((configs, call.layout))
    if choice is None:
        choice = configs(
            q.device.index, q.dtype, s.head_dim, s.v_head_dim, s.batch * s.heads, s.heads // s.kv_heads, s.q_len,
            call.layout.max_keys, call.layout.block_size, of_cache,
        )  # fmt: skip
        remember(choices, (configs, call.layout), choice)
    return choice.config


def rest_config(call: Call, by_key: Config, loads: int = 1) -> Config:
    """`inputs_config` for what a kernel for dK and dV left to be added: the very tiles of a consumer there."""
    return tiles_of_consumer(inputs_config(call, loads=loads), by_key)
