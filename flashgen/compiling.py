"""What a generated kernel becomes on GPUs that are not at hand: compiled offline, in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from flashgen.codegen import default_of, inputs_summed_by_key, kernels_of_variant
from flashgen.codegen.compilation import READY_FOR
from flashgen.errors import UsageError
from flashgen.runtime import Config
from flashgen.runtime.gpus import GPUS, shared_limit
from flashgen.runtime.registry import REGISTRY
from flashgen.spec.variant import Variant
from flashgen.tuning.worker import RequestFailed, Worker

COMPILE_SECONDS = 120.0
MOST_WORKERS = 8


@dataclass(frozen=True)
class Job:
    """One kernel to compile, for a target as Triton names its capability; `learned` as in `Compilation`.

    One that makes ready for another, `delta` or `schedule`, has the config of that.
    """

    target: str
    kernel: str
    dtype: str
    head_dim: int
    v_head_dim: int
    config: Config
    learned: bool = False

    @property
    def ready_for(self) -> str:
        """The kernel whose config this one has, "" where it has its own."""
        return READY_FOR.get(self.kernel, "")


@dataclass(frozen=True)
class Compiled:
    """What the compiler reports. `spills` and `shared` are bytes; registers and spills are None where the target's
    assembler does not tell. `error` says why a kernel does not compile, or does not fit the target. `lost_negations`,
    `warps` and `serialized_wgmma` are as in `Resources`.
    """

    job: Job
    registers: int | None = None
    spills: int | None = None
    shared: int | None = None
    seconds: float = 0.0
    error: str | None = None
    lost_negations: int = 0
    warps: int = 0
    serialized_wgmma: bool = False

    def __str__(self) -> str:
        job = self.job
        return f"{job.target} {job.kernel} {job.dtype} head_dim {job.head_dim}: {self.error or 'compiles'}"


def kernels_in(variant: Variant) -> tuple[str, ...]:
    """The families of the variant's kernels, those that are tuned first, and behind them those of READY_FOR."""
    launched = {name for text in kernels_of_variant(variant) for name, _ in text.functions}
    present = [kernel for kernel in REGISTRY if kernel.name in launched]
    families = [kernel.family for kernel in sorted(present, key=lambda kernel: not kernel.tuned)]
    return tuple(dict.fromkeys((*families, *(name for name in READY_FOR if name in launched))))


def jobs_for(variant: Variant, targets: Sequence[str], kernels: Collection[str] | None = None) -> list[Job]:
    """Each target with each head dimension of the spec and each of its kernels, or those of `kernels`, in its first
    dtype and the default config.

    UsageError for an unknown target.
    """
    for target in targets:
        if target not in GPUS:
            raise UsageError(f"no target {target!r}; expected one of {', '.join(GPUS)}")
    dtype = variant.dtypes[0]
    learned = bool(inputs_summed_by_key(variant))
    present = [kernel for kernel in kernels_in(variant) if kernels is None or kernel in kernels]
    defaults = {kernel: default_of(variant, READY_FOR.get(kernel, kernel)) for kernel in present}
    return [
        Job(target, kernel, dtype, dim, dim, default(target, dtype, dim, dim), learned)
        for target in targets
        for dim in variant.head_dims
        for kernel, default in defaults.items()
    ]


def compile_all(path: Path, jobs: Sequence[Job]) -> tuple[Compiled, ...]:
    """Compile each job, several at a time. A compiler that crashes or hangs costs its own job alone."""
    if not jobs:
        return ()
    waiting: SimpleQueue[Worker] = SimpleQueue()
    workers = [Worker("flashgen.compiling:compiler", str(path)) for _ in range(_pool_size(len(jobs)))]
    for worker in workers:
        waiting.put(worker)

    def run(job: Job) -> Compiled:
        worker = waiting.get()
        try:
            return worker.ask(job, COMPILE_SECONDS)
        except RequestFailed as failure:
            return Compiled(job, error=str(failure))
        finally:
            waiting.put(worker)

    try:
        with ThreadPoolExecutor(len(workers)) as pool:
            answers: list[Future[Compiled]] = []
            try:
                answers.extend(pool.submit(run, job) for job in jobs)
                return tuple(answer.result() for answer in answers)
            finally:
                _give_up(answers, workers)
    finally:
        for worker in workers:
            worker.close()


def _give_up(answers: Sequence[Future[Compiled]], workers: Sequence[Worker]) -> None:
    """End what is still under way when this is interrupted: a compiler takes a minute, and no signal stops it."""
    for answer in answers:
        answer.cancel()
    while wait(answers, 0.01).not_done:
        # Again and again: a thread may just have started another process.
        for worker in workers:
            worker.kill()


def compiler(path: str) -> Callable[[Job], Compiled]:
    """The worker's side: compiles the module at `path` for one job after another."""
    from flashgen.codegen.compilation import Compilation
    from flashgen.codegen.offline import compile_kernel

    def compile_one(job: Job) -> Compiled:
        wanted = Compilation(
            job.kernel, job.target, job.dtype, job.head_dim, job.v_head_dim, job.config, learned=job.learned
        )
        found = compile_kernel(Path(path), wanted)
        error, limit = found.error, shared_limit(job.target)
        if error is None and found.shared > limit:
            error = f"needs {found.shared} bytes of shared memory, {job.target} has {limit}"
        return Compiled(
            job, found.registers, found.spills, found.shared, found.seconds, error, found.lost_negations, found.warps,
            found.serialized_wgmma,
        )  # fmt: skip

    return compile_one


def _pool_size(jobs: int) -> int:
    return max(1, min(jobs, os.cpu_count() or 1, MOST_WORKERS))
