"""What Triton may tell apart of a kernel's arguments: for those described alike it needs one compiled kernel."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

import torch
import triton

from flashgen.runtime.descriptors import Tiled


def describe_arguments(
    kernel: Any, gpu: int, arguments: Sequence[Any], others: tuple[Hashable, ...]
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
    plain = torch.Tensor
    for value in arguments:
        kind = value.__class__
        if kind is plain or isinstance(value, plain):
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


def flat_arguments(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as the kernel has them, tuples of integers one by one."""
    return tuple(each for value in arguments for each in (value if value.__class__ is tuple else (value,)))
