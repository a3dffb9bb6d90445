"""The configs that are worth trying, before anything is compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from flashgen.runtime.config import Config
from flashgen.runtime.gpus import shared_limit
from flashgen.runtime.kernels.kernel import Kernel, Task
from flashgen.runtime.registry import kernels_of

# Float32 accumulators of one thread beyond which nothing but spilling is possible (a thread has 255 registers).
ACCUMULATORS = 256
# Without tensor cores operands are in registers too, and each multiply-add of a product is an instruction of its own:
# with 256 accumulators the compiler is busy for minutes.
EXACT_ACCUMULATORS = 96


@dataclass(frozen=True)
class Space:
    """The configs to search, in a fixed order, and how many were left out at once, by reason."""

    configs: tuple[Config, ...]
    dropped: Mapping[str, int]


def search_space(task: Task) -> Space:
    """The configs of every kernel of the family that serves the task, as far as they may run."""
    kept, dropped = list[Config](), Counter[str]()
    serving = [kernel for kernel in kernels_of(task.kernel, task.packed) if not kernel.refuses(*task.sizes)]
    for kernel, config in [(each, config) for each in serving for config in each.space(task)]:
        why = _hopeless(kernel, config, task)
        if why:
            dropped[why] += 1
        else:
            kept.append(config)
    return Space(tuple(kept), dict(dropped))


def _hopeless(kernel: Kernel, config: Config, task: Task) -> str:
    if kernel.shared_bytes(config, task) > shared_limit(task.capability):
        return "shared memory"
    most = EXACT_ACCUMULATORS if task.exact else ACCUMULATORS
    return "registers" if kernel.accumulators(config, task) > most else ""


def distance(one: Config, two: Config) -> int:
    """How many steps apart: doublings of tiles and warps, single stages, one for each other axis or backend."""
    sizes = [(one.BM, two.BM), (one.BN, two.BN), (one.num_warps, two.num_warps)]
    steps = sum(abs(a.bit_length() - b.bit_length()) for a, b in sizes) + abs(one.num_stages - two.num_stages)
    return steps + len({name for name, _ in one.further.items() ^ two.further.items()})
