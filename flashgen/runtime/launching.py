"""Launching Triton kernels, the second time without Triton's own inspection of the arguments.

`kernel[grid](...)` finds the compiled kernel that fits the arguments anew on each call, which takes longer than all
else that a call of attention() does on the host. `launch` keeps what was found under a description of the arguments
that is at least as fine as what Triton compiles for: a description seen before needs the same kernel.

Any thread may launch. What is shared is dictionaries whose entries are whole before they are put there and never
change; two threads that miss the same one make it twice. Triton's own first launch is not safe so (a kernel can be
found there whose function is not loaded yet): of these there is one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import RLock
from typing import Any, NamedTuple

import torch
import triton
from triton.compiler import CompiledKernel
from triton.runtime import driver

from flashgen.runtime.described import Described
from flashgen.runtime.descriptors import Tiled, Tiling
from flashgen.runtime.memory import remember
from flashgen.runtime.streams import scratch


class Found(NamedTuple):
    """A compiled kernel, the values of its compile-time arguments, and its source.

    The source is here to stay alive: descriptions have its id.
    """

    compiled: CompiledKernel
    values: tuple[Any, ...]
    kernel: object


class Rest:
    """What a launch has beside its first arguments: how many programs, the numbers that come after them, constants.

    `tilings` are for the first arguments, None where an argument is no descriptor.
    """

    def __init__(self, programs: int, *numbers: Any, tilings: Sequence[Tiling | None] = (), **constants: Any) -> None:
        self.programs = programs
        self.numbers = flat_arguments(numbers)
        self.tilings = [(place, tiling) for place, tiling in enumerate(tilings) if tiling is not None]
        self.constants = constants

    def arguments(self, first: tuple[Any, ...]) -> tuple[Any, ...]:
        """All arguments, descriptors in the place of tensors."""
        tiled = list(first)
        for place, tiling in self.tilings:
            tiled[place] = tiling.of(tiled[place])
        return (*tiled, *self.numbers)


class Known(NamedTuple):
    """What a launch needs beside its first arguments, `numbers` and the values of compile-time arguments in one."""

    compiled: CompiledKernel
    programs: int
    tilings: list[tuple[int, Tiling]]
    last: tuple[Any, ...]
    described: Described | None
    kernel: object

    def tiled(self, passed: list[Any], arguments: tuple[Any, ...]) -> list[Any]:
        """What is passed for arguments, descriptors in the place of addresses."""
        if self.tilings:
            passed = [*passed]
            for place, tiling in self.tilings:
                passed[place] = tiling.of(arguments[place])
        return passed


# Reentrant: hooks that Triton calls on a launch may launch kernels.
_first_launch = RLock()
_found: dict[Hashable, Found] = {}
_known: dict[Hashable, Known] = {}
# What is called with a kernel, the number of programs, its arguments and constants instead of launching it.
_instead: Callable[[Any, int, tuple[Any, ...], dict[str, Any]], None] | None = None


@contextmanager
def rehearsing(instead: Callable[[Any, int, tuple[Any, ...], dict[str, Any]], None]) -> Iterator[None]:
    """Within the block nothing is launched on a GPU: `instead` is called with what would be.

    A kernel that is known already does not run either: what it reads was not written.
    """
    global _instead, _known
    known, before = _known, _instead
    _known, _instead = {}, instead
    try:
        yield
    finally:
        _known, _instead = known, before


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """kernel[(programs,)](*arguments, **constants) on the GPU of the first argument, a tensor or a descriptor of one.

    `arguments` are tensors, tensor descriptors made on the host, numbers and None; a tuple of integers stands for its
    elements and is looked at once for many launches. `constants` are the compile-time arguments, which the kernel has
    last, and the launch options.
    """
    gpu = getattr(arguments[0], "base", arguments[0]).get_device()
    if gpu < 0:
        kernel[(programs,)](*flat_arguments(arguments), **constants)
    elif torch._C._cuda_getDevice() == gpu:
        _launch_here(kernel, programs, gpu, arguments, constants)
    else:
        with torch.cuda.device(gpu):
            _launch_here(kernel, programs, gpu, arguments, constants)


def relaunch(kernel: Any, key: tuple[Hashable, ...], *arguments: Any, rest: Callable[[], Rest]) -> None:
    """The same for launches that are repeated: what follows from `key`, `rest`, is asked for once.

    `arguments` are those in front of the numbers of `rest`, as `launch` takes them; the first is a tensor.
    """
    gpu = arguments[0].get_device()
    if gpu < 0:
        found = rest()
        kernel[(found.programs,)](*found.arguments(flat_arguments(arguments)), **found.constants)
    elif torch._C._cuda_getDevice() == gpu:
        _relaunch_here(kernel, gpu, key, arguments, rest)
    else:
        with torch.cuda.device(gpu):
            _relaunch_here(kernel, gpu, key, arguments, rest)


def _relaunch_here(
    kernel: Any, gpu: int, key: tuple[Hashable, ...], arguments: tuple[Any, ...], rest: Callable[[], Rest]
) -> None:
    described, passed = _describe(kernel, gpu, arguments, key)
    known = _known.get(described)
    hooks = triton.knobs.runtime
    if known is None or kernel.pre_run_hooks or hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
        asked = rest()
        found = _launch_here(kernel, asked.programs, gpu, asked.arguments(arguments), asked.constants)
        if found is not None:
            last = (*asked.numbers, *found.values)
            again = Described.of(found.compiled, [tiling for _, tiling in asked.tilings], passed)
            remember(_known, described, Known(found.compiled, asked.programs, asked.tilings, last, again, kernel))
        return
    stream = driver.active.get_current_stream(gpu)
    if known.described is None:
        triton.set_allocator(scratch)
        compiled = known.compiled
        compiled.run(
            known.programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
            *known.tiled(passed, arguments), *known.last,
        )  # fmt: skip
    else:
        known.described(known.programs, stream, passed, lambda: [*known.tiled(passed, arguments), *known.last])


def _launch_here(
    kernel: Any, programs: int, gpu: int, arguments: tuple[Any, ...], constants: dict[str, Any]
) -> Found | None:
    """Launch; the kernel that was found for it, if it is to be remembered."""
    if _instead is not None:
        _instead(kernel, programs, flat_arguments(arguments), constants)
        return None
    triton.set_allocator(scratch)
    description, passed = _describe(kernel, gpu, arguments, (*constants, *constants.values()))
    found = _found.get(description)
    if found is None or kernel.pre_run_hooks:
        arguments = flat_arguments(arguments)
        with _first_launch:
            compiled = kernel[(programs,)](*arguments, **constants)
            return _remember(description, kernel, compiled, arguments, constants)
    stream = driver.active.get_current_stream(gpu)
    compiled = found.compiled
    hooks = triton.knobs.runtime
    if hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
        compiled[(programs, 1, 1)](*flat_arguments(arguments), *found.values, stream=stream)
    else:
        compiled.run(
            programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
            *passed, *found.values,
        )  # fmt: skip
    return found


def _describe(
    kernel: Any, gpu: int, arguments: tuple[Any, ...], others: tuple[Hashable, ...]
) -> tuple[tuple[object, ...], list[Any]]:
    """All that Triton may compile a kernel of its own for, and the arguments with addresses instead of tensors.

    Of an integer Triton asks whether it is 1, a multiple of 16, and within 32 bits: small ones stand for themselves,
    others for those with the same last six bits. Of an address it asks whether it is a multiple of 16.
    """
    knobs = triton.knobs
    described: list[object] = [
        id(kernel), gpu, knobs.runtime.debug, knobs.runtime.add_stages_inspection_hook,
        knobs.compilation.instrumentation_mode, *others,
    ]  # fmt: skip
    passed: list[Any] = []
    for value in arguments:
        kind = value.__class__
        if isinstance(value, torch.Tensor):
            address = value.data_ptr()
            described.append(value.dtype if address % 16 == 0 else (value.dtype,))
            passed.append(address)
        elif kind is int:
            described.append(value & 63 | 64 if 64 <= value < 2**31 else value)
            passed.append(value)
        elif kind is tuple:
            described.append(_integer_traits(value))
            passed.extend(value)
        else:
            described.append(value.tile if kind is Tiled else _trait(value))
            passed.append(value)
    return tuple(described), passed


@lru_cache(maxsize=1024)
def _integer_traits(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(value & 63 | 64 if 64 <= value < 2**31 else value for value in values)


def flat_arguments(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as the kernel has them, tuples of integers one by one."""
    return tuple(each for value in arguments for each in (value if value.__class__ is tuple else (value,)))


def _trait(value: Any) -> object:
    """What Triton may tell apart of an argument that is neither an integer nor a tensor."""
    kind = value.__class__
    if kind is float:
        return float
    if value is None or kind is bool:
        return kind, value
    if hasattr(value, "block_shape"):  # a tensor descriptor made on the host
        rest = [each for name, each in vars(value).items() if name not in ("base", "shape", "strides")]
        return kind, value.base.dtype, *[tuple(each) if isinstance(each, list) else each for each in rest]
    raise TypeError(f"an argument of a kernel is {kind.__name__}; expected a tensor, a number, a descriptor or None")


def _remember(
    description: Hashable, kernel: Any, compiled: object, arguments: tuple[Any, ...], constants: dict[str, Any]
) -> Found | None:
    # On AMD Triton also looks at the size of a tensor's memory; a kernel with hooks wants to be launched by itself.
    if not isinstance(compiled, CompiledKernel) or torch.version.hip or kernel.pre_run_hooks:
        return None
    found = Found(compiled, tuple(constants[name] for name in kernel.arg_names[len(arguments) :]), kernel)
    remember(_found, description, found)
    return found
