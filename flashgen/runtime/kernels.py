"""Launching Triton kernels, the second time without Triton's own inspection of the arguments.

`kernel[grid](...)` finds the compiled kernel that fits the arguments anew on each call, which takes longer than all
else that a call of attention() does on the host. `launch` keeps what was found under a description of the arguments
that is at least as fine as what Triton compiles for: a description seen before needs the same kernel.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
import triton
from triton.compiler import CompiledKernel
from triton.runtime import driver

from flashgen.runtime.memory import remember

# A call's description -> its compiled kernel, the values of the kernel's compile-time arguments, and the kernel's
# source, kept alive because the description has its id.
_found: dict[Hashable, tuple[CompiledKernel, tuple[Any, ...], object]] = {}


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """kernel[(programs,)](*arguments, **constants) on the GPU of the first argument, a tensor.

    `arguments` are tensors, tensor descriptors made on the host, numbers and None; `constants` are the compile-time
    arguments, which the kernel has last, and the launch options.
    """
    device = arguments[0].device
    if device.type != "cuda":
        kernel[(programs,)](*arguments, **constants)
    elif torch.cuda.current_device() == device.index:
        _launch_here(kernel, programs, device.index, arguments, constants)
    else:
        with torch.cuda.device(device):
            _launch_here(kernel, programs, device.index, arguments, constants)


def _launch_here(kernel: Any, programs: int, index: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
    triton.set_allocator(_scratch)
    description = _describe(kernel, index, arguments, constants)
    found = _found.get(description)
    if found is None or kernel.pre_run_hooks:
        compiled = kernel[(programs,)](*arguments, **constants)
        _remember(description, kernel, compiled, arguments, constants)
    else:
        compiled, values, _ = found
        stream = driver.active.get_current_stream(index)
        compiled[(programs, 1, 1)](*arguments, *values, stream=stream)


def _describe(kernel: Any, index: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> tuple[object, ...]:
    """All that Triton may compile a kernel of its own for.

    Of an integer Triton asks whether it is 1, a multiple of 16, and within 32 bits: small ones stand for themselves,
    others for those with the same last six bits.
    """
    knobs = triton.knobs
    return (
        id(kernel), index, knobs.runtime.debug, knobs.runtime.add_stages_inspection_hook,
        knobs.compilation.instrumentation_mode, *constants, *constants.values(),
        *[
            _trait(value) if value.__class__ is not int else value & 63 | 64 if 64 <= value < 2**31 else value
            for value in arguments
        ],
    )  # fmt: skip


def _trait(value: Any) -> object:
    """What Triton may tell apart of an argument that is no integer."""
    kind = value.__class__
    if isinstance(value, torch.Tensor):
        return value.dtype if value.data_ptr() % 16 == 0 else (value.dtype,)
    if kind is float:
        return float
    if value is None or kind is bool:
        return kind, value
    if hasattr(value, "block_shape"):  # a tensor descriptor made on the host
        rest = [each for name, each in vars(value).items() if name not in ("base", "shape", "strides")]
        return kind, value.base.dtype, *[tuple(each) if isinstance(each, list) else each for each in rest]
    raise TypeError(f"an argument of a kernel is {kind.__name__}; expected a tensor, a number, a descriptor or None")


def _remember(
    description: tuple[object, ...], kernel: Any, compiled: object, arguments: tuple[Any, ...],
    constants: dict[str, Any],
) -> None:  # fmt: skip
    # On AMD Triton also looks at the size of a tensor's memory; a kernel with hooks wants to be launched by itself.
    if not isinstance(compiled, CompiledKernel) or torch.version.hip or kernel.pre_run_hooks:
        return
    values = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
    remember(_found, description, (compiled, values, kernel))


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Where kernels put the descriptors that TMA reads."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
