"""Memory of the GPU that the launches on one stream share.

They follow each other, so that each may have what the one before it had, and no call pays for an allocation. A launch
that is captured in a graph may be replayed on any stream, beside others: it has memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import torch
from triton.runtime import driver

from flashgen.runtime.call import Call
from flashgen.runtime.tracing import current_tracer

# By GPU and stream.
_counters: dict[tuple[int, int], torch.Tensor] = {}
_scratches: dict[tuple[int, int], torch.Tensor] = {}


def tile_counter(call: Call) -> torch.Tensor:
    """Tiles that were handed out and programs that are done: int32 [2], zero between launches.

    What kernels that take tile after tile count these with; they leave it at zero.
    """
    gpu = call.q.get_device()
    if gpu != torch._C._cuda_getDevice() or torch.cuda.is_current_stream_capturing():
        return call.q.new_zeros(2, dtype=torch.int32)
    counter = _counter_of(gpu, driver.active.get_current_stream(gpu))
    if (tracer := current_tracer()) is not None:
        tracer.of_stream(counter, _counter_of)
    return counter


def _counter_of(gpu: int, stream: int) -> torch.Tensor:
    """The counter of the current stream of the current GPU, which these are."""
    counter = _counters.get((gpu, stream))
    if counter is None:
        counter = _counters[gpu, stream] = _kept(lambda: torch.zeros(2, dtype=torch.int32, device="cuda"))
    return counter


def scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Where kernels put the descriptors that TMA reads: as many bytes, on the current GPU."""
    if stream is None or torch.cuda.is_current_stream_capturing():
        return _bytes(size)
    place = torch._C._cuda_getDevice(), stream
    kept = _scratches.get(place)
    if kept is None or kept.shape[0] < size:
        kept = _scratches[place] = _kept(lambda: _bytes(size))
    return kept


def _bytes(size: int) -> torch.Tensor:
    return torch.empty_strided((size,), (1,), dtype=torch.int8, device="cuda")


def _kept(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What is made on the current stream, to stay.

    Memory pools, such as those of graphs to be captured, take what the threads that use them allocate: it would not
    outlive the pool. Another thread's is from the common pool.
    """
    stream = torch.cuda.current_stream()
    made: list[torch.Tensor] = []

    def run() -> None:
        with torch.cuda.stream(stream):
            made.append(make())

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return made[0]
