"""Triton's interpreter, mended where it departs from the compiler (Triton 3.6 to 3.9).

It has no tl.tensor_descriptor.atomic_add. It keeps bfloat16 values as their 16 bits in integers and multiplies those
integers in tl.dot; what these do not hold of a float32 it cuts off, and the smallest it makes 0. It loses the carry
where a number is rounded to float8, and makes a number of a NaN or an infinity that it reads from one. What no integer
holds of a float it makes whatever the host does. It hands float arguments to a kernel as Python's own, and bools as
integers, so that a comparison of them is no tensor and `~` no negation. It takes the outcome of comparing two floats
for a float when it spreads it over a tile. And it runs one kernel at a time: the position in the grid, and what `tl`
means, are the process's, so that of several threads' each got another's. It parses a kernel's source whatever other
threads parse, which Python 3.11 does not survive. It patches all of `tl` anew for each function that a kernel calls, a
fourth of the time that kernels take, and refuses one whose module does not have it. It asks of each sum of integers
whether it overflows, a third of the time, to tell nobody, and makes its table of dtypes for each look into it. Of what
numbers come to it warns by way of numpy, as where log2 is given 0 or a row has no number, an error for who runs Python
with `-W error`; a GPU is silent.
"""

from __future__ import annotations

import os
from dataclasses import replace
from threading import Lock, RLock
from typing import Any

import triton

from flashgen.runtime.interpreter_language import Language
from flashgen.runtime.interpreter_numbers import (
    add_by_descriptor,
    pass_on_kinds,
    reduce_in_silence,
    round_as_compiled,
    shift_as_compiled,
)
from flashgen.runtime.interpreter_operators import Operators
from flashgen.runtime.interpreter_types import share_dtypes, share_types

# What Triton's module keeps the lock by that a kernel runs under.
_RUNNING = "_flashgen_running"


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


def _lock_for_all(interpreter: Any) -> Any:
    """The lock that a kernel runs under.

    A process is forked between two kernels: the thread that ran one, and would let go of the lock, is not in the child.
    """
    running = vars(interpreter).setdefault(_RUNNING, RLock())
    os.register_at_fork(before=running.acquire, after_in_parent=running.release, after_in_child=running.release)
    return running


def _mend() -> None:
    # Only the interpreter needs numpy.
    import numpy as np
    from triton.runtime import interpreter

    share_dtypes(interpreter)
    # A kernel calls functions of its own thread alone. One lock for all copies of this module: of two, a kernel that
    # was running when a copy came would take the other one last, and all later ones first.
    running = vars(interpreter).get(_RUNNING) or _lock_for_all(interpreter)
    execute = interpreter.GridExecutor.__call__
    operators = Operators(interpreter)
    language = Language(interpreter, operators.members, operators.functions, operators.of_descriptors)
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
    # What it finds goes to `device_assert`, which without `debug` does nothing.
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=options.debug)
    round_as_compiled(interpreter)
    pass_on_kinds(interpreter)
    add_by_descriptor(interpreter)
    shift_as_compiled(interpreter)
    reduce_in_silence(interpreter)
    share_types(interpreter)
