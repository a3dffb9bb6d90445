"""Launching Triton kernels, the second time without Triton's own inspection of the arguments.

`kernel[grid](...)` finds the compiled kernel that fits the arguments anew on each call, which takes longer than all
else that a call of attention() does on the host. `launch` keeps what was found under a description of the arguments
that is at least as fine as what Triton compiles for: a description seen before needs the same kernel.

Any thread may launch. What is shared is dictionaries whose entries are whole before they are put there and never
change; two threads that miss the same one make it twice. Triton's own first launch is not safe so (a kernel can be
found there whose function is not loaded yet): of these there is one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from threading import RLock
from typing import Any, NamedTuple

import torch
import triton
from triton.compiler import CompiledKernel
from triton.runtime import driver

from flashgen.runtime.bounded_cache import remember
from flashgen.runtime.collecting import no_collections
from flashgen.runtime.described import Described
from flashgen.runtime.descriptors import Tiling
from flashgen.runtime.device.rounding import compiled_with
from flashgen.runtime.specialization import describe_arguments, flat_arguments
from flashgen.runtime.streams import scratch
from flashgen.runtime.tracing import current_tracer


class Found(NamedTuple):
    """A compiled kernel, the values of its compile-time arguments, and its source.

    The source is here to stay alive: descriptions have its id.
    """

    compiled: CompiledKernel
    values: tuple[Any, ...]
    kernel: object


@dataclass(frozen=True)
class Setup:
    """How a launch is set up beside the arguments that change from one to the next.

    `programs` is the length of its grid. `numbers` are what a kernel may be compiled for, `constants` the values of its
    compile-time arguments; both may have names that the kernel does not ask for. `options` are those of the launch.
    `tilings` are how tensors among the first arguments are seen by tiles. `first` is called before the kernel is
    launched for the first time, which is when it is compiled.
    """

    programs: int
    numbers: Mapping[str, Any]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    tilings: Mapping[str, Tiling] = field(default_factory=dict)
    first: Callable[[], None] | None = None

    def arguments(self, kernel: Any, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a kernel in its order, descriptors in the place of tensors; and its constants by name."""
        arguments, constants = [], {}
        for name in kernel.arg_names:
            if name in given:
                arguments.append(self.tilings[name].of(given[name]) if name in self.tilings else given[name])
            elif name in self.numbers:
                arguments.append(self.numbers[name])
            elif name in self.constants:
                constants[name] = self.constants[name]
            else:
                raise TypeError(
                    f"{kernel.__name__} takes {name!r}; expected what its launch gives: {self._names(given)}"
                )
        return tuple(arguments), constants

    def _names(self, given: Mapping[str, Any]) -> str:
        return ", ".join([*given, *self.numbers, *self.constants])


class Order(NamedTuple):
    """Which arguments a kernel takes of those that are given, in its order, and where they stand among all of its own.

    The kernel is here to stay alive: it is found by its id.
    """

    kernel: Any
    names: tuple[str, ...]
    places: tuple[int, ...]
    take: Callable[[Mapping[str, Any]], Sequence[Any]]


class Known(NamedTuple):
    """What a launch needs beside the arguments that are given: `last` are the others, numbers and constants.

    `order` brings both, one after the other, into the kernel's order; None where they are in it. `tilings` are those
    of given arguments by their places. The kernel is here to stay alive: descriptions have its id.
    """

    kernel: object
    compiled: CompiledKernel
    programs: int
    tilings: list[tuple[int, Tiling]]
    last: tuple[Any, ...]
    order: Callable[[list[Any]], Sequence[Any]] | None
    described: Described | None

    def arguments(self, passed: list[Any], given: Sequence[Any]) -> Sequence[Any]:
        """All arguments as Triton's launcher takes them, descriptors in the place of addresses."""
        everything = [*passed, *self.last]
        for place, tiling in self.tilings:
            everything[place] = tiling.of(given[place])
        return everything if self.order is None else self.order(everything)


# Reentrant: hooks that Triton calls on a launch may launch kernels.
_first_launch = RLock()
_found: dict[Hashable, Found] = {}
_known: dict[Hashable, Known] = {}
_orders: dict[Hashable, Order] = {}
# What is called with a kernel, the number of programs, its arguments and constants instead of launching it.
Instead = Callable[[Any, int, tuple[Any, ...], dict[str, Any]], None]
_instead: Instead | None = None


@contextmanager
def replaced(instead: Instead) -> Iterator[None]:
    """Within the block no kernel is launched: `instead` is called with what would be."""
    global _instead
    before, _instead = _instead, instead
    try:
        yield
    finally:
        _instead = before


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """kernel[(programs,)](*arguments, **constants) on the GPU of the first argument, a tensor or a descriptor of one.

    `arguments` are tensors, tensor descriptors made on the host, numbers and None; a tuple of integers stands for its
    elements and is looked at once for many launches. `constants` are the compile-time arguments, which the kernel has
    last, and the launch options.
    """
    gpu = getattr(arguments[0], "base", arguments[0]).get_device()
    constants = {**compiled_with(kernel), **constants}
    if _instead is not None:
        _instead(kernel, programs, flat_arguments(arguments), constants)
    elif gpu < 0:
        kernel[(programs,)](*flat_arguments(arguments), **constants)
    elif torch._C._cuda_getDevice() == gpu:
        _launch_here(kernel, programs, gpu, arguments, constants)
    else:
        with torch.cuda.device(gpu):
            _launch_here(kernel, programs, gpu, arguments, constants)


