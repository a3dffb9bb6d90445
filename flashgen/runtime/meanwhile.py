"""Compiling a kernel in another thread while this one launches, and so compiles, those that come before it.

Triton's compiler and the assembler leave Python's lock alone for most of their time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

import torch
import triton

from flashgen.runtime.collecting import no_collections
from flashgen.runtime.device.rounding import compiled_with
from flashgen.runtime.launching import Setup, launches_freely
from flashgen.runtime.specialization import flat_arguments

# `relaunch`, and what may stand in its place.
Relaunch = Callable[[Any, tuple[Hashable, ...], Mapping[str, Any], Callable[[], Setup]], None]


def compiles_freely(gpu: int) -> bool:
    """Whether nobody minds which thread compiles a kernel for this GPU, nor a launch more."""
    hooks = triton.knobs.runtime
    return (
        launches_freely(gpu)
        # There Triton also looks at the size of a tensor's memory.
        and not torch.version.hip
        and not torch.cuda.is_current_stream_capturing()
        and hooks.jit_cache_hook is None
        and hooks.jit_post_compile_hook is None
        and triton.knobs.compilation.listener is None
    )


@contextmanager
def compiled_meanwhile(gpu: int, launches: Callable[[Relaunch], object]) -> Iterator[None]:
    """While the block runs, what `launches` launches by the function that it is given is compiled, not launched.

    An error of the compiler is left to the launch, which compiles again.
    """
    threads: list[Thread] = []

    def note(kernel: Any, _: tuple[Hashable, ...], given: Mapping[str, Any], setup: Callable[[], Setup]) -> None:
        if not kernel.pre_run_hooks:
            threads.append(Thread(target=_compile, args=(gpu, kernel, given, setup())))

    launches(note)
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def _compile(gpu: int, kernel: Any, given: Mapping[str, Any], setup: Setup) -> None:
    # The compiler's errors have no common class, and this is no place for them: the launch meets them again.
    with suppress(Exception), no_collections(), torch.cuda.device(gpu):
        arguments, constants = setup.arguments(kernel, given)
        options = {**compiled_with(kernel), **constants, **setup.options}
        kernel.warmup(*flat_arguments(arguments), grid=(setup.programs,), **options)
