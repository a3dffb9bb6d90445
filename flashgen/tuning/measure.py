"""Timing a generated kernel on a GPU: the worker process's side of tuning.

A launch is captured in a CUDA graph, so that the host's own time is not measured; before each repetition the L2
cache is overwritten, as other kernels would between two attention layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from flashgen.codegen import default_of, load_module
from flashgen.codegen.rehearsal import Wanted
from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.packed import PackedCall, make_packed
from flashgen.problems.paged import PagedCall, make_paged
from flashgen.problems.problem import Problem
from flashgen.problems.work import CEILING_SIZE, least_bytes, useful_flops, visible_share
from flashgen.runtime.config import Config
from flashgen.spec.variant import Variant
from flashgen.tuning.cache import is_of
from flashgen.tuning.concord import Results, outliers
from flashgen.tuning.launches import Launches, PackedLaunches, PagedLaunches
from flashgen.tuning.outcome import Work
from flashgen.tuning.requests import (
    ConcordRequest,
    Measuring,
    ProofRequest,
    ReadyRequest,
    RehearseRequest,
    Request,
    TimeRequest,
    WorkRequest,
)
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed
from flashgen.tuning.workloads import Workload
from flashgen.verify import rehearse_config, rehearse_proof, verify_config
from flashgen.verify.poison import poisoned

HOPELESS = 1.5  # times the best median known: what is slower after its first repetitions is not measured further
FIRST_REPETITIONS = 3
MOST_REPETITIONS = 200
WARM_UP_SECONDS = 0.3
DEFAULT_L2_BYTES = 64 << 20
# The ceilings: for how long each is measured, and the bytes that the copy reads and writes.
CEILING_MS = 30.0
COPY_BYTES = 1 << 30
# What draws the arguments of each form of call.
_DRAW: Mapping[str, Callable[..., Call | PagedCall | PackedCall]] = {
    "dense": make_inputs,
    "decode": make_inputs,
    "paged": make_paged,
    "varlen": make_packed,
}


class KernelBench:
    """Times and proves the kernels of one generated module on one GPU. A factory for `worker.Worker`.

    A TimeRequest gives a Timing, a RehearseRequest kernels, a ProofRequest what is wrong, empty if nothing is, a
    ConcordRequest the configs that compute something else than the most, with what differs, a WorkRequest a Work, a
    ReadyRequest None. Raises
    RequestFailed: "out of resources", "out of memory", "does not compile", "illegal access", "rebuilt meanwhile", or
    the name of another exception.
    """

    def __init__(self, module_path: str, variant: Variant, device: int) -> None:
        torch.cuda.set_device(device)
        self._device = torch.device("cuda", device)
        self._variant, self._path = variant, Path(module_path)
        l2_bytes = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or DEFAULT_L2_BYTES
        self._scratch = torch.empty(2 * l2_bytes, dtype=torch.int8, device=self._device)
        self._problem: Problem | None = None
        self._call: Call | PagedCall | PackedCall | None = None
        self._ready: Launches | PagedLaunches | None = None
        self._warm = False
        self._limits: dict[str, tuple[float, float]] = {}
        _warm_up(self._device)

    @cached_property
    def _module(self) -> Any:
        """Loaded with the first request: this process may have started before the file was there."""
        return load_module(self._path)

    def __call__(self, request: Request) -> Timing | str | dict[Config, str] | Work | tuple[Wanted, ...] | None:
        try:
            if isinstance(request, ReadyRequest):
                self._get_ready(request.problem)
                return None
            self._expect_kernels_of(request.workload)
            return self._answer(request)
        except RequestFailed:
            raise
        except Exception as error:
            raise RequestFailed(_reason(error), str(error)[:2000], fatal=not _healthy()) from error

    def _answer(self, request: Measuring) -> Timing | str | dict[Config, str] | Work | tuple[Wanted, ...]:
        match request:
            case WorkRequest(workload):
                return self._work(workload)
            case RehearseRequest(workload, config):
                return self._rehearse(workload, config)
            case ProofRequest(workload, config):
                return self._prove(workload, config)
            case ConcordRequest():
                return self._outliers(request)
            case TimeRequest(workload, config, milliseconds, best_us):
                replay = captured(self._launches(workload).of(workload.key.kernel, config))
                return timed(replay, self._scratch, milliseconds, best_us)

    def _expect_kernels_of(self, workload: Workload) -> None:
        """A process that takes the place of one that crashed reads the module anew: by now it may be another one."""
        if not is_of(workload.key, self._module.IDENTITY):
            raise RequestFailed("rebuilt meanwhile", f"{self._path} has other kernels than those that are tuned")

    def _get_ready(self, problem: Problem) -> None:
        """Beside the inputs, whatever is loaded when it is first needed: CUDA's graphs, what the first proof takes."""
        self._inputs(problem)
        captured(self._scratch.zero_)
        if not self._warm:
            self._warm = True
            rehearse_proof(self._module, self._variant, problem, str(self._device))

    def _rehearse(self, workload: Workload, config: Config) -> tuple[Wanted, ...]:
        device, kernel = str(self._device), workload.key.kernel
        return rehearse_config(self._module, self._variant, workload.problem, config, device, kernel)

    def _prove(self, workload: Workload, config: Config) -> str:
        problem, kernel = workload.problem, workload.key.kernel
        result = verify_config(self._module, self._variant, problem, config, str(self._device), kernel)
        return "" if result.ok else str(result)

    def _outliers(self, request: ConcordRequest) -> dict[Config, str]:
        key, launches = request.workload.key, self._launches(request.workload)
        sizes = (key.capability, key.dtype, key.head_dim, key.v_head_dim)
        query_gradient = default_of(self._variant, "backward_q", request.workload.problem.packed)(*sizes)

        def run(config: Config) -> Results:
            # What a kernel leaves unwritten is not what another one has left there.
            with poisoned():
                return launches.results(key.kernel, config, query_gradient)

        return outliers(request.configs, run, request.arbiter)

    def _work(self, workload: Workload) -> Work:
        """The ceilings are measured once in each dtype, warm as the kernel was."""
        problem, kernel = workload.problem, workload.key.kernel
        share = visible_share(self._variant, problem, self._inputs(problem).keywords, str(self._device))
        flops = useful_flops(problem, share, kernel)
        if problem.dtype not in self._limits:
            product_us, copy_us = (
                timed(run, self._scratch, CEILING_MS).median_us for run in self._ceilings(problem.dtype)
            )
            self._limits[problem.dtype] = 2 * CEILING_SIZE**3 / product_us / 1e6, 2 * COPY_BYTES / copy_us / 1e3
        return Work(flops, least_bytes(problem, kernel), *self._limits[problem.dtype])

    def _ceilings(self, dtype: str) -> Iterator[Callable[[], object]]:
        """A large matrix product and a large copy."""
        size, kind = (CEILING_SIZE, CEILING_SIZE), getattr(torch, dtype)
        left, right = (torch.randn(size, dtype=kind, device=self._device) for _ in range(2))
        yield lambda: left @ right
        source = torch.empty(COPY_BYTES, dtype=torch.int8, device=self._device)
        target = torch.empty_like(source)
        yield lambda: target.copy_(source)

    def _launches(self, workload: Workload) -> Launches | PagedLaunches:
        call = self._inputs(workload.problem)
        if self._ready is None:
            if isinstance(call, PagedCall):
                self._ready = PagedLaunches(self._module, self._variant, call)
            elif isinstance(call, PackedCall):
                self._ready = PackedLaunches(self._module, self._variant, call)
            else:
                self._ready = Launches(self._module, self._variant, call)
        return self._ready

    def _inputs(self, problem: Problem) -> Call | PagedCall | PackedCall:
        """The arguments for a problem; those of the last one are kept."""
        if self._call is None or problem != self._problem:
            self._call = self._ready = None
            torch.cuda.empty_cache()
            self._call, self._problem = _DRAW[problem.mode](self._variant, problem, self._device), problem
        return self._call


