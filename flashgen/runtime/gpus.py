"""The kinds of GPUs that kernels are compiled and tuned for: the one table of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Multiprocessor(NamedTuple):
    """What programs share that run on one at a time.

    `warps` and `programs` are the most there may be, `lanes` the threads of a warp. `registers` are of 32 bits, for all
    threads; a warp has a multiple of `granule`. `shared` are bytes, of which each program takes `reserved` beside its
    own. NVIDIA: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". AMD: CDNA 3 and 4
    instruction set architectures; a compute unit has four SIMDs with 512 registers for each of 64 lanes.
    """

    warps: int
    programs: int
    shared: int
    registers: int = 65536
    lanes: int = 32
    granule: int = 256
    reserved: int = 1024

    def programs_at_once(self, warps: int, registers: int, shared: int) -> int:
        """Of so many warps, registers a thread, and bytes of shared memory each; 0 where one does not fit."""
        of_warp = -(-registers * self.lanes // self.granule) * self.granule
        by_registers = self.registers // (of_warp * warps)
        by_shared = self.shared // max(shared + self.reserved, 1)
        return min(self.programs, self.warps // warps, by_registers, by_shared)


class Gpu(NamedTuple):
    """What there is to know of a kind of GPU without having one.

    `name` is for people. `shared` is the shared memory that one block may have, in bytes. `kind` is the row of the
    built-in configs that suits it: "small" are the members of a generation with little shared memory. `tma`: it loads
    tiles by itself.
    """

    name: str
    shared: int
    kind: str
    multiprocessor: Multiprocessor
    tma: bool = False


_AMPERE, _SMALL = Multiprocessor(64, 32, 164 * 1024), Multiprocessor(48, 24, 100 * 1024)
_HOPPER = _AMPERE._replace(shared=228 * 1024)
_CDNA = Multiprocessor(32, 32, 64 * 1024, registers=4 * 512 * 64, lanes=64, granule=8 * 64, reserved=0)

# By capability, the target as the compiler names it.
GPUS: Mapping[str, Gpu] = {
    "sm_80": Gpu("A100, A30", 163 * 1024, "sm80", _AMPERE),
    "sm_86": Gpu("A10, A40, GeForce RTX 30", 99 * 1024, "small", _SMALL._replace(programs=16)),
    "sm_87": Gpu("Jetson Orin", 163 * 1024, "sm80", _AMPERE._replace(warps=48, programs=16)),
    "sm_89": Gpu("L4, L40, GeForce RTX 40", 99 * 1024, "small", _SMALL),
    "sm_90": Gpu("Hopper: H100, H200, GH200", 227 * 1024, "sm90", _HOPPER, tma=True),
    "sm_100": Gpu("B200, GB200", 227 * 1024, "sm100", _HOPPER, tma=True),
    "sm_103": Gpu("B300, GB300", 227 * 1024, "sm100", _HOPPER, tma=True),
    "sm_120": Gpu("GeForce RTX 50", 99 * 1024, "small", _SMALL, tma=True),
    "sm_121": Gpu("GB10", 99 * 1024, "small", _SMALL, tma=True),
    "gfx942": Gpu("Instinct MI300", 64 * 1024, "other", _CDNA),
    "gfx950": Gpu("Instinct MI350", 160 * 1024, "other", _CDNA._replace(shared=160 * 1024)),
}
# What build compiles for where there is no GPU to tune on: one target for each generation in wide use.
DEFAULT_TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")

# A GPU that is not listed is taken for the least of them.
_UNKNOWN = Gpu("an unknown GPU", min(gpu.shared for gpu in GPUS.values()), "other", _SMALL)


def gpu_of(capability: str) -> Gpu:
    """The kind of GPU of a capability; 64 KiB of shared memory are enough for one that is not known."""
    return GPUS.get(capability, _UNKNOWN)


def shared_limit(capability: str) -> int:
    """Bytes of shared memory for a block; an unknown GPU is taken for the smallest known one."""
    return gpu_of(capability).shared
