"""The kernels that there are, one line each.

Of a family the first serves every call; of those that serve one, the last is taken where nothing else is known.
"""

from __future__ import annotations

from functools import lru_cache

from flashgen.runtime.config import Config
from flashgen.runtime.kernels.backward_kv import BACKWARD_KV_KERNEL
from flashgen.runtime.kernels.backward_kv_sm90 import BACKWARD_KV_SM90_KERNEL
from flashgen.runtime.kernels.backward_kv_wide_sm90 import BACKWARD_KV_WIDE_SM90_KERNEL
from flashgen.runtime.kernels.backward_pairs import BACKWARD_PAIRS_KERNEL
from flashgen.runtime.kernels.backward_q import BACKWARD_Q_KERNEL
from flashgen.runtime.kernels.backward_q_sm90 import BACKWARD_Q_SM90_KERNEL
from flashgen.runtime.kernels.decode import DECODE_KERNEL
from flashgen.runtime.kernels.decode_paged import DECODE_PAGED_KERNEL
from flashgen.runtime.kernels.forward import FORWARD_KERNEL
from flashgen.runtime.kernels.forward_sm90 import FORWARD_SM90_KERNEL
from flashgen.runtime.kernels.kernel import Kernel
from flashgen.runtime.kernels.learned import LEARNED_KERNEL
from flashgen.runtime.replay import forget_replays

REGISTRY: list[Kernel] = [
    FORWARD_KERNEL,
    FORWARD_SM90_KERNEL,
    BACKWARD_Q_KERNEL,
    BACKWARD_Q_SM90_KERNEL,
    BACKWARD_KV_KERNEL,
    BACKWARD_KV_SM90_KERNEL,
    BACKWARD_KV_WIDE_SM90_KERNEL,
    LEARNED_KERNEL,
    BACKWARD_PAIRS_KERNEL,
    DECODE_KERNEL,
    DECODE_PAGED_KERNEL,
]

# What is tuned, as records, configs by name and digests know it: the families of each form of call, and all of them.
MODES = {
    mode: tuple(dict.fromkeys(each.family for each in REGISTRY if each.tuned and each.mode == mode))
    for mode in dict.fromkeys(each.mode for each in REGISTRY)
}
# Packed sequences are served by some of the kernels of dense ones.
MODES["varlen"] = tuple(dict.fromkeys(each.family for each in REGISTRY if each.tuned and each.packs))
FAMILIES = MODES["dense"]
TUNED = tuple(dict.fromkeys(family for families in MODES.values() for family in families))


def mode_of(family: str, packed: bool) -> str:
    """The form of call that a tuned family of kernels serves, of packed sequences where they are."""
    return "varlen" if packed else next(mode for mode, families in MODES.items() if family in families)


def register(kernel: Kernel) -> None:
    """Add a kernel, after those that there are."""
    if any(each.name == kernel.name for each in REGISTRY):
        raise ValueError(f"kernel {kernel.name!r} is registered already; expected another name")
    REGISTRY.append(kernel)
    _forget()


def unregister(kernel: Kernel) -> None:
    """Take a kernel away again."""
    REGISTRY.remove(kernel)
    _forget()


def _forget() -> None:
    kernel_of.cache_clear()
    kernel_like.cache_clear()
    forget_replays()


def kernels_of(family: str, packed: bool = False) -> tuple[Kernel, ...]:
    """The kernels of a family, or those of it that serve packed sequences: the one that serves every call first."""
    return tuple(kernel for kernel in REGISTRY if kernel.family == family and (kernel.packs or not packed))


def backends() -> tuple[str, ...]:
    """The names by which configs tell kernels of a family apart."""
    return tuple(dict.fromkeys(kernel.backend for kernel in REGISTRY))


def serving(
    family: str, capability: str, dtype: str, head_dim: int, v_head_dim: int, packed: bool = False, form: str = ""
) -> Kernel:  # fmt: skip
    """The kernel of a family whose built-in config such calls have, of a form of variant or of packed sequences."""
    sizes = (capability, dtype, head_dim, v_head_dim)
    takers = (kernel for kernel in reversed(kernels_of(family, packed)) if form not in kernel.leaves)
    return next(kernel for kernel in takers if not kernel.refuses(*sizes))


@lru_cache(maxsize=1024)
def kernel_of(family: str, config: Config, packed: bool = False) -> Kernel:
    """The kernel whose config this is; ValueError where no kernel of the family, or for packed sequences, has such."""
    kernels = kernels_of(family, packed)
    mine = [kernel for kernel in kernels if kernel.backend == config.backend]
    if not mine:
        known = " or ".join(dict.fromkeys(kernel.backend for kernel in kernels))
        wanted = f"{family} of packed sequences" if packed else family
        raise ValueError(f"config backend is {config.backend!r}; expected {known}, as {wanted} has it")
    complaints = {kernel: kernel.complaints(config) for kernel in mine}
    nearest = min(mine, key=lambda kernel: len(complaints[kernel]))
    if complaints[nearest]:
        raise ValueError(complaints[nearest][0])
    return nearest


def checked(family: str, config: Config, packed: bool = False) -> Config:
    """The config, if it is one of a kernel of this family, of packed sequences if asked; ValueError otherwise."""
    return kernel_of(family, config, packed).ordered(config)


@lru_cache(maxsize=1024)
def kernel_like(config: Config) -> Kernel:
    """A kernel whose config this is. Where two kernels have such configs their launch options are the same."""
    found = (each for each in REGISTRY if each.backend == config.backend and not each.complaints(config))
    kernel = next(found, None)
    if kernel is None:
        raise ValueError(f"config is {config}; expected one of a kernel")
    return kernel
