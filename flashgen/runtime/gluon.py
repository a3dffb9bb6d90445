"""Where versions of Gluon, Triton's language of layouts and barriers, differ."""

from __future__ import annotations

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon.language._core import builtin, shared_memory_descriptor
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as TensorDescriptor
from triton.language import core

# Classes of values of a kernel, with methods that are functions of the kernel.
aggregate = getattr(gluon, "aggregate", None) or core._aggregate
# Global memory to shared memory by TMA, by its name before and after Triton 3.7.
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
# The way back.
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
# Shared memory as tiles of another dtype, shape and layout.
reinterpret = getattr(shared_memory_descriptor, "reinterpret", None) or shared_memory_descriptor._reinterpret


@builtin
def _tma_add(tensor_desc, coord, src, _semantic=None):  # type: ignore[no-untyped-def]
    """Adds shared memory to global memory by TMA. Gluon has it from Triton 3.7 on; its builder had it before."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


tma_add = getattr(tma, "async_atomic_add", None) or _tma_add
