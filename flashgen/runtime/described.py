"""Launches with tensor descriptors that were made before.

Triton makes descriptors anew on each launch, which takes longer than all else of it. What it makes, a CUtensorMap, says
where a tensor is and how it lies, and holds on to nothing: for one address it is the same on every launch. So where all
addresses were seen before, what was handed to the driver for them is handed to it again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from threading import local
from types import CellType, FunctionType
from typing import Any

from triton.compiler import CompiledKernel

from flashgen.runtime.bounded_cache import remember
from flashgen.runtime.descriptors import Tiling

# What the launcher in C gets, by the launches, the stream and the addresses.
_handed: dict[Hashable, tuple[Any, ...]] = {}


class Described:
    """The launches of a compiled kernel that differ in the stream and in addresses alone."""

    def __init__(self, compiled: CompiledKernel) -> None:
        self._compiled = compiled
        self._launch = _launcher(compiled.run.launch)

    @staticmethod
    def of(compiled: CompiledKernel, tilings: Sequence[Tiling], addresses: Sequence[Any]) -> Described | None:
        """For tensors of these layouts, at addresses such as these; None where that is of no use, or not safe.

        That is where launches need memory of their own, where Triton makes descriptors elsewhere, and where there are
        floats among the addresses: 0.0 is found for -0.0.
        """
        run = compiled.run
        own = run.global_scratch_size or run.profile_scratch_size or any(tiling.copies for tiling in tilings)
        floats = any(isinstance(value, float) for value in addresses)
        return Described(compiled) if tilings and not own and not floats and _launcher(run.launch) is not None else None

    def __call__(
        self, programs: int, stream: int, addresses: list[Any], arguments: Callable[[], Sequence[Any]]
    ) -> None:
        """Launch as `compiled.run` does; `arguments` are asked for where these addresses, and numbers, are new."""
        place = (self, stream, *addresses)
        made = _handed.get(place)
        if made is None:
            made = self._make(programs, stream, arguments())
            remember(_handed, place, made)
        self._launch(*made)

    def _make(self, programs: int, stream: int, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """What Triton hands to the launcher in C."""
        return tuple(handing(self._compiled, programs, stream)[1](arguments))


# What launches a kernel, and what makes of its arguments what that takes.
Handing = tuple[Callable[..., Any], Callable[[Sequence[Any]], Sequence[Any]]]


def handing(compiled: CompiledKernel, programs: int, stream: int, own_memory: bool = False) -> Handing:
    """What launches a compiled kernel: the launcher in C, where it may be.

    A kernel that needs memory of its own, `own_memory`, or whose descriptors are made elsewhere, is launched by Triton.
    """
    first = (programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None)
    describes = isinstance(compiled.run.launch, FunctionType)
    launcher = _launcher(compiled.run.launch) if describes else compiled.run.launch
    if own_memory or launcher is None:
        return compiled.run, lambda arguments: (*first, *arguments)
    # By thread: any may launch.
    caught = local()

    def catch(*passed: Any) -> None:
        caught.passed = passed

    run = copy(compiled.run)
    run.launch = catch
    if describes:
        describing = compiled.run.launch
        cells = dict(zip(describing.__code__.co_freevars, describing.__closure__, strict=True))
        cells["launcher"] = CellType(run.launch)
        run.launch = FunctionType(describing.__code__, describing.__globals__, closure=tuple(cells.values()))

    def made(arguments: Sequence[Any]) -> Sequence[Any]:
        run(*first, *arguments)
        passed: Sequence[Any] = caught.passed
        return passed

    return launcher, made


def _launcher(describing: Any) -> Any:
    """The launcher in C that the one which makes descriptors ends with."""
    names = getattr(getattr(describing, "__code__", None), "co_freevars", ())
    return describing.__closure__[names.index("launcher")].cell_contents if "launcher" in names else None
