"""Compiling the kernels of a generated module for GPUs that are not at hand, and reading what the assembler says.

Needs neither a GPU nor a driver, but a process in which Triton does not interpret.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from packaging.version import Version
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.cache import triton_key

from flashgen.codegen.assembler import assembler
from flashgen.codegen.compilation import Compilation
from flashgen.codegen.compile_lock import compile_lock
from flashgen.codegen.cubin import may_double_words
from flashgen.codegen.launchers import make_launcher
from flashgen.codegen.loading import load_module
from flashgen.codegen.ptx import joined_negations
from flashgen.codegen.rehearsal import Wanted
from flashgen.codegen.sass import disassembled, doubled_words
from flashgen.errors import UsageError
from flashgen.runtime.device.rounding import compiled_with
from flashgen.runtime.kernels.kernel import HelperKernel
from flashgen.runtime.kernels.schedule import schedules


@dataclass(frozen=True)
class Resources:
    """What a kernel takes on a target: registers a thread, bytes of spills a thread and of shared memory a program.

    `serialized_wgmma` says that the assembler gave up on overlapping matrix products (its warning C7512).
    `registers` and `spills` are None where the target's assembler does not tell. `error` is the compiler's complaint.
    `warps` are those of a program, with what a kernel starts beside the launch's own.
    `lost_negations` counts what `joined_negations` finds in the kernel's PTX.
    """

    registers: int | None
    spills: int | None
    shared: int
    serialized_wgmma: bool
    seconds: float
    error: str | None = None
    lost_negations: int = 0
    warps: int = 0


def compile_kernel(path: Path, asked: Compilation) -> Resources:
    """Compile a kernel of the generated module at `path`.

    What a launch needs beside it is compiled too, the kernel that makes schedules for these tiles and the one that
    brings dQ into its order: an error of either is reported, the resources are those of the kernel itself.
    """
    module, record, config = _loaded(Path(path)), asked.record, asked.config
    types = asked.types_of(module.IDENTITY.arguments)
    if asked.makes_ready is not None:
        return _compile_helper(module, asked, asked.makes_ready, types)
    kernel, unaligned = getattr(module, record.function), asked.unaligned
    sums = {name for name in kernel.arg_names if re.fullmatch(r"d_\w+_ptr", name)} - {*types}
    types |= dict.fromkeys(sums, "*fp32")
    found = _compile(kernel, asked.target, types, asked.constants_of(sums), record.options(config), unaligned)
    for helper in (*record.helpers(config), *schedules(config)):
        if found.error is None and hasattr(module, helper.function):
            other = _compile_helper(module, asked, helper, types)
            if other.error is not None:
                return other
            found = replace(found, lost_negations=found.lost_negations + other.lost_negations)
    return found


def _compile_helper(
    module: ModuleType, asked: Compilation, helper: HelperKernel, types: Mapping[str, str]
) -> Resources:  # fmt: skip
    constants = {**asked.helper_constants, **helper.constants}
    kernel = getattr(module, helper.function)
    return _compile(kernel, asked.target, types, constants, helper.options, asked.unaligned)


def compile_wanted(path: Path, wanted: Wanted) -> Resources:
    """Compile a kernel that a rehearsal of the module at `path` noted: in Triton's cache its launch finds it, and its
    launcher."""
    module = importlib.import_module(wanted.module) if wanted.module else _loaded(Path(path))
    kernel = getattr(module, wanted.kernel)
    found = json.loads(wanted.specialization)
    constants, attributes = (
        dict(zip(map(tuple, found[f"{what}_keys"]), found[f"{what}_vals"], strict=True))
        for what in ("constant", "attrs")
    )
    source = source_of(kernel, found["signature"], constants, attributes)
    # JSON has no tuples.
    launched = {name: tuple(value) if isinstance(value, list) else value for name, value in found["options"].items()}
    return _compiled(source, wanted.target, launched, for_launch=True)


def get_ready(path: Path | None = None) -> None:
    """Do once what each compilation takes, for the processes that will be forked from this one: make Triton's own
    digest, for which it reads all of itself, and load the module at `path`."""
    triton_key()
    if path is not None:
        _loaded(Path(path))


@functools.lru_cache(maxsize=8)
def _loaded(path: Path) -> ModuleType:
    return load_module(path)


def gpu_target(target: str) -> GPUTarget:
    """Triton's name for a target; UsageError for one that it has no compiler for."""
    if re.fullmatch(r"sm_\d{2,3}", target):
        return GPUTarget("cuda", int(target[3:]), 32)
    if re.fullmatch(r"gfx[0-9a-f]{3,4}", target):
        return GPUTarget("hip", target, 64 if target.startswith("gfx9") else 32)
    raise UsageError(f"no target {target!r}; expected one such as sm_80 or gfx942")


def _compile(
    kernel: Any, target: str, types: Mapping[str, str], constants: Mapping[str, int | None],
    launched: Mapping[str, Any], unaligned: Collection[str],
) -> Resources:  # fmt: skip
    source = source_of(kernel, *_signature(kernel, types, constants, unaligned))
    return _compiled(source, target, {**compiled_with(kernel), **launched})


