"""Numbers in Triton's interpreter: rounded and shifted as compiled kernels do it, and tests that stay tests."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

# What a shift by too many bits gives: neither 0 nor -1, for which a test might hope.
_NO_SHIFT = 0x5A5A5A5A5A5A5A5A


def round_as_compiled(interpreter: Any) -> None:
    """Have the interpreter multiply and cast numbers of each dtype as a GPU does."""
    # Only the interpreter needs numpy.
    import numpy as np

    builder = interpreter.InterpreterBuilder
    create_dot, create_fp_to_fp, cast = builder.create_dot, builder.create_fp_to_fp, builder.cast_impl
    torch_float8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}

    def as_float32(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        bits = operand.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return create_dot(self, as_float32(a), as_float32(b), *rest)

    def to_float(self: Any, value: Any, dtype: Any, rounding: Any) -> Any:
        source, target = torch_float8.get(value.dtype.scalar), torch_float8.get(dtype.scalar)
        if source is not None:
            exact = torch.from_numpy(np.ascontiguousarray(value.data)).view(source).to(torch.float32)
            value = interpreter.TensorHandle(exact.numpy(), tl.float32)
            return value if dtype.scalar == tl.float32 else self.create_fp_to_fp(value, dtype, rounding)
        if target is None or value.dtype.scalar != tl.float32:
            return create_fp_to_fp(self, value, dtype, rounding)
        rounded = torch.from_numpy(np.ascontiguousarray(value.data)).to(target).view(torch.uint8)
        return interpreter.TensorHandle(rounded.numpy(), dtype.scalar)

    def cast_nearest(self: Any, value: Any, dtype: Any) -> Any:
        if dtype.scalar == tl.float32:
            value = as_float32(value)
        if value.data.dtype.kind == "f" and dtype.scalar.is_int_signed():
            return interpreter.TensorHandle(as_integers(value.data, interpreter._get_np_dtype(dtype)), dtype.scalar)
        if dtype.scalar != tl.bfloat16 or value.dtype.scalar != tl.float32:
            return cast(self, value, dtype)
        rounded = torch.from_numpy(np.ascontiguousarray(value.data)).to(torch.bfloat16).view(torch.uint16)
        return interpreter.TensorHandle(rounded.numpy(), tl.bfloat16)

    builder.create_dot, builder.create_fp_to_fp, builder.cast_impl = dot, to_float, cast_nearest


def pass_on_kinds(interpreter: Any) -> None:
    """Have the interpreter keep bools bools, and Python's floats float32."""
    import numpy as np

    builder, convert = interpreter.InterpreterBuilder, interpreter._implicit_cvt
    create_splat = builder.create_splat

    def splat(self: Any, block: Any, operand: Any) -> Any:
        is_test = operand.data.dtype == np.bool_
        return create_splat(self, block, interpreter.TensorHandle(operand.data, tl.int1) if is_test else operand)

    def argument(value: Any) -> Any:
        if not isinstance(value, (bool, float)):
            return convert(value)
        dtype, kind = (np.bool_, tl.int1) if isinstance(value, bool) else (np.float32, tl.float32)
        return tl.tensor(interpreter.TensorHandle(np.array([value], dtype), kind), kind)

    builder.create_splat, interpreter._implicit_cvt = splat, argument


def add_by_descriptor(interpreter: Any) -> None:
    """Have a descriptor's atomic_add of floats, the only reduction that kernels here ask for, where Triton has none."""
    from triton._C.libtriton import ir as _ir

    def reduce_into(self: Any, kind: Any, descriptor: Any, value: Any, indices: Any) -> None:
        addresses, mask = descriptor.materialize_pointers(indices)
        self.create_atomic_rmw(_ir.ATOMIC_OP.FADD, addresses, value, mask, _ir.MEM_SEMANTIC.RELAXED, None)

    builder = interpreter.InterpreterBuilder
    if not hasattr(builder, "create_descriptor_reduce"):
        builder.create_descriptor_reduce = reduce_into


def reduce_in_silence(interpreter: Any) -> None:
    """Have the largest and the smallest of a row without numbers be none, as on a GPU, without a warning."""
    import numpy as np

    min_max, silent = interpreter.ReduceOps.min_max, {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}

    def reduced(self: Any, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        return min_max(self, input, silent.get(val_reduce_op, val_reduce_op), idx_reduce_op)

    interpreter.ReduceOps.min_max = reduced


def shift_as_compiled(interpreter: Any) -> None:
    """Have a shift of the interpreter be wrong, not only on a GPU, where its count is its operand's width or more."""
    import numpy as np

    def bounded(create: Any) -> Any:
        def shift(self: Any, operand: Any, count: Any) -> Any:
            shifted = create(self, operand, count)
            beyond = (count.data < 0) | (count.data >= 8 * operand.data.dtype.itemsize)
            if not beyond.any():
                return shifted
            wrong = np.array(_NO_SHIFT).astype(shifted.data.dtype)
            return interpreter.TensorHandle(np.where(beyond, wrong, shifted.data), shifted.dtype)

        return shift

    builder = interpreter.InterpreterBuilder
    for name in ("create_shl", "create_lshr", "create_ashr"):
        setattr(builder, name, bounded(getattr(builder, name)))


def as_integers(data: Any, dtype: Any) -> Any:
    """An array of floats, rounded toward zero, in a signed integer dtype, as GPUs have it (PTX ISA, cvt).

    The nearest integer where it does not fit; of NaN the least of 64 bits, and 0 of fewer.
    """
    import numpy as np

    held = np.iinfo(dtype)
    fits = np.abs(data) < 2.0 ** (held.bits - 1)
    of_nan = held.min if held.bits == 64 else 0
    nearest = np.where(data > 0, held.max, np.where(data < 0, held.min, of_nan))
    return np.where(fits, np.where(fits, data, 0).astype(dtype), nearest.astype(dtype))
