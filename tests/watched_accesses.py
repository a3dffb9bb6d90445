"""Whether kernels under Triton's interpreter touch memory that is not their tensors', as a sanitizer sees on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from triton.runtime import interpreter

from flashgen.runtime.interpreter import interpreted

_Range = tuple[int, int]


@contextmanager
def watched() -> Iterator[set[str]]:
    """Within the block, kernels that access what lies outside of all of their arguments, as "<kernel> <access>".

    An access out of bounds is left out: it could end the process.
    """
    assert interpreted()  # It is mended by now, and stays so.
    seen: set[str] = set()
    memory = _Memory(interpreter._interpreter, seen)
    run = interpreter.GridExecutor.__call__

    def running(self: Any, *arguments: Any, **constants: Any) -> Any:
        before = memory.kernel, memory.ranges
        memory.kernel, memory.ranges = self.fn.__name__, [*_ranges([*arguments, *constants.values()])]
        try:
            return run(self, *arguments, **constants)
        finally:
            memory.kernel, memory.ranges = before

    with (
        patch.object(interpreter, "_interpreter", memory),
        patch.object(interpreter.GridExecutor, "__call__", running),
    ):
        yield seen


class _Memory:
    """Triton's own accesses to memory, each held against the tensors of the kernel that runs."""

    def __init__(self, own: Any, seen: set[str]) -> None:
        self._own, self._seen = own, seen
        self.kernel = ""
        self.ranges: list[_Range] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        return self._own.load(pointers, self._inside("load", pointers, mask, dtype), other, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> Any:
        return self._own.store(pointers, value, self._inside("store", pointers, mask, value.dtype))

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, order: Any) -> Any:
        inside = self._inside("atomic", pointers, mask, value.dtype)
        return self._own.atomic_rmw(operation, pointers, value, inside, order)

    def _inside(self, access: str, pointers: Any, mask: Any, dtype: Any) -> Any:
        first = np.asarray(pointers).astype(np.int64)
        end = first + np.dtype(dtype).itemsize
        wanted = np.asarray(mask).astype(bool)
        inside = np.zeros_like(wanted)
        for start, stop in self.ranges:
            inside |= (first >= start) & (end <= stop)
        if (wanted & ~inside).any():
            self._seen.add(f"{self.kernel} {access}")
        return wanted & inside


def _ranges(arguments: Iterable[Any]) -> Iterator[_Range]:
    """From the first byte of each tensor to behind its last."""
    for argument in arguments:
        tensor = getattr(argument, "base", argument)
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            yield tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
        elif isinstance(argument, (tuple, list)):
            yield from _ranges(argument)
