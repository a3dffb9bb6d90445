"""The kinds of GPUs that kernels are compiled and tuned for: the one table of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Gpu(NamedTuple):
    """What there is to know of a kind of GPU without having one.

    `name` is for people. `shared` is the shared memory that one block may have, in bytes. `kind` is the row of the
    built-in configs that suits it: "small" are the members of a generation with little shared memory. `tma`: it loads
    tiles by itself.
    """

    name: str
    shared: int
    kind: str
    tma: bool = False


# By capability, the target as the compiler names it.
GPUS: Mapping[str, Gpu] = {
    "sm_80": Gpu("A100, A30", 163 * 1024, "sm80"),
    "sm_86": Gpu("A10, A40, GeForce RTX 30", 99 * 1024, "small"),
    "sm_87": Gpu("Jetson Orin", 163 * 1024, "sm80"),
    "sm_89": Gpu("L4, L40, GeForce RTX 40", 99 * 1024, "small"),
    "sm_90": Gpu("Hopper: H100, H200, GH200", 227 * 1024, "sm90", tma=True),
    "sm_100": Gpu("B200, GB200", 227 * 1024, "sm100", tma=True),
    "sm_103": Gpu("B300, GB300", 227 * 1024, "sm100", tma=True),
    "sm_120": Gpu("GeForce RTX 50", 99 * 1024, "small", tma=True),
    "sm_121": Gpu("GB10", 99 * 1024, "small", tma=True),
    "gfx942": Gpu("Instinct MI300", 64 * 1024, "other"),
}
# What build compiles for where there is no GPU to tune on: one target for each generation in wide use.
DEFAULT_TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")

# A GPU that is not listed is taken for the least of them.
_UNKNOWN = Gpu("an unknown GPU", min(gpu.shared for gpu in GPUS.values()), "other")


def gpu_of(capability: str) -> Gpu:
    """The kind of GPU of a capability; 64 KiB of shared memory are enough for one that is not known."""
    return GPUS.get(capability, _UNKNOWN)


def shared_limit(capability: str) -> int:
    """Bytes of shared memory for a block; an unknown GPU is taken for the smallest known one."""
    return gpu_of(capability).shared
