"""Triton's interpreter, made to multiply bfloat16.

It keeps bfloat16 values as their 16 bits in integers and multiplies those integers in tl.dot (Triton 3.6 to 3.9).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import triton
import triton.language as tl


def interpreted() -> bool:
    """Whether kernels run under Triton's interpreter; if they do, bfloat16 products are right from now on."""
    if not triton.knobs.runtime.interpret:
        return False
    _mend_bfloat16_products()
    return True


@lru_cache(maxsize=1)
def _mend_bfloat16_products() -> None:
    # Only the interpreter needs numpy.
    import numpy as np
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    create_dot = builder.create_dot

    def as_float32(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        bits = operand.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def mended(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return create_dot(self, as_float32(a), as_float32(b), *rest)

    builder.create_dot = mended
