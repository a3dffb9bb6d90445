"""Decoding, dense and from a paged cache, in GB/s of keys and values read, beside cuDNN and a copy on the device.

    python -m flashgen.bench.serving [--variants full,alibi,softcap] [--only NAME] [--rounds N] [--out DIR]

Each candidate is a CUDA graph, replayed in shuffled rounds of one process; medians. Needs a GPU and rendered variants.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from flashgen.bench.run import on_a_gpu
from flashgen.bench.timing import interleave
from flashgen.codegen import load_module
from flashgen.runtime.config import Config
from flashgen.tuning.timing import Timing

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
REPLAYS = 20
COPY, CUDNN = "device copy", "cuDNN"

Run = Callable[[], object]


@dataclass(frozen=True)
class Workload:
    """Sequences of these lengths with `q_len` new queries each; keys in pages of `block_size`, 0 for dense tensors.

    `variant`: the one that it is for, the chosen ones else.
    """

    name: str
    lengths: tuple[int, ...]
    q_len: int = 1
    heads: int = HEADS
    head_dim: int = HEAD_DIM
    block_size: int = 0
    cache: torch.dtype = torch.bfloat16
    variant: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return 2 * sum(self.lengths) * KV_HEADS * self.head_dim * self.cache.itemsize


def ragged(count: int, least: int, most: int) -> tuple[int, ...]:
    """Lengths drawn log-uniformly, the same every time."""
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(3))
    return tuple((least * (most / least) ** drawn).int().tolist())


def workloads() -> Iterator[Workload]:
    shapes = {"1 x 131072": (131072,), "16 x 8192": (8192,) * 16, "64 x 4096": (4096,) * 64}
    for name, lengths in shapes.items():
        yield Workload(name, lengths)
        yield Workload(f"{name}, pages", lengths, block_size=16)
        yield Workload(f"{name}, pages, float8", lengths, block_size=16, cache=torch.float8_e4m3fn)
    yield Workload("64 heads, D64, 16 x 8192", shapes["16 x 8192"], heads=64, head_dim=64)
    yield Workload("64 ragged, pages", ragged(64, 256, 32768), block_size=16)
    yield Workload("8 queries, 16 x 8192", shapes["16 x 8192"], q_len=8)
    yield Workload("8 queries, 16 x 8192, pages", shapes["16 x 8192"], q_len=8, block_size=16)
    yield Workload("512 queries, 4 x 8192", (8192,) * 4, q_len=512)
    yield Workload("512 queries, 4 x 8192, pages", (8192,) * 4, q_len=512, block_size=16)
    # What a window leaves of a long row costs as much as so short a row.
    yield Workload("a window of 1024 over 1 x 131072", (131072,), variant="sliding_window")
    yield Workload("a window of 1024 over 1 x 1024", (1024,), variant="sliding_window")


def runs(work: Workload, modules: Mapping[str, ModuleType]) -> dict[str, Run]:
    """What to time: each variant, and for dense tensors cuDNN."""
    torch.manual_seed(0)
    found = _paged(work, modules) if work.block_size else _dense(work, modules)
    room = torch.empty(work.nbytes, dtype=torch.int8, device="cuda")
    half = work.nbytes // 2
    # What is read and written together is as much as attention reads.
    found[COPY] = lambda: room[:half].copy_(room[half:])
    return {name: graph(run) for name, run in found.items()}


def _dense(work: Workload, modules: Mapping[str, ModuleType]) -> dict[str, Run]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = dense_tensors(work)

    def cudnn() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return {CUDNN: cudnn, **{name: _call(module.attention, q, k, v) for name, module in modules.items()}}


def _paged(work: Workload, modules: Mapping[str, ModuleType]) -> dict[str, Run]:
    """The plan is made once, as for all layers of a step."""
    call = paged_call(work)
    found = {name: call.run(module) for name, module in modules.items()}
    name, module = next(iter(modules.items()))
    found[f"{name}, its plan alone"] = lambda: call.plan(module)
    return found


def dense_tensors(work: Workload) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random q, k and v."""
    batch, length = len(work.lengths), work.lengths[0]
    k, v = (_normal(batch, KV_HEADS, length, work.head_dim) for _ in "kv")
    return _normal(batch, work.heads, work.q_len, work.head_dim), k, v