def _compiled(source: ASTSource, target: str, launched: Mapping[str, Any], for_launch: bool = False) -> Resources:
    """What came of a compilation. `for_launch`: its launcher is made too, and what Triton's cache has is not assembled
    again for the assembler's report."""
    start = time.perf_counter()
    try:
        with _assembler_log() as log:
            with compile_lock(source, gpu_target(target), launched):
                compiled = triton.compile(source, target=gpu_target(target), options=dict(launched))
            if for_launch:
                make_launcher(compiled)
            elif "ptx" in compiled.asm and "registers" not in log.getvalue():
                _assemble(source, gpu_target(target), launched, compiled)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the compiler's errors have no common class
        return Resources(None, None, 0, False, time.perf_counter() - start, _complaint(error))
    registers, spills, serialized = _assembler_report(compiled.asm, log.getvalue())
    seconds = time.perf_counter() - start
    if wrong := wrong_sums(compiled.asm, target):
        return Resources(registers, spills, compiled.metadata.shared, serialized, seconds, wrong)
    lost, warps = len(joined_negations(compiled.asm.get("ptx", ""))), compiled.metadata.num_warps
    return Resources(registers, spills, compiled.metadata.shared, serialized, seconds, lost_negations=lost, warps=warps)


def wrong_sums(asm: Mapping[str, Any], target: str) -> str:
    """What the assembler is known to have got wrong in machine code for a target; empty where that is nothing."""
    used = assembler(target)
    if used is None or not used.doubles_words or "cubin" not in asm:
        return ""
    # `doubled_words` finds nothing without WGMMA.
    if "wgmma" not in asm["ptx"] or not may_double_words(asm["cubin"]):
        return ""
    found = doubled_words(disassembled(asm["cubin"]))
    return f"ptxas {used.version} has got a sum of 64 bits wrong: {found[0]}" if found else ""


def _assemble(source: ASTSource, target: GPUTarget, launched: Mapping[str, Any], compiled: Any) -> None:
    """Triton's own last stage once more: with other flags than Triton's the assembler spills other registers."""
    backend, stages = make_backend(target), dict[str, Callable[..., bytes]]()
    backend.add_stages(stages, backend.parse_options({**launched, **source.parse_options()}), source.language)
    stages["cubin"](compiled.asm["ptx"], compiled.metadata._asdict())


def _complaint(error: BaseException) -> str:
    """The last line of the innermost error: those around it only show where it was called from."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return lines[-1] if lines else type(error).__name__


def source_of(kernel: Any, *signature: Any) -> ASTSource:
    """What Triton compiles: a kernel for the types, constants and attributes of its arguments."""
    return (GluonASTSource if kernel.is_gluon() else ASTSource)(kernel, *signature)


@contextlib.contextmanager
def _assembler_log() -> Iterator[io.StringIO]:
    """What NVIDIA's assembler says within the block, which Triton prints: nothing for what is in Triton's cache."""
    with triton.knobs.nvidia.scope(), contextlib.redirect_stdout(io.StringIO()) as log:
        triton.knobs.nvidia.dump_ptxas_log = True
        yield log


def _signature(
    kernel: Any, types: Mapping[str, str], constants: Mapping[str, int | None], unaligned: Collection[str]
) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int, ...], list]]:
    """Types, constants, and what is a multiple of 16, as of contiguous tensors, for each argument of a kernel."""
    signature: dict[str, str] = {}
    aligned: dict[tuple[int, ...], list] = {}
    for position, name in enumerate(kernel.arg_names):
        signature[name] = "constexpr" if name in constants else types.get(name, "i32")
        asked = not kernel.params[position].do_not_specialize
        of_16 = name.startswith("stride_") or (asked and name in ("head_dim", "v_head_dim"))
        if signature[name].startswith("*") or (of_16 and signature[name] != "constexpr" and name not in unaligned):
            aligned[(position,)] = [["tt.divisibility", 16]]
        elif _has_no_attribute(kernel.params[position], signature[name]):
            # Triton's cache tells "nothing is known of it" from "not asked".
            aligned[(position,)] = []
    return signature, {name: value for name, value in constants.items() if name in signature}, aligned


def _has_no_attribute(parameter: Any, kind: str) -> bool:
    """Whether a launch asks what is known of this argument, though there is nothing."""
    if kind == "constexpr":
        return Version(triton.__version__) >= Version("3.7")
    return kind in ("i32", "i64") and not parameter.do_not_specialize


def _assembler_report(asm: Mapping[str, Any], log: str) -> tuple[int | None, int | None, bool]:
    """Registers, bytes of spills, and whether WGMMA was serialized. `log` is what NVIDIA's assembler said."""
    if "amdgcn" in asm:
        registers = _number(r"\.vgpr_count:\s+(\d+)", asm["amdgcn"])
        spilled = _number(r"\.vgpr_spill_count:\s+(\d+)", asm["amdgcn"])
        return registers, None if spilled is None else 4 * spilled, False
    registers = _number(r"Used (\d+) registers", log)
    spills = None if registers is None else sum(map(int, re.findall(r"(\d+) bytes spill stores", log)))
    return registers, spills, "C7512" in log or "erializ" in log


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return None if found is None else int(found[1])
