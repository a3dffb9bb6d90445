"""Passes that repeat one made before, without looking at anything but addresses again.

A call of attention() has to find out what to launch: it checks shapes, looks configs up, works out grids, strides and
descriptors. All of that follows from how the arguments lie and from what is no tensor among them. The second call that
is alike in these writes down what it does (`runtime/tracing.py`); from the third on only that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
import triton
from triton.runtime import driver

from flashgen.runtime.alike import answer_of_last, forget_last, remember_last
from flashgen.runtime.bounded_cache import remember
from flashgen.runtime.buffers import Buffers, maker
from flashgen.runtime.described import Handing, handing
from flashgen.runtime.descriptors import Tiled
from flashgen.runtime.dispatch import PLAIN_TYPES, is_direct
from flashgen.runtime.launching import launches_freely
from flashgen.runtime.streams import scratch
from flashgen.runtime.tracing import GIVEN, MADE, OF_STREAM, Launch, Place, Result, TiledPlace, Tracer

Pass = Callable[..., Any]
# How often a pass is written down in vain before it is left alone.
_TRIES = 3
_has_hooks = attrgetter("pre_run_hooks")
# Launches as functions and what they take, by the pass, the stream and the addresses.
_handed: dict[Hashable, list[tuple[Callable[..., Any], Sequence[Any]]]] = {}


class _Address:
    """What a descriptor asks of a tensor."""

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


class _Arguments:
    """The arguments of a launch at any addresses.

    `firsts` is where those of each origin begin among these, `places` where what the pass made is now.
    """

    def __init__(self, launch: Launch, firsts: Mapping[str, int], places: Sequence[tuple[int, int]]) -> None:
        self._all = list(launch.arguments)
        self._places: list[tuple[int, int, int]] = []
        self._tiled: list[tuple[int, int, int, Tiled]] = []
        for at, argument in enumerate(launch.arguments):
            place = argument.place if isinstance(argument, TiledPlace) else argument
            if isinstance(place, Place):
                number, further = places[place.number] if place.origin == MADE else (place.number, 0)
                found = (at, firsts[place.origin] + number, place.offset + further)
                if isinstance(argument, TiledPlace):
                    self._tiled.append((*found, argument.tiled))
                else:
                    self._places.append(found)

    def at(self, addresses: Sequence[int]) -> list[Any]:
        found = self._all.copy()
        for at, number, offset in self._places:
            found[at] = addresses[number] + offset
        for at, number, offset, tiled in self._tiled:
            found[at] = tiled.at(_Address(addresses[number] + offset))
        return found


class Replay:
    """What calls that are alike make and launch, with the tensors among their arguments, at `places`."""

    def __init__(
        self, tracer: Tracer, places: Sequence[int], results: Sequence[Result | None] | None, given: Sequence[Any]
    ) -> None:
        self._places = tuple(places)
        self._gpu = given[places[0]].get_device()
        made = Buffers.of(tracer.buffers, results)
        results = made.results
        self._makers = [maker(buffer) for buffer in made.buffers]
        self._launches = tracer.launches
        firsts = {GIVEN: 0, MADE: len(places), OF_STREAM: len(places) + len(made.buffers)}
        self._arguments = [_Arguments(launch, firsts, made.places) for launch in tracer.launches]
        # By the stream.
        self._handings: dict[Hashable, list[Handing]] = {}
        self._kernels = tuple({id(each.kernel): each.kernel for each in tracer.launches}.values())
        self._of_streams = tracer.of_streams
        self._kept = tracer.kept
        self._results = results
        self._whole = [each.number for each in results or () if each is not None and each.part is None]
        self._as_made = results is not None and len(self._whole) == len(results)
        self._scratch = any(_own_memory(each.compiled) for each in tracer.launches)
        self._knobs = _knobs()

    def is_ready(self) -> bool:
        """Whether the launches are now what they were."""
        return (
            launches_freely(self._gpu)
            and self._knobs == _knobs()
            and not any(map(_has_hooks, self._kernels))
            and not (self._of_streams and torch.cuda.is_current_stream_capturing())
        )

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """Make and launch; what the pass returns."""
        given = [arguments[place] for place in self._places]
        made = [make() for make in self._makers]
        stream = driver.active.get_current_stream(self._gpu)
        addresses = [tensor.data_ptr() for tensor in given]
        addresses += [tensor.data_ptr() for tensor in made]
        key = (self, stream, *addresses)
        launches = _handed.get(key)
        if launches is None:
            launches = self._handed(stream, addresses)
            remember(_handed, key, launches)
        if self._scratch:
            triton.set_allocator(scratch)
        for launch, handed_over in launches:
            launch(*handed_over)
        if self._as_made:
            return tuple([made[number] for number in self._whole])
        return None if self._results is None else tuple(map(partial(_result, made), self._results))

    def _handed(self, stream: int, addresses: Sequence[int]) -> list[tuple[Callable[..., Any], Sequence[Any]]]:
        handings = self._handings.get(stream)
        if handings is None:
            handings = [
                handing(each.compiled, each.programs, stream, _own_memory(each.compiled)) for each in self._launches
            ]
            remember(self._handings, stream, handings)
        everything = [*addresses, *(of_stream(self._gpu, stream).data_ptr() for of_stream in self._of_streams)]
        return [
            (launch, made(arguments.at(everything)))
            for (launch, made), arguments in zip(handings, self._arguments, strict=True)
        ]


def _own_memory(compiled: Any) -> bool:
    """Whether each launch needs memory beside its arguments."""
    return bool(compiled.run.global_scratch_size or compiled.run.profile_scratch_size)


def _knobs() -> tuple[object, ...]:
    """What Triton compiles kernels for beside their arguments."""
    knobs = triton.knobs
    runtime = knobs.runtime
    return runtime.debug, runtime.add_stages_inspection_hook, knobs.compilation.instrumentation_mode


def _result(made: Sequence[torch.Tensor], result: Result | None) -> torch.Tensor | None:
    if result is None:
        return None
    tensor = made[result.number]
    return tensor if result.part is None else tensor.as_strided(*result.part)


class Repeated:
    """Calls of a function that are alike, of which the second is written down.

    `asks`: a tensor among the arguments requires a gradient.
    """

    def __init__(self, function: Pass, arguments: Sequence[Any]) -> None:
        self.asks = any(isinstance(value, torch.Tensor) and value.requires_grad for value in arguments)
        self._function = function
        self._replay: Replay | None = None
        self._calls = 0

    def __call__(self, arguments: Sequence[Any]) -> Any:
        replay = self._replay
        if replay is not None and replay.is_ready():
            return replay(arguments)
        self._calls += 1
        if replay is not None or not 1 < self._calls <= 1 + _TRIES or not _may_trace(arguments):
            return self._function(*arguments)
        return self._trace(arguments)

    def _trace(self, arguments: Sequence[Any]) -> Any:
        places = [place for place, value in enumerate(arguments) if isinstance(value, torch.Tensor)]
        # One tensor may be several arguments: each becomes an object of its own.
        own = [value.detach() if isinstance(value, torch.Tensor) else value for value in arguments]
        with Tracer([own[place] for place in places]) as tracer:
            found = self._function(*own)
            results = None if found is None else tracer.results(found)
        if not tracer.refused:
            self._replay = Replay(tracer, places, results, own)
        elif not tracer.later:
            self._calls += _TRIES
        return found


def _may_trace(arguments: Sequence[Any]) -> bool:
    gpu = next(value for value in arguments if isinstance(value, torch.Tensor)).get_device()
    return gpu >= 0 and launches_freely(gpu) and not torch.cuda.is_current_stream_capturing()


_repeated: dict[Hashable, Repeated] = {}


def repeated(function: Pass, arguments: Sequence[Any]) -> Repeated | None:
    """The calls of a function that are like this one; None where it has no tensors of a GPU, or others too."""
    try:
        known: Repeated | None = answer_of_last(function, arguments)
        if known is not None:
            return known
        key = _key(function, arguments)
        found = None if key is None else _repeated.get(key)
    except (RuntimeError, TypeError):  # a tensor has no shape, no strides or no address, or a value no hash
        return None
    return found if key is None else _remembered(found, key, function, arguments)


def _key(function: Pass, arguments: Sequence[Any]) -> Hashable | None:
    """What calls that are alike have in common; None for tensors of other classes than torch's own."""
    key: list[Hashable] = [function]
    keys_of = torch._C._dispatch_keys
    for value in arguments:
        kind = value.__class__
        if kind in PLAIN_TYPES:
            key.append((
                value.shape, value.stride(), value.dtype, value.device, value.requires_grad, value.data_ptr() & 15,
                keys_of(value).raw_repr(),
            ))  # fmt: skip
        elif kind is list:
            key.append(tuple(value))
        elif kind is float:
            key.append(value.hex())  # 0.0 is equal to -0.0
        elif isinstance(value, torch.Tensor):
            return None
        else:
            key.append(value)
    return tuple(key)


def _remembered(found: Repeated | None, key: Hashable, function: Pass, arguments: Sequence[Any]) -> Repeated | None:
    if found is not None:
        remember_last(function, arguments, found)
    elif _are_of_gpu(arguments):
        found = Repeated(function, arguments)
        remember(_repeated, key, found)
    return found


def _are_of_gpu(arguments: Sequence[Any]) -> bool:
    """Whether these have tensors, each with memory of its own on a GPU."""
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    return bool(tensors) and all(tensor.is_cuda for tensor in tensors) and is_direct(tensors)


def forget_replays() -> None:
    """Have every call find out again what to launch."""
    forget_last()
    _repeated.clear()
    _handed.clear()
