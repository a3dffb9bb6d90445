"""Which kernels some calls would have Triton compile, found by making the calls without launching anything.

So they can be compiled side by side in other processes, which leave them in Triton's own cache; the calls themselves
would compile one after the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import triton

from flashgen.runtime import launching


@dataclass(frozen=True)
class Wanted:
    """A kernel by its name and module, empty for those of the generated package, what it is to be compiled for, in
    Triton's own JSON, and the GPU, such as "sm_80". `length` is that of the file it stands in, which says how long it
    may take."""

    module: str
    kernel: str
    specialization: str
    target: str
    length: int


@contextmanager
def rehearsal(module: ModuleType, target: str) -> Iterator[dict[Wanted, None]]:
    """Within the block calls of a generated module launch nothing; kernels that are not compiled yet are noted."""
    wanted: dict[Wanted, None] = {}

    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        name = "" if f"{fn.module}.".startswith(f"{module.__name__}.") else fn.module
        kernel = fn.jit_function
        length = Path(inspect.getfile(kernel.fn)).stat().st_size
        wanted[Wanted(name, kernel.__name__, compile["specialization_data"], target, length)] = None
        return True

    def ask(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        kernel.warmup(*arguments, grid=(programs,), **constants)

    hooks = triton.knobs.runtime
    before, hooks.jit_cache_hook = hooks.jit_cache_hook, note
    try:
        with launching.replaced(ask):
            yield wanted
    finally:
        hooks.jit_cache_hook = before
