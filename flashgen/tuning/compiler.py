"""What a process of the compilers' pool answers with: a kernel of a module compiled as a call would have it."""

from __future__ import annotations

import math
import os
from pathlib import Path

from flashgen.analysis.packed import length_along
from flashgen.codegen import inputs_summed_by_key
from flashgen.codegen.compilation import Compilation
from flashgen.codegen.offline import compile_kernel, compile_wanted, get_ready
from flashgen.codegen.rehearsal import Wanted
from flashgen.codegen.words import mangled_name
from flashgen.lang.variables import BATCH
from flashgen.problems.problem import Problem
from flashgen.problems.sizes import input_sizes, shape_of
from flashgen.runtime.registry import kernel_of
from flashgen.spec.variant import Variant
from flashgen.tuning.prune import Compiled, CompileRequest

# As Triton calls them.
_CACHE_TYPES = {"float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "int8": "i8"}


def compiler(module_path: str, variant: Variant) -> Compiler:
    """Factory of the pool's workers: compiles the kernels of one module, which need not be there yet."""
    # What measures, and what waits, comes first.
    os.nice(5)
    get_ready()
    return Compiler(Path(module_path), variant)


class Compiler:
    """Compiles the kernels of one module for each request."""

    def __init__(self, path: Path, variant: Variant) -> None:
        self._path, self._variant = path, variant
        self._learned = bool(inputs_summed_by_key(variant))

    def prepare(self) -> None:
        """Do what every compilation needs done once, for the processes that are forked from this one."""
        get_ready(self._path)

    def __call__(self, request: CompileRequest | Wanted) -> Compiled:
        if isinstance(request, Wanted):
            return compile_wanted(self._path, request)
        p, strides = request.problem, input_strides(self._variant, request.problem)
        grouped = p.heads // p.kv_heads
        config = kernel_of(request.kernel, request.config).as_launched(request.config, p.q_len * grouped)
        types, constants = storage_of(p)
        odd = [name for name, stride in strides.items() if stride % 16]
        # Triton takes a 1 as if it stood in the kernel's text.
        ones = (name.split() for name in odd if strides[name] == 1)
        constants |= {f"stride_{mangled_name(name)}_{axis}": 1 for name, axis in ones}
        wanted = Compilation(
            request.kernel, request.target, p.dtype, p.head_dim, p.v_head_dim, config, grouped > 1, odd, self._learned,
            types=types, constants=constants, packed=p.packed,
        )  # fmt: skip
        return compile_kernel(self._path, wanted)


def storage_of(problem: Problem) -> tuple[dict[str, str], dict[str, int | None]]:
    """The types and the constants of a kernel that follow from a problem's cache; none where keys lie in no pages."""
    if not problem.block_size:
        return {}, {}
    types = {"cu_seqlens_q_ptr": "*i32"} if problem.q_len > 1 else {}
    if problem.cache:
        types |= dict.fromkeys(("k_ptr", "v_ptr"), f"*{_CACHE_TYPES[problem.cache]}")
        types |= dict.fromkeys(("k_scale_ptr", "v_scale_ptr"), "*fp32")
    return types, {"BLOCK_SIZE": problem.block_size}


def input_strides(variant: Variant, problem: Problem) -> dict[str, int]:
    """The strides of a problem's inputs, "doc 0" for the first of `doc`: Triton asks which are 1 or multiples of 16.

    A packed input has no axis of sequences: what kernels count by along these are tokens.
    """
    sizes = input_sizes(variant, problem)
    found: dict[str, int] = {}
    for tensor in variant.inputs:
        names = [dim.size for dim in tensor.dims]
        length = length_along(tensor) if problem.packed else None
        whole = zip(names, shape_of(tensor, sizes), strict=True)
        shape = [1 if length and name is BATCH else size for name, size in whole]
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        if length:
            strides[names.index(BATCH)] = strides[names.index(length)]
        found |= {f"{tensor.name} {axis}": stride for axis, stride in enumerate(strides[:-1])}
    return found
