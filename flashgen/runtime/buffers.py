"""What a pass makes each time that it is repeated, as few tensors as may be.

Each tensor that it returns is made in the form in which it is returned, so it is no view of another. All that it makes
for itself alone, what one kernel leaves for the next, is one tensor: each that is made takes the host a microsecond or
more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch

# Stubs of torch have none of what TorchInductor's code calls.
from torch._C._dynamo.guards import _empty_strided_cpu, _empty_strided_cuda  # type: ignore[attr-defined]

from flashgen.runtime.tracing import Buffer, Result

# Where torch's allocators of GPUs begin a tensor: at multiples of so many bytes.
_ALIGNMENT = 512
_Results = Sequence[Result | None] | None


class Buffers(NamedTuple):
    """Tensors to make, and what a pass returns of them.

    `places` has for each tensor that the pass made which of these it is in now, and how many bytes behind its first.
    """

    buffers: Sequence[Buffer]
    results: _Results
    places: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, buffers: Sequence[Buffer], results: _Results) -> Buffers:
        """For what a pass made and returned."""
        if results is not None:
            buffers, results = _as_returned(buffers, results)
        returned = {each.number for each in results or () if each is not None}
        joined = _joined(buffers, [number for number in range(len(buffers)) if number not in returned])
        others = [number for number in range(len(buffers)) if number not in joined]
        places = {number: (new, 0) for new, number in enumerate(others)}
        places |= {number: (len(others), offset) for number, offset in joined.items()}
        if results is not None:
            results = [each and each._replace(number=places[each.number][0]) for each in results]
        made = [buffers[number] for number in others]
        if joined:
            last = max(joined, key=joined.__getitem__)
            made.append(_bytes(joined[last] + _size(buffers[last]), buffers[last].device))
        return cls(made, results, [places[number] for number in range(len(buffers))])


def maker(buffer: Buffer) -> Callable[[], torch.Tensor]:
    """What makes a tensor on the device at hand, by the function that TorchInductor's code has for it.

    It takes half the time of torch.empty_strided, which looks for a device, a layout and a mode first.
    """
    made = _empty_strided_cpu if buffer.device.type == "cpu" else _empty_strided_cuda
    make: Callable[[], torch.Tensor] = partial(made, buffer.shape, buffer.strides, buffer.dtype)
    return (lambda: make().zero_()) if buffer.zeroed else make


def _joined(buffers: Sequence[Buffer], numbers: Iterable[int]) -> Mapping[int, int]:
    """Where each of these is in one tensor for all: bytes by its number; nothing where that is no fewer tensors."""
    numbers = [number for number in numbers if not buffers[number].zeroed]
    if len(numbers) < 2 or len({buffers[number].device for number in numbers}) > 1:
        return {}
    offsets, end = {}, 0
    for number in numbers:
        offsets[number] = end
        end += -(-_size(buffers[number]) // _ALIGNMENT) * _ALIGNMENT
    return offsets


def _size(buffer: Buffer) -> int:
    """Bytes from a tensor's first element to behind its last."""
    if not all(buffer.shape):
        return 0
    last = sum((length - 1) * stride for length, stride in zip(buffer.shape, buffer.strides, strict=True))
    return (last + 1) * buffer.dtype.itemsize


def _bytes(size: int, device: torch.device) -> Buffer:
    return Buffer((size,), (1,), torch.uint8, device, zeroed=False)


def _as_returned(buffers: Sequence[Buffer], results: Sequence[Result | None]) -> tuple[Sequence[Buffer], _Results]:
    """Buffers in the form in which all of each is returned, where that is another one."""
    buffers, results = list(buffers), list(results)
    numbers = [each.number for each in results if each is not None]
    for place, result in enumerate(results):
        if result is None or result.part is None or numbers.count(result.number) > 1:
            continue
        shape, strides, offset = result.part
        buffer = buffers[result.number]
        whole = offset == 0 and math.prod(shape) == math.prod(buffer.shape)
        if whole and _is_dense(buffer.shape, buffer.strides) and _is_dense(shape, strides):
            buffers[result.number] = buffer._replace(shape=shape, strides=strides)
            results[place] = Result(result.number, None)
    return buffers, results


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor has each element of its memory once."""
    size = 1
    for stride, length in sorted(zip(strides, shape, strict=True)):
        if length != 1 and stride != size:
            return False
        size *= length
    return True
