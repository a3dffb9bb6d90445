"""Where the elements of a descriptor's tile lie, in Triton's interpreter: what follows from sizes alone is kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_ADDRESSES = 2**64


def tile_places(descriptor: Any, begins: Sequence[int]) -> tuple[Any, Any]:
    """The addresses of a descriptor's tile that begins there, and which of them lie in its tensor."""
    import numpy as np

    sizes, lengths = (*descriptor.block_shape,), [length.data.item() for length in descriptor.shape]
    width = descriptor.base.dtype.element_ty.primitive_bitwidth // 8
    assert begins[-1] * width % 16 == 0, "block offset start must be 16-byte aligned"
    steps = (*(width * stride.data.item() for stride in descriptor.strides),)
    first = descriptor.base.data.item() + sum(step * begin for step, begin in zip(steps, begins, strict=True))
    addresses = _distances(sizes, steps) + np.uint64(first % _ADDRESSES)
    if all(begin >= 0 and begin + size <= n for begin, size, n in zip(begins, sizes, lengths, strict=True)):
        return addresses, _everywhere(sizes)
    inside = np.ones(1, bool)
    for place, begin, length in zip(_along(sizes), begins, lengths, strict=True):
        inside = inside & (place >= -begin) & (place < length - begin)
    return addresses, inside


@lru_cache(maxsize=256)
def _distances(sizes: tuple[int, ...], steps: tuple[int, ...]) -> Any:
    """In bytes, from the first element of a tile."""
    import numpy as np

    places = zip(_along(sizes), steps, strict=True)
    return sum((place * step for place, step in places), np.zeros(sizes, np.int64)).astype(np.uint64)


@lru_cache(maxsize=256)
def _everywhere(sizes: tuple[int, ...]) -> Any:
    import numpy as np

    shown = np.ones(sizes, bool)
    shown.flags.writeable = False
    return shown


@lru_cache(maxsize=256)
def _along(sizes: tuple[int, ...]) -> list[Any]:
    """The places in each dimension, spread along it."""
    import numpy as np

    return [np.arange(size).reshape([-1 if each == dim else 1 for each in range(len(sizes))])
            for dim, size in enumerate(sizes)]  # fmt: skip