def captured(launch: Callable[[], object]) -> Callable[[], object]:
    """The launch as a CUDA graph; raises what the launch raises."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launch()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph.replay


def timed(
    replay: Callable[[], object], scratch: torch.Tensor, milliseconds: float, best_us: float | None = None
) -> Timing:
    """Repeat for about `milliseconds` of GPU time and return the median, in microseconds."""
    replay()
    first = _samples(replay, scratch, FIRST_REPETITIONS)
    timing = Timing.of(first)
    if best_us is not None and timing.median_us > HOPELESS * best_us:
        return Timing.of(first, hopeless=True)
    wanted = int(milliseconds * 1e3 / timing.median_us) - FIRST_REPETITIONS
    return Timing.of(first + _samples(replay, scratch, min(max(wanted, 0), MOST_REPETITIONS)))


def _samples(replay: Callable[[], object], scratch: torch.Tensor, count: int) -> list[float]:
    spans = []
    for _ in range(count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        scratch.zero_()
        start.record()
        replay()
        end.record()
        spans.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in spans]


def _warm_up(device: torch.device) -> None:
    """Bring the clocks to where they stay under load, so that the first config is not flattered."""
    square = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    end = time.monotonic() + WARM_UP_SECONDS
    while time.monotonic() < end:
        for _ in range(20):
            square @ square
        torch.cuda.synchronize()


def _healthy() -> bool:
    """Whether the GPU context still works after a failure."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory"
    if type(error).__name__ == "OutOfResources":
        return "out of resources"
    if type(error).__name__ in (
        "CompilationError",
        "CompileTimeAssertionFailure",
        "PTXASError",
        "UnsupportedLanguageConstruct",
    ):
        return "does not compile"
    if "illegal" in str(error) or "misaligned address" in str(error):
        return "illegal access"
    return type(error).__name__
