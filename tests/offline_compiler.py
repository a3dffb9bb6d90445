"""A process that compiles kernels, as `Worker("offline_compiler:make")` starts it: it interprets nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashgen.codegen.compilation import Compilation
from flashgen.codegen.offline import Resources, compile_kernel

Compile = Callable[..., Resources]


def make() -> Callable[[tuple[Path, tuple[Any, ...]]], Resources]:
    """Compiles a module's kernel for each request: its path, and what a `Compilation` takes."""
    return lambda request: compile_kernel(request[0], Compilation(*request[1]))
