"""The built-in configs, for a GPU and shape without a record.

Chosen by compiling the gallery for each of them: they fit its shared memory and, for 16-bit dtypes, spill hardly any
registers. Full-precision products of float32 take many; there these configs spill the least.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import replace

from flashgen.runtime.config import Config

# The largest head dimension of each column below.
_UP_TO = (64, 128, 256)
_Row = tuple[Config, Config, Config]

# A kernel's built-in default by capability, dtype, head_dim and v_head_dim.
Default = Callable[[str, str, int, int], Config]

# GPUs by what suits them. "small": the members of a generation with little shared memory; "other": also for a GPU that
# is not listed, 64 KiB of shared memory are enough.
_KIND = {
    **dict.fromkeys(("sm_80", "sm_87"), "ampere"),
    "sm_90": "hopper",
    **dict.fromkeys(("sm_100", "sm_103"), "blackwell"),
    **dict.fromkeys(("sm_86", "sm_89", "sm_120", "sm_121"), "small"),
}
_TMA = ("sm_90", "sm_100", "sm_103", "sm_120", "sm_121")

_FORWARD: Mapping[str, _Row] = {
    "ampere": (Config(64, 64, 4, 3), Config(32, 64, 4, 2), Config(32, 64, 8, 2)),
    "hopper": (Config(64, 64, 4, 3), Config(64, 64, 4, 3), Config(64, 32, 4, 2)),
    "blackwell": (Config(64, 64, 4, 3), Config(64, 64, 4, 3), Config(64, 32, 4, 2)),
    "small": (Config(64, 32, 4, 2), Config(32, 64, 4, 2), Config(32, 64, 8, 2)),
    "other": (Config(64, 64, 4, 2), Config(64, 64, 4, 1), Config(64, 32, 4, 1)),
    "float32": (Config(32, 32, 8, 1), Config(16, 32, 4, 1), Config(16, 32, 4, 1)),
    "float32 by TMA": (Config(32, 32, 8, 1), Config(16, 32, 8, 1), Config(16, 16, 8, 1)),
}
# At head_dim 128 the fastest on Hopper spills half a kilobyte a thread, outside its loop.
_BACKWARD_KV: Mapping[str, _Row] = {
    "ampere": (Config(32, 64, 4, 2), Config(64, 64, 8, 2), Config(32, 64, 8, 1)),
    "hopper": (Config(64, 64, 4, 3, fuse_dq=1), Config(64, 64, 4, 1), Config(32, 32, 8, 2)),
    "blackwell": (Config(64, 64, 4, 3, fuse_dq=1), Config(64, 64, 4, 1), Config(32, 32, 8, 2)),
    "small": (Config(32, 64, 4, 2), Config(32, 64, 8, 2), Config(32, 32, 8, 1)),
    "other": (Config(32, 64, 4, 1), Config(32, 64, 8, 1), Config(16, 32, 8, 1)),
    "float32": (Config(32, 32, 8, 1), Config(16, 32, 8, 1), Config(16, 16, 8, 1)),
    "float32 by TMA": (Config(16, 32, 8, 1), Config(16, 16, 8, 1), Config(16, 16, 16, 1)),
}
_BACKWARD_Q: Mapping[str, _Row] = {
    "ampere": (Config(64, 64, 4, 2), Config(32, 64, 8, 2), Config(32, 32, 8, 1)),
    "hopper": (Config(128, 64, 8, 3), Config(128, 64, 8, 3), Config(64, 32, 8, 2)),
    "blackwell": (Config(128, 64, 8, 2), Config(64, 64, 8, 1), Config(64, 32, 8, 2)),
    "small": (Config(64, 32, 4, 2), Config(32, 32, 4, 1), Config(16, 32, 4, 1)),
    "other": (Config(64, 32, 4, 1), Config(64, 32, 8, 2), Config(32, 16, 4, 1)),
    "float32": (Config(32, 32, 8, 1), Config(32, 16, 8, 1), Config(16, 16, 8, 1)),
    "float32 by TMA": (Config(16, 16, 8, 1), Config(16, 16, 8, 1), Config(16, 16, 8, 1)),
}
# The kernel for learned inputs has the loads of that for dQ and one product less.
_BACKWARD_INPUTS: Mapping[str, _Row] = {
    **_BACKWARD_Q,
    "hopper": (Config(128, 64, 8, 2), Config(128, 64, 8, 2), Config(64, 32, 8, 2)),
    "blackwell": (Config(128, 64, 8, 2), Config(128, 64, 8, 2), Config(64, 32, 8, 2)),
}


# For calls that the Hopper kernel serves.
_HOPPER: _Row = (
    Config(128, 128, 4, 3, "hopper", ping_pong=1),
    Config(128, 128, 4, 2, "hopper", ping_pong=1),
    Config(128, 64, 4, 2, "hopper", ping_pong=1),
)
# Three consumers suit long rows of full tiles: they share the registers of two, and a narrow mask wastes their rows.
# Scores of their own want more registers.
_HOPPER_PLAIN: _Row = (Config(192, 128, 4, 2, "hopper", ping_pong=1), *_HOPPER[1:])
# Up to 192 there is room for three tiles of 128 keys where V takes the place of its K. The many mixed tiles of
# schedules lack registers there.
_HOPPER_SHARED = Config(128, 128, 4, 3, "hopper", ping_pong=1)
# A mask of what is loaded for each key takes registers, and its mixed tiles are many.
_HOPPER_BY_KEY: _Row = (_HOPPER[0], Config(128, 64, 4, 4, "hopper", ping_pong=1), _HOPPER[2])


_HOPPER_BACKWARD_KV = (
    Config(128, 128, 4, 2, "hopper", fuse_dq=1, delay_dq=0),
    Config(64, 128, 4, 2, "hopper", fuse_dq=1, delay_dq=1),
    Config(64, 64, 4, 2, "hopper", fuse_dq=0, delay_dq=0),
)


_HOPPER_BACKWARD_Q: _Row = (
    Config(128, 128, 4, 3, "hopper", ping_pong=0),
    Config(128, 128, 4, 3, "hopper", ping_pong=0),
    Config(128, 64, 4, 2, "hopper", ping_pong=0),
)


# The same as hopper_refuses and hopper_backward_refuses say it, for people.
HOPPER_SERVES = (
    "float16 and bfloat16 on sm_90, forward with v_head_dim a multiple of 8, dK and dV with head dimensions that are "
    "multiples of 8, dQ with head_dim a multiple of 8; other calls go to the portable kernels"
)


def hopper_refuses(capability: str, dtype: str, v_head_dim: int) -> str:
    """Why the Hopper forward kernel does not serve such calls; empty where it does. The portable one serves all."""
    if capability != "sm_90" or dtype == "float32":
        return _never_on(capability)
    # What it writes by TMA.
    return f"rows of out must be a multiple of 16 bytes, v_head_dim is {v_head_dim}" if v_head_dim % 8 else ""


def hopper_backward_refuses(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> str:
    """The same for the Hopper kernel that makes dK and dV."""
    if capability != "sm_90" or dtype == "float32":
        return _never_on(capability)
    if not head_dim % 8 and not v_head_dim % 8:
        return ""
    # What it writes by TMA.
    return f"rows of dk and dv must be multiples of 16 bytes, head_dim is {head_dim}, v_head_dim {v_head_dim}"


def hopper_backward_misfit(config: Config, head_dim: int, v_head_dim: int) -> str:
    """What tiles of a config for that kernel are wrong for these head dimensions; empty where none are."""
    widest = max(head_dim, v_head_dim)
    if config.wide != (widest > 128):
        return f"BN is {config.BN}; expected {64 if widest > 128 else 128} for head dimensions up to {widest}"
    return f"BM is {config.BM}; expected 64 for head dimensions above 64" if widest > 64 and config.BM > 64 else ""


def hopper_backward_q_refuses(capability: str, dtype: str, head_dim: int) -> str:
    """The same for the Hopper kernel that makes dQ alone."""
    if capability != "sm_90" or dtype == "float32":
        return _never_on(capability)
    # What it writes by TMA.
    return f"rows of dq must be a multiple of 16 bytes, head_dim is {head_dim}" if head_dim % 8 else ""


def _never_on(capability: str) -> str:
    if capability != "sm_90":
        return f"it runs on sm_90, this is {capability or 'an unknown GPU'}"
    return "it takes float16 and bfloat16, this is float32"


def default_config(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """The forward's config for a GPU of this capability, "sm_90" or "gfx942"; "" stands for one that is not known."""
    if not hopper_refuses(capability, dtype, v_head_dim):
        return _hopper(_HOPPER, head_dim, v_head_dim)
    return portable_default("forward", False, capability, dtype, head_dim, v_head_dim)


