"""What the Hopper forward counts its tiles with: a counter in the GPU's memory for each stream.

Launches on one stream follow each other, and the kernel leaves its counter at zero. So one counter serves all of them,
and no call pays for one of its own.
"""

from __future__ import annotations

from threading import Thread

import torch
from triton.runtime import driver

from flashgen.runtime.call import Call

# By GPU and stream.
_counters: dict[tuple[int, int], torch.Tensor] = {}


def tile_counter(call: Call) -> torch.Tensor:
    """Tiles that were handed out and programs that are done: int32 [2], zero between launches.

    A launch that is captured in a graph may be replayed on any stream, beside others: it has one of its own.
    """
    gpu = call.q.get_device()
    if gpu != torch.cuda.current_device() or torch.cuda.is_current_stream_capturing():
        return call.q.new_zeros(2, dtype=torch.int32)
    counter = _counters.get((gpu, driver.active.get_current_stream(gpu)))
    return _new_counter(gpu) if counter is None else counter


def _new_counter(gpu: int) -> torch.Tensor:
    stream = torch.cuda.current_stream(gpu)

    def make() -> None:
        with torch.cuda.stream(stream):
            _counters[gpu, stream.cuda_stream] = torch.zeros(2, dtype=torch.int32, device=stream.device)

    # Memory pools, such as those of graphs to be captured, take what the threads that use them allocate: it would not
    # outlive the pool. Another thread's is from the common pool.
    thread = Thread(target=make)
    thread.start()
    thread.join()
    return _counters[gpu, stream.cuda_stream]
