"""A kernel that several processes want is compiled by one of them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import triton
from filelock import FileLock
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend


@contextlib.contextmanager
def compile_lock(source: ASTSource, target: GPUTarget, launched: Mapping[str, Any]) -> Iterator[None]:
    """A process that compiles the same as another one waits here, and then finds it in Triton's cache.

    In a cache that cannot be locked, such as one that is not ours to write to, nobody waits.
    """
    options = make_backend(target).parse_options({**launched, **source.parse_options()})
    same = hashlib.sha256(f"{source.hash()} {target} {options.hash()}".encode()).hexdigest()
    path = Path(triton.knobs.cache.dir) / f"{same}.lock"
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, NotImplementedError):
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(path))
            # Those that wait have it open; one that comes at this moment finds the kernel in the cache all the same.
            held.callback(path.unlink, missing_ok=True)
        yield