def default_plain_config(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """The same for scores that are the scaled dot products, all visible or up to a key that rises with the query."""
    if not hopper_refuses(capability, dtype, v_head_dim):
        return _hopper(_HOPPER_PLAIN, head_dim, v_head_dim)
    return default_config(capability, dtype, head_dim, v_head_dim)


def _hopper(row: _Row, head_dim: int, v_head_dim: int) -> Config:
    """A config of the Hopper forward for a variant without a schedule."""
    if 128 < head_dim == v_head_dim <= 192:
        return _HOPPER_SHARED
    return row[bisect_left(_UP_TO, max(head_dim, v_head_dim))]


def default_scheduled_config(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """The same for a variant with a schedule."""
    if not hopper_refuses(capability, dtype, v_head_dim):
        return _HOPPER[bisect_left(_UP_TO, max(head_dim, v_head_dim))]
    return _scheduled(default_config(capability, dtype, head_dim, v_head_dim))


def default_by_key_config(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """The same for a variant with a schedule whose mask reads inputs of each key."""
    if not hopper_refuses(capability, dtype, v_head_dim):
        return _HOPPER_BY_KEY[bisect_left(_UP_TO, max(head_dim, v_head_dim))]
    return default_scheduled_config(capability, dtype, head_dim, v_head_dim)


def default_backward_kv_config(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """The config of the kernel that makes dK and dV; dQ is left to the other one unless the table says otherwise."""
    if not hopper_backward_refuses(capability, dtype, head_dim, v_head_dim):
        return _HOPPER_BACKWARD_KV[bisect_left(_UP_TO, max(head_dim, v_head_dim))]
    return portable_default("backward_kv", False, capability, dtype, head_dim, v_head_dim)


def default_masked_backward_kv_config(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """The same for a causal mask or a window alone: short walks along the queries, where dQ of a tile waits not."""
    config = default_backward_kv_config(capability, dtype, head_dim, v_head_dim)
    return replace(config, delay_dq=0) if config.delay_dq else config


def default_scheduled_backward_kv_config(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """The same for a variant with a schedule."""
    return _scheduled(default_backward_kv_config(capability, dtype, head_dim, v_head_dim))


def default_backward_q_config(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """The config of the kernel that makes dQ."""
    if not hopper_backward_q_refuses(capability, dtype, head_dim):
        return _HOPPER_BACKWARD_Q[bisect_left(_UP_TO, max(head_dim, v_head_dim))]
    return portable_default("backward_q", False, capability, dtype, head_dim, v_head_dim)


def default_scheduled_backward_q_config(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """The same for a variant with a schedule."""
    return _scheduled(default_backward_q_config(capability, dtype, head_dim, v_head_dim))


def default_backward_inputs_config(
    capability: str, dtype: str, head_dim: int, v_head_dim: int, scheduled: bool
) -> Config:  # fmt: skip
    """The config of the kernel that makes the gradients of learned inputs; it has no record."""
    config = _chosen(_BACKWARD_INPUTS, capability, dtype, head_dim, v_head_dim)
    return _scheduled(config) if scheduled else config


def built_in(kernel: str, scheduled: bool) -> Default:
    """The defaults of a kernel by its name."""
    return {
        ("forward", False): default_config,
        ("forward", True): default_scheduled_config,
        ("backward_kv", False): default_backward_kv_config,
        ("backward_kv", True): default_scheduled_backward_kv_config,
        ("backward_q", False): default_backward_q_config,
        ("backward_q", True): default_scheduled_backward_q_config,
    }[kernel, scheduled]


def portable_default(
    kernel: str, scheduled: bool, capability: str, dtype: str, head_dim: int, v_head_dim: int
) -> Config:  # fmt: skip
    """The default of a kernel's portable backend, also where another backend is the default."""
    table = {"forward": _FORWARD, "backward_kv": _BACKWARD_KV, "backward_q": _BACKWARD_Q}[kernel]
    config = _chosen(table, capability, dtype, head_dim, v_head_dim)
    if kernel == "backward_kv" and not config.fuse_dq:
        config = replace(config, fuse_dq=0)
    return _scheduled(config) if scheduled else config


def _chosen(table: Mapping[str, _Row], capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    kind = _KIND.get(capability, "other")
    if dtype == "float32":
        kind = "float32 by TMA" if capability in _TMA else "float32"
    return table[kind][bisect_left(_UP_TO, max(head_dim, v_head_dim))]


def _scheduled(config: Config) -> Config:
    """Tiles of at least 512 pairs, each with an index of 4 bytes in the schedule.

    It then takes under 0.2 % of one score matrix in float32, the dtype with the smallest tiles. What sorts tiles wants
    their sides to be powers of two.
    """
    return config if config.BM * config.BN >= 512 else replace(config, BN=512 // config.BM)
