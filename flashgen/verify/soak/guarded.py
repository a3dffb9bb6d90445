"""Tensors on a GPU beside pages that are not there: a kernel that reads or writes beyond their end fails at once.

In torch's pool, and in what cudaMalloc gives, there is memory beside a tensor, and what a kernel reads there may never
show. Here a tensor has pages of its own, within addresses that are reserved and have none (CUDA driver API, "Virtual
Memory Management"): it begins with the first of them, or ends with the last.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import cache, wraps
from itertools import count
from types import ModuleType
from typing import Any

import torch

# The functions of a generated module that launch kernels.
_DOORS = ("attention", "attention_varlen", "attention_paged", "plan", "plan_varlen", "plan_paged")
_PINNED, _ON_DEVICE, _READ_AND_WRITE = 1, 1, 3


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _Pages:
    """`size` bytes, rounded up to pages, with as much room in front of them and behind that is no memory."""

    def __init__(self, size: int, device: int) -> None:
        where = _Location(_ON_DEVICE, device)
        properties = _Properties(type=_PINNED, location=where)
        page = ctypes.c_size_t()
        _cuda("cuMemGetAllocationGranularity", ctypes.byref(page), ctypes.byref(properties), 0)
        self.size = -(-size // page.value) * page.value
        room, handle = ctypes.c_uint64(), ctypes.c_uint64()
        reserved = self.size + 2 * page.value
        _cuda(
            "cuMemAddressReserve", ctypes.byref(room), _size(reserved), _size(0), ctypes.c_uint64(0), ctypes.c_uint64(0)
        )
        self.begin = room.value + page.value
        begin = ctypes.c_uint64(self.begin)
        _cuda("cuMemCreate", ctypes.byref(handle), _size(self.size), ctypes.byref(properties), ctypes.c_uint64(0))
        _cuda("cuMemMap", begin, _size(self.size), _size(0), handle, ctypes.c_uint64(0))
        _cuda("cuMemSetAccess", begin, _size(self.size), ctypes.byref(_Access(where, _READ_AND_WRITE)), _size(1))
        free = weakref.finalize(self, _free, device, self.begin, self.size, handle.value, room.value, reserved)
        free.atexit = False  # the driver may have gone by then

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.begin, False), "version": 3}


def with_guards(module: ModuleType, seed: int) -> ModuleType:
    """A generated module whose kernels find all tensors but q, k and v, or the caches, beside pages that are not there.

    The seed says on which side of the first, in turn on the other.
    """
    found = ModuleType(module.__name__)
    vars(found).update(vars(module))
    vars(found).update({name: _guarding(getattr(module, name), seed) for name in _DOORS if hasattr(module, name)})
    return found


def _guarding(function: Callable[..., Any], seed: int) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        sides = count(seed)

        def beside(value: Any) -> Any:
            return _Guarded.apply(value, next(sides) % 2 == 0) if isinstance(value, torch.Tensor) else value

        given = {name: beside(value) for name, value in keywords.items()}
        return function(*arguments[:3], *map(beside, arguments[3:]), **given)

    return call


class _Guarded(torch.autograd.Function):
    """`guarded`, through which gradients go."""

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor, at_end: bool) -> torch.Tensor:
        return guarded(tensor, at_end)

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def guarded(tensor: torch.Tensor, at_end: bool) -> torch.Tensor:
    """The same values with the same strides, in pages of their own: at the end of these, or at their begin."""
    if tensor.numel() == 0:
        return tensor
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    pages = _Pages(elements * tensor.itemsize, tensor.device.index)
    memory = torch.as_tensor(pages, device=tensor.device).view(tensor.dtype)
    first = len(memory) - elements if at_end else 0
    memory[first : first + elements] = tensor.as_strided((elements,), (1,), tensor.storage_offset())
    return memory.as_strided(tensor.shape, tensor.stride(), first)


def _free(device: int, begin: int, size: int, handle: int, room: int, reserved: int) -> None:
    """Give the pages back once no kernel is at work; what belongs to a context that has failed goes with it."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return
    _cuda("cuMemUnmap", ctypes.c_uint64(begin), _size(size))
    _cuda("cuMemRelease", ctypes.c_uint64(handle))
    _cuda("cuMemAddressFree", ctypes.c_uint64(room), _size(reserved))


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _size(number: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(number)


def _cuda(function: str, *arguments: Any) -> None:
    """Call a function of CUDA's driver; RuntimeError where it fails, with what the driver says of it."""
    status = getattr(_driver(), function)(*arguments)
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"{function}: {(text.value or b'').decode()} (CUDA error {status})")
