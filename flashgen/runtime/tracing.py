"""What a pass does on the host, written down while it does it: the tensors that it makes, the kernels that it launches.

A pass decides what to launch from the shapes of tensors, never from what is in them. So calls that are alike make and
launch the same each time, at other addresses: what was written down once is repeated by `runtime/replay.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import local
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashgen.runtime.descriptors import HasAddress, Tiled

# Where tensors come from: the arguments of a pass, what it makes, and what each stream of a GPU has for itself.
GIVEN, MADE, OF_STREAM = "given", "made", "of stream"
# Makes the last, of a GPU and a stream.
OfStream = Callable[[int, int], torch.Tensor]


class Buffer(NamedTuple):
    """A tensor that a pass makes; with `zeroed` it holds zeros, else nothing yet."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    zeroed: bool


class Place(NamedTuple):
    """Where a tensor begins: `offset` bytes behind the first of the tensor of this number and origin."""

    origin: str
    number: int
    offset: int


class TiledPlace(NamedTuple):
    """Where a tensor that is seen by tiles begins."""

    place: Place
    tiled: Tiled


class Launch(NamedTuple):
    """A launch. `arguments` are as the compiled kernel takes them, places instead of addresses and tensors by tiles."""

    kernel: Any
    compiled: Any
    programs: int
    arguments: tuple[Any, ...]


class Result(NamedTuple):
    """A tensor that a pass returns: one that it makes, or the part of it of this shape, strides and offset."""

    number: int
    part: tuple[tuple[int, ...], tuple[int, ...], int] | None


class _OfThread(local):
    tracer: Tracer | None = None


_now = _OfThread()
_aten = torch.ops.aten
_EMPTY = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
_ZEROS = {_aten.zeros, _aten.zeros_like, _aten.new_zeros}


def current_tracer() -> Tracer | None:
    """What writes down what this thread does, if anything does."""
    return _now.tracer


class Tracer(TorchDispatchMode):
    """Writes down what happens within its block.

    `tensors` are the arguments of the pass, each an object of its own. `refused` says why it cannot be repeated, ""
    where it can; where that is for `later`, it is worth another try.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """What torch asks: to keep torch.compile off this class it would import all of that, which takes a second.

        Where it compiles nothing passes here: within modes it leaves frames alone.
        """
        return False

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.buffers: list[Buffer] = []
        self.of_streams: list[OfStream] = []
        self.launches: list[Launch] = []
        self.refused = ""
        self.later = False
        # What launches read at one address for ever.
        self.kept: list[torch.Tensor] = []
        # By a tensor's id, which is its own as long as the tensor is here.
        self._places: dict[int, tuple[torch.Tensor, Place | int]] = {}
        for number, tensor in enumerate(tensors):
            self._know(tensor, Place(GIVEN, number, 0))

    def __enter__(self) -> Tracer:
        _now.tracer = self
        super().__enter__()
        return self

    def __exit__(self, *about: Any) -> None:
        _now.tracer = None
        super().__exit__(*about)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in _EMPTY or packet in _ZEROS:
            self._know(found, Place(MADE, len(self.buffers), 0))
            self.buffers.append(Buffer(tuple(found.shape), found.stride(), found.dtype, found.device, packet in _ZEROS))
        elif func.is_view:
            for view in found if isinstance(found, (list, tuple)) else [found]:
                self._view(args[0], view)
        else:
            self.refuse(f"it calls {func}")
        return found

    def _know(self, tensor: torch.Tensor, place: Place | int) -> None:
        self._places[id(tensor)] = tensor, place

    def _view(self, base: torch.Tensor, view: torch.Tensor) -> None:
        _, place = self._places.get(id(base), (base, None))
        if isinstance(place, Place):
            self._know(view, place._replace(offset=place.offset + view.data_ptr() - base.data_ptr()))
        else:
            self.refuse("it takes a part of a tensor of unknown origin")

    def refuse(self, why: str, later: bool = False) -> None:
        """The pass cannot be repeated."""
        self.refused, self.later = self.refused or why, later

    def of_stream(self, tensor: torch.Tensor, made_by: OfStream) -> None:
        """Have a tensor taken for what each stream has for itself."""
        self._know(tensor, Place(OF_STREAM, len(self.of_streams), 0))
        self.of_streams.append(made_by)

    def constant(self, tensor: torch.Tensor) -> None:
        """Have a tensor taken for one that is the same in all calls that are alike."""
        self.kept.append(tensor)
        self._know(tensor, tensor.data_ptr())

    def launched(self, kernel: Any, compiled: Any, programs: int, arguments: Sequence[Any]) -> None:
        """Write a launch down; tensors are among its arguments as such."""
        if kernel.pre_run_hooks:
            self.refuse("its kernel has hooks", later=True)
        self.launches.append(Launch(kernel, compiled, programs, tuple(map(self._placed, arguments))))

    def _placed(self, argument: Any) -> Any:
        if isinstance(argument, Tiled):
            place = self._place(argument.base)
            return TiledPlace(place, argument) if isinstance(place, Place) else place
        return self._place(argument) if isinstance(argument, torch.Tensor) else argument

    def _place(self, tensor: HasAddress) -> Place | int | None:
        _, place = self._places.get(id(tensor), (None, None))
        if place is None:
            self.refuse("a kernel reads a tensor of unknown origin")
        return place

    def results(self, found: Sequence[torch.Tensor | None]) -> list[Result | None]:
        """What the pass returned, of what it made; a tensor that is returned in another form has that from now on."""
        return [None if tensor is None else self._result(tensor) for tensor in found]

    def _result(self, tensor: torch.Tensor) -> Result | None:
        place = self._place(tensor)
        if not isinstance(place, Place) or place.origin != MADE:
            self.refuse("it returns a tensor that it has not made")
            return None
        buffer = self.buffers[place.number]
        form = tuple(tensor.shape), tensor.stride()
        if form == (buffer.shape, buffer.strides):
            return Result(place.number, None)
        return Result(place.number, (*form, int(tensor.storage_offset())))
