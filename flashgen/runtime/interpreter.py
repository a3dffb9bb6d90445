"""Triton's interpreter, mended where it departs from the compiler (Triton 3.6 to 3.9).

It has no tl.tensor_descriptor.atomic_add. It keeps bfloat16 values as their 16 bits in integers and multiplies those
integers in tl.dot; what these do not hold of a float32 it cuts off, and the smallest it makes 0. It loses the carry
where a number is rounded to float8. It hands float arguments to a kernel as Python's own, and bools as integers, so
that a comparison of them is no tensor and `~` no negation. It takes the outcome of comparing two floats for a float
when it spreads it over a tile. And it runs one kernel at a time: the position in the grid, and what `tl` means, are the
process's, so that of several threads' each got another's. It parses a kernel's source whatever other threads parse,
which Python 3.11 does not survive. It patches all of `tl` anew for each function that a kernel calls, a fourth of the
time that kernels take, and refuses one whose module does not have it. It asks of each sum of integers whether it
overflows, a third of the time, to tell nobody, and makes its table of dtypes for each look into it. Of what numbers
come to it warns by way of numpy, as where log2 is given 0, an error for who runs Python with `-W error`; a GPU is
silent.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Lock, RLock
from typing import Any

import torch
import triton
import triton.language as tl

from flashgen.runtime.interpreter_language import Language
from flashgen.runtime.interpreter_operators import Operators
from flashgen.runtime.interpreter_types import share_types


def interpreted() -> bool:
    """Whether kernels run under Triton's interpreter; if they do, they run as compiled ones from now on."""
    if not triton.knobs.runtime.interpret:
        return False
    if not _mended:
        with _mending:
            if not _mended:
                _mend()
                _mended.append(True)
    return True


_mended: list[bool] = []
_mending = Lock()


def _mend() -> None:
    # Only the interpreter needs numpy.
    import numpy as np
    from triton._C.libtriton import ir as _ir
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    create_dot, create_splat, convert = builder.create_dot, builder.create_splat, interpreter._implicit_cvt
    create_fp_to_fp, cast = builder.create_fp_to_fp, builder.cast_impl
    torch_float8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}

    def as_float32(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        bits = operand.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return create_dot(self, as_float32(a), as_float32(b), *rest)

    def to_float(self: Any, value: Any, dtype: Any, rounding: Any) -> Any:
        target = torch_float8.get(dtype.scalar)
        if target is None or value.dtype.scalar != tl.float32:
            return create_fp_to_fp(self, value, dtype, rounding)
        rounded = torch.from_numpy(np.ascontiguousarray(value.data)).to(target).view(torch.uint8)
        return interpreter.TensorHandle(rounded.numpy(), dtype.scalar)

    def cast_nearest(self: Any, value: Any, dtype: Any) -> Any:
        if dtype.scalar == tl.float32:
            value = as_float32(value)
        if dtype.scalar != tl.bfloat16 or value.dtype.scalar != tl.float32:
            return cast(self, value, dtype)
        rounded = torch.from_numpy(np.ascontiguousarray(value.data)).to(torch.bfloat16).view(torch.uint16)
        return interpreter.TensorHandle(rounded.numpy(), tl.bfloat16)

    def splat(self: Any, block: Any, operand: Any) -> Any:
        is_test = operand.data.dtype == np.bool_
        return create_splat(self, block, interpreter.TensorHandle(operand.data, tl.int1) if is_test else operand)

    def argument(value: Any) -> Any:
        if not isinstance(value, (bool, float)):
            return convert(value)
        dtype, kind = (np.bool_, tl.int1) if isinstance(value, bool) else (np.float32, tl.float32)
        return tl.tensor(interpreter.TensorHandle(np.array([value], dtype), kind), kind)

    def reduce_into(self: Any, kind: Any, descriptor: Any, value: Any, indices: Any) -> None:
        """A descriptor's atomic_add of floats, the only reduction that kernels here ask for."""
        addresses, mask = descriptor.materialize_pointers(indices)
        self.create_atomic_rmw(_ir.ATOMIC_OP.FADD, addresses, value, mask, _ir.MEM_SEMANTIC.RELAXED, None)

    np_dtype_of, np_dtypes = interpreter._get_np_dtype, dict[str, Any]()

    def np_dtype(dtype: Any) -> Any:
        scalar = dtype.scalar
        if scalar.name not in np_dtypes:
            np_dtypes[scalar.name] = np_dtype_of(scalar)
        return np_dtypes[scalar.name]

    interpreter._get_np_dtype = np_dtype

    # A kernel calls functions of its own thread alone. Where a copy of this module has put another lock around it,
    # every thread takes both in the same order.
    running, execute = RLock(), interpreter.GridExecutor.__call__
    operators = Operators(interpreter)
    language = Language(interpreter, operators.members, operators.functions)
    rewrite = interpreter.FunctionRewriter.rewrite_ast

    def rewrite_alone(self: Any) -> Any:
        with running:
            return rewrite(self)

    def alone(self: Any, *arguments: Any, **named: Any) -> Any:
        with running, np.errstate(all="ignore"):
            language.begin()
            return execute(self, *arguments, **named)

    interpreter.GridExecutor.__call__ = alone
    interpreter._patch_lang, interpreter._patch_attr = language.patch, language.patch_builtin
    interpreter.FunctionRewriter.rewrite_ast = rewrite_alone
    builder.create_dot, builder.create_splat, builder.create_fp_to_fp = dot, splat, to_float
    builder.cast_impl = cast_nearest
    if not hasattr(builder, "create_descriptor_reduce"):
        builder.create_descriptor_reduce = reduce_into
    interpreter._implicit_cvt = argument
    # What it finds goes to `device_assert`, which without `debug` does nothing.
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=options.debug)
    share_types(interpreter)
