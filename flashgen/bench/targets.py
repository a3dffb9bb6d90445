"""What the built-in configs take of GPUs that are not at hand: kernels compiled for each, and what fits on them.

    python -m flashgen.bench.targets [VARIANT] [--target TARGET ...] [--head-dim N ...]

prints tables of registers a thread, bytes of spills, KiB of shared memory, and how many programs a multiprocessor runs
at once. Needs no GPU. Exit status 1 where a kernel does not compile, or does not fit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from flashgen.codegen import generate
from flashgen.compiling import Compiled, compile_all, jobs_for
from flashgen.ending import reporting
from flashgen.runtime.gpus import GPUS
from flashgen.runtime.registry import TUNED
from flashgen.spec import load

HEAD_DIMS = (64, 128, 256)


def programs_of(compiled: Compiled) -> int | None:
    """How many programs a multiprocessor of the target runs at once; None where its assembler says too little."""
    if compiled.registers is None or compiled.shared is None:
        return None
    unit = GPUS[compiled.job.target].multiprocessor
    return unit.programs_at_once(compiled.warps, compiled.registers, compiled.shared)


def cell(compiled: Compiled) -> str:
    """Registers, spills, shared memory and programs, or what is wrong."""
    if compiled.error is not None:
        return compiled.error
    found = (compiled.registers, compiled.spills, -(-(compiled.shared or 0) // 1024), programs_of(compiled))
    return " / ".join("?" if each is None else str(each) for each in found)


def tables(found: Sequence[Compiled]) -> Iterator[str]:
    """A table for each head dimension: a row for each target, a column for each kernel."""
    for head_dim in dict.fromkeys(compiled.job.head_dim for compiled in found):
        here = [compiled for compiled in found if compiled.job.head_dim == head_dim]
        kernels = list(dict.fromkeys(compiled.job.kernel for compiled in here))
        yield f"| head_dim {head_dim} | {' | '.join(f'`{kernel}`' for kernel in kernels)} |"
        yield "| --- " * (1 + len(kernels)) + "|"
        for target in dict.fromkeys(compiled.job.target for compiled in here):
            cells = {compiled.job.kernel: cell(compiled) for compiled in here if compiled.job.target == target}
            yield f"| {target}: {GPUS[target].name} | {' | '.join(cells[kernel] for kernel in kernels)} |"
        yield ""


@reporting
def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("variant", nargs="?", default="variants/causal.yaml")
    parser.add_argument("--target", action="append", help=f"by default {', '.join(GPUS)}")
    parser.add_argument("--head-dim", action="append", type=int, help=f"by default {', '.join(map(str, HEAD_DIMS))}")
    given = parser.parse_args(arguments)
    variant = replace(load(Path(given.variant)), head_dims=tuple(given.head_dim or HEAD_DIMS))
    with TemporaryDirectory() as folder:
        found = compile_all(generate(variant, Path(folder)), jobs_for(variant, given.target or tuple(GPUS), TUNED))
    print("\n".join(tables(found)))
    return int(any(compiled.error is not None or programs_of(compiled) == 0 for compiled in found))


if __name__ == "__main__":
    sys.exit(main())
