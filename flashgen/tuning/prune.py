"""Dropping configs before any launch: each is compiled offline in a pool of processes and judged by what came out.

Triton's own cache keeps what was compiled, so the process that measures finds it there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flashgen.analysis.packed import length_along
from flashgen.codegen.rehearsal import Wanted
from flashgen.codegen.words import inner_name
from flashgen.lang.variables import BATCH
from flashgen.problems.problem import Problem
from flashgen.problems.sizes import input_sizes, shape_of
from flashgen.runtime.config import Config
from flashgen.runtime.gpus import shared_limit
from flashgen.runtime.kernels.kernel import SPILL_LIMIT
from flashgen.runtime.registry import kernel_like, kernel_of
from flashgen.spec.variant import Variant
from flashgen.tuning.worker import RequestFailed

# Verdicts on configs that run all the same.
ONLY_SLOW = ("spills", "serialized WGMMA")
# As Triton calls them.
_CACHE_TYPES = {"float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "int8": "i8"}


class Compiled(Protocol):
    """What the compiler says of one config; see `flashgen.codegen.offline`."""

    @property
    def registers(self) -> int | None: ...
    @property
    def spills(self) -> int | None: ...
    @property
    def shared(self) -> int: ...
    @property
    def serialized_wgmma(self) -> bool: ...
    @property
    def error(self) -> str | None: ...


@dataclass(frozen=True)
class CompileRequest:
    """A kernel, as a call on this problem launches it, to compile in one config for a GPU such as "sm_80"."""

    kernel: str
    problem: Problem
    config: Config
    target: str


@dataclass(frozen=True)
class Pruned:
    """The configs that stay, in their order, the verdict on each, empty for a good one, and what each compiled to."""

    kept: tuple[Config, ...]
    verdicts: Mapping[Config, str]
    compiled: Mapping[Config, Compiled]


def compiler(module_path: str, variant: Variant) -> Callable[[CompileRequest | Wanted], Compiled]:
    """Factory of the pool's workers: compiles the kernels of one module."""
    from flashgen.codegen import inputs_summed_by_key
    from flashgen.codegen.offline import compile_kernel, compile_wanted

    path, learned = Path(module_path), bool(inputs_summed_by_key(variant))
    # What measures, and what waits, comes first.
    os.nice(5)

    def answer(request: CompileRequest | Wanted) -> Compiled:
        if isinstance(request, Wanted):
            return compile_wanted(path, request)
        p, strides = request.problem, input_strides(variant, request.problem)
        grouped = p.heads // p.kv_heads
        config = kernel_of(request.kernel, request.config).as_launched(request.config, p.q_len * grouped)
        types, constants = storage_of(p)
        odd = [name for name, stride in strides.items() if stride % 16]
        # Triton takes a 1 as if it stood in the kernel's text.
        ones = (name.split() for name in odd if strides[name] == 1)
        constants |= {f"stride_{inner_name(name)}_{axis}": 1 for name, axis in ones}
        return compile_kernel(
            path, request.kernel, request.target, p.dtype, p.head_dim, p.v_head_dim, config, grouped > 1, odd, learned,
            types=types, constants=constants, packed=p.packed,
        )  # fmt: skip

    return answer


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


def prune(
    configs: Iterable[Config], results: Mapping[Config, Compiled | RequestFailed], capability: str,
    forgiving: bool = False,
) -> Pruned:  # fmt: skip
    """Judge configs by their compilation. What was not compiled, or whose compiling process failed, stays.

    With `forgiving`, and where nothing would stay, those that are only slow stay too: a slow kernel is better than
    none.
    """
    configs = list(configs)
    compiled = {config: found for config, found in results.items() if not isinstance(found, RequestFailed)}
    verdicts = {
        config: verdict(found, capability, kernel_like(config).spill_limit(config)) if found else ""
        for config, found in ((config, compiled.get(config)) for config in configs)
    }
    if not forgiving:
        forgiving = all(verdicts.values())
    kept = [config for config, why in verdicts.items() if not why or (forgiving and why in ONLY_SLOW)]
    return Pruned(tuple(kept), verdicts, compiled)


def verdict(compiled: Compiled, capability: str, most_spills: int = SPILL_LIMIT) -> str:
    """Why a config is not worth a launch; empty if it is."""
    if compiled.error is not None:
        return "does not compile"
    if compiled.shared > shared_limit(capability):
        return "shared memory"
    if compiled.spills is not None and compiled.spills > most_spills:
        return "spills"
    return "serialized WGMMA" if compiled.serialized_wgmma else ""