@dataclass(frozen=True)
class PagedCall:
    """A workload's tensors, by the names that attention_paged() has for them. `told` is what a plan is told too."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    told: Mapping[str, Any]
    scales: Mapping[str, torch.Tensor]

    def plan(self, module: ModuleType, config: Config | None = None) -> Any:
        return module.plan_paged(self.q, self.k_cache, self.table, self.lengths, **self.told, config=config)

    def run(self, module: ModuleType, config: Config | None = None) -> Run:
        """A call in this config, or the one that it has by itself; its plan is made before."""
        arguments = (self.q, self.k_cache, self.v_cache, self.table, self.lengths)
        return _call(module.attention_paged, *arguments, **self.told, **self.scales, plan=self.plan(module, config))


def paged_call(work: Workload) -> PagedCall:
    """Random queries and keys; pages in random order."""
    counts = [-(-length // work.block_size) for length in work.lengths]
    order = torch.randperm(sum(counts), device="cuda").int()
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device="cuda")
    for b, count in enumerate(counts):
        table[b, :count] = order[sum(counts[:b]) : sum(counts[: b + 1])]
    lengths = torch.tensor(work.lengths, dtype=torch.int32, device="cuda")
    q = _normal(len(counts) * work.q_len, work.heads, work.head_dim)
    shape = (sum(counts), work.block_size, KV_HEADS, work.head_dim)
    k_cache, v_cache = (_normal(*shape).to(work.cache) for _ in "kv")
    told: dict[str, Any] = {"max_seqlen_q": work.q_len}
    if work.q_len > 1:
        starts = torch.arange(len(counts) + 1, dtype=torch.int32, device="cuda")
        told["cu_seqlens_q"] = starts * work.q_len
    scales = {}
    if work.cache.itemsize == 1:
        scales = {name: torch.ones(KV_HEADS, device="cuda") for name in ("k_scale", "v_scale")}
    return PagedCall(q, k_cache, v_cache, table, lengths, told, scales)


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def _call(function: Callable[..., object], *arguments: torch.Tensor, **options: Any) -> Run:
    return lambda: function(*arguments, **options)


def graph(run: Run) -> Run:
    """A graph of the run; what replays it holds what it points to."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay(kept: object = kept, run: Run = run) -> None:
        graph.replay()

    return replay


def replays_us(run: Run) -> float:
    """Microseconds of one replay, the mean of some in a row."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(REPLAYS):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / REPLAYS


def lines(work: Workload, times: Mapping[str, Timing]) -> Iterator[str]:
    """One for each candidate: its time, the rate at which it reads keys and values, and that beside the copy's."""
    yield f"{work.name} ({work.nbytes / 1e6:.0f} MB of keys and values)"
    for name, timing in times.items():
        rate, share = work.nbytes / timing.median_us / 1e3, times[COPY].median_us / timing.median_us
        yield f"    {name:24} {timing.median_us:9.1f} us {rate:7.0f} GB/s {share:6.3f} of the copy's"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--variants", default="full,alibi,softcap")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("generated"), help="where the rendered variants are")
    parser.add_argument("--only", default="", help="workloads whose name has this in it")
    given = parser.parse_args(arguments)
    return on_a_gpu(lambda: _measure(given))


def _measure(given: argparse.Namespace) -> int:
    for work in (work for work in workloads() if given.only in work.name):
        names = [work.variant] if work.variant else given.variants.split(",")
        modules = {name: load_module(given.out / name) for name in names}
        times = interleave(runs(work, modules), replays_us, given.rounds)
        print("\n".join(lines(work, times)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