def relaunch(kernel: Any, key: tuple[Hashable, ...], given: Mapping[str, Any], setup: Callable[[], Setup]) -> None:
    """Launch a kernel by the names of its parameters, again and again: what follows from `key`, `setup`, is asked once.

    `given` are the arguments that change, tensors, numbers and None, of which it takes those that it has; for one
    kernel as many always have the same names.
    """
    order = _orders.get((id(kernel), len(given))) or _order(kernel, given)
    arguments = order.take(given)
    gpu = arguments[0].get_device()
    if _instead is not None or gpu < 0:
        found = setup()
        positional, constants = found.arguments(kernel, given)
        launch(kernel, found.programs, *positional, **constants, **found.options)
    elif torch._C._cuda_getDevice() == gpu:
        _relaunch_here(order, gpu, key, arguments, given, setup)
    else:
        with torch.cuda.device(gpu):
            _relaunch_here(order, gpu, key, arguments, given, setup)


def launches_freely(gpu: int) -> bool:
    """Whether launches on this GPU go to the driver from here, and nobody listens to them."""
    hooks = triton.knobs.runtime
    return (
        _instead is None
        and torch._C._cuda_getDevice() == gpu
        and not hooks.launch_enter_hook.calls
        and not hooks.launch_exit_hook.calls
    )


def _order(kernel: Any, given: Mapping[str, Any]) -> Order:
    names = tuple(name for name in kernel.arg_names if name in given)
    places = tuple(kernel.arg_names.index(name) for name in names)
    order = Order(kernel, names, places, itemgetter(*names) if len(names) > 1 else lambda given: (given[names[0]],))
    remember(_orders, (id(kernel), len(given)), order)
    return order


def _relaunch_here(
    order: Order, gpu: int, key: tuple[Hashable, ...], arguments: Sequence[Any], given: Mapping[str, Any],
    setup: Callable[[], Setup],
) -> None:  # fmt: skip
    kernel = order.kernel
    described, passed = describe_arguments(kernel, gpu, arguments, key)
    known = _known.get(described)
    hooks = triton.knobs.runtime
    if known is None or kernel.pre_run_hooks or hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
        asked = setup()
        positional, constants = asked.arguments(kernel, given)
        constants = {**compiled_with(kernel), **constants, **asked.options}
        found = _launch_here(kernel, asked.programs, gpu, positional, constants, asked.first)
        if found is not None:
            remember(_known, described, _know(order, found, asked, (*positional, *found.values), passed))
        return
    if (tracer := current_tracer()) is not None:
        tracer.launched(kernel, known.compiled, known.programs, known.arguments([*arguments], arguments))
    stream = driver.active.get_current_stream(gpu)
    if known.described is None:
        triton.set_allocator(scratch)
        compiled = known.compiled
        compiled.run(
            known.programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
            *(known.arguments(passed, arguments) if known.order or known.tilings else (*passed, *known.last)),
        )  # fmt: skip
    else:
        known.described(known.programs, stream, passed, lambda: known.arguments(passed, arguments))


def _know(order: Order, found: Found, asked: Setup, everything: tuple[Any, ...], passed: list[Any]) -> Known:
    others = [place for place in range(len(everything)) if place not in order.places]
    now = [*order.places, *others]
    tilings = [(place, asked.tilings[name]) for place, name in enumerate(order.names) if name in asked.tilings]
    return Known(
        order.kernel,
        found.compiled,
        asked.programs,
        tilings,
        tuple(everything[place] for place in others),
        None if now == sorted(now) else itemgetter(*(now.index(place) for place in range(len(now)))),
        Described.of(found.compiled, [tiling for _, tiling in tilings], passed),
    )


def _launch_here(
    kernel: Any, programs: int, gpu: int, arguments: tuple[Any, ...], constants: dict[str, Any],
    first: Callable[[], None] | None = None,
) -> Found | None:  # fmt: skip
    """Launch; the kernel that was found for it, if it is to be remembered."""
    triton.set_allocator(scratch)
    description, passed = describe_arguments(kernel, gpu, arguments, (*constants, *constants.values()))
    found = _found.get(description)
    tracer = current_tracer()
    if found is None or kernel.pre_run_hooks:
        if tracer is not None:
            tracer.refuse("its kernel is not known yet", later=True)
        arguments = flat_arguments(arguments)
        # A kernel with hooks is launched as if for the first time each time.
        if first is not None and not kernel.pre_run_hooks:
            first()
        with _first_launch, no_collections():
            compiled = kernel[(programs,)](*arguments, **constants)
            return _remember(description, kernel, compiled, arguments, constants)
    stream = driver.active.get_current_stream(gpu)
    compiled = found.compiled
    if tracer is not None:
        tracer.launched(kernel, compiled, programs, (*flat_arguments(arguments), *found.values))
    hooks = triton.knobs.runtime
    if hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
        compiled[(programs, 1, 1)](*flat_arguments(arguments), *found.values, stream=stream)
    else:
        compiled.run(
            programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
            *passed, *found.values,
        )  # fmt: skip
    return found


def _remember(
    description: Hashable, kernel: Any, compiled: object, arguments: tuple[Any, ...], constants: dict[str, Any]
) -> Found | None:
    # On AMD Triton also looks at the size of a tensor's memory; a kernel with hooks wants to be launched by itself.
    if not isinstance(compiled, CompiledKernel) or torch.version.hip or kernel.pre_run_hooks:
        return None
    found = Found(compiled, tuple(constants[name] for name in kernel.arg_names[len(arguments) :]), kernel)
    remember(_found, description, found)
    return found
