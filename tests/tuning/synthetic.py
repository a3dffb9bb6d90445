"""Tables of whole spaces from a rough model of a Hopper GPU, for where none was recorded on a real one.

The model has what makes the real landscape rugged: registers and shared memory that limit how many programs share a
multiprocessor, spills, tensor-core instructions that need enough rows a warp group, a last wave that is not full,
tiles that reach beyond the mask, and a little noise.
"""

import math
import random
from dataclasses import dataclass

from flashgen.problems.problem import Problem
from flashgen.runtime.identity import Identity
from flashgen.runtime.kernels.kernel import SPILL_LIMIT, Task
from flashgen.runtime.kernels.portable import padded
from flashgen.runtime.records import Device
from flashgen.tuning.outcome import Entry, Work
from flashgen.tuning.prune import verdict
from flashgen.tuning.space import search_space
from flashgen.tuning.table import Table
from flashgen.tuning.timing import Timing
from flashgen.tuning.workloads import workloads

DEVICE = Device("NVIDIA H200", "sm_90", "3.6")
KERNELS = ("forward", "backward_kv", "backward_q")
MULTIPROCESSORS, REGISTERS, SHARED = 132, 65536, 227 * 1024


@dataclass(frozen=True)
class Resources:
    registers: int
    spills: int
    shared: int
    serialized_wgmma: bool
    error: str | None = None


@dataclass(frozen=True)
class Kind:
    """A variant as the model sees it: what a pair costs beside the products, registers beside the tiles, the visible
    share, and the pairs that a tile of BM by BN wastes, as a share of its size over the length."""

    variant: str
    pair_cost: float = 0.55
    registers: int = 44
    density: float = 0.5
    edge: float = 1.0
    scheduled: bool = False


CAUSAL, ALIBI = Kind("causal"), Kind("alibi", 0.6, 50)
SOFTCAP = Kind("softcap", 1.1, 60)
DOCUMENT = Kind("document", 0.65, 56, 0.1, 3.0, True)
BLOCK_SPARSE = Kind("block_sparse", 0.6, 52, 0.25, 0.1, True)


def problem(head_dim, length):
    return Problem(max(1, 16384 // length), 16, 16, length, length, head_dim, head_dim, "bfloat16")


def resources(kind, size, config):
    dim, threads = padded(size.head_dim), 32 * config.num_warps
    tiles = config.BM * (config.BN + dim) + config.BM * config.BN // 2
    wanted = kind.registers + tiles // threads + 6 * config.num_stages
    limit = 255 if config.num_warps <= 8 else 128
    spills = 4 * max(0, wanted - limit)
    held = max(1, config.num_stages)
    shared = 2 * dim * (config.BM + 2 * held * config.BN)
    return Resources(min(wanted, limit), spills, shared, serialized_wgmma=(config.BM, config.BN) == (32, 256))


def median_us(kind, size, config, found, noise):
    threads = 32 * config.num_warps
    resident = min(REGISTERS // (found.registers * threads), SHARED // found.shared, 64 // config.num_warps)
    groups = max(1, config.num_warps // 4)
    rows = config.BM / groups
    tensor = 1.0 if rows >= 64 else 0.62 if rows >= 32 else 0.4
    tensor *= {16: 0.55, 32: 0.75, 64: 0.96}.get(config.BN, 1.0)
    pipeline = {1: 0.72, 2: 0.93, 3: 1.0, 4: 0.99}[config.num_stages]
    hidden = 1 - math.exp(-0.9 * resident * groups * (0.6 + 0.4 * pipeline))
    scalar = kind.pair_cost * (1 + 24 / config.BN) * 64 / size.head_dim
    waste = 1 + kind.edge * (config.BM + config.BN) / size.q_len
    pairs = size.batch * size.heads * size.q_len * size.kv_len * kind.density * waste
    product_us = 4 * pairs * size.head_dim / 800e6 / (tensor * pipeline)
    busy = product_us * (1 + scalar * (1.6 - hidden)) / hidden
    programs = size.batch * size.heads * math.ceil(size.q_len / config.BM)
    waves = programs / (MULTIPROCESSORS * resident)
    tail = (math.ceil(waves) / waves) ** (0.5 if kind.edge else 0.8)
    return busy * tail * (1 + found.spills / 150) * noise + 4


def table(kind, head_dim, length):
    """Everything in the space of one workload, measured."""
    size = problem(head_dim, length)
    identity = Identity(kind.variant, "0123456789ab", dict.fromkeys(KERNELS, "ba9876543210"), "", {})
    (workload,) = workloads([size], identity, DEVICE)
    space = search_space(
        Task("forward", DEVICE.capability, size.dtype, head_dim, head_dim, length, length, kind.scheduled)
    ).configs
    chance = random.Random(f"{kind} {size}")
    entries = []
    # The model is of the portable kernel.
    for config in (config for config in space if config.backend == "portable"):
        found, noise = resources(kind, size, config), math.exp(chance.gauss(0, 0.01))
        why = verdict(found, DEVICE.capability, SPILL_LIMIT)
        timing = None
        if why != "shared memory":
            timing = Timing(median_us(kind, size, config, found, noise), 0.004, 30)
        entries.append(Entry.of(config, found, timing, dropped=why))
    flops = 4 * size.batch * size.heads * size.q_len**2 * head_dim * kind.density
    work = Work(flops, 8 * size.batch * size.heads * size.q_len * head_dim, 690.0, 4100.0)
    return Table(workload, tuple(entries), work, {"triton": "3.6.0"}, {"sm_mhz": 1980.0}, "")


TABLES = {
    "causal-d128-s2048": (CAUSAL, 128, 2048),
    "causal-d128-s8192": (CAUSAL, 128, 8192),
    "alibi-d128-s8192": (ALIBI, 128, 8192),
    "softcap-d64-s8192": (SOFTCAP, 64, 8192),
    "document-d128-s8192": (DOCUMENT, 128, 8192),
    "block_sparse-d128-s8192": (BLOCK_SPARSE, 128, 8192),
}
