"""How long a call keeps the host busy, which is what a call costs where the GPU is waiting for work.

    python -m flashgen.bench.host causal alibi

prints microseconds of a call, forward and with its backward pass, beside FlexAttention's compiled call. The problem is
so small that the GPU is done before the host asks again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from flashgen.bench.candidates import FLASHGEN, FLEX, prepare
from flashgen.bench.passes import BOTH, FORWARD, run_of, trainable
from flashgen.bench.run import on_a_gpu
from flashgen.bench.timing import Run, interleave
from flashgen.codegen import generate, load_module
from flashgen.codegen.pairwise import SIZES, make
from flashgen.gallery import resolve
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.spec.variant import Variant

SMALL = Problem(1, 2, 2, 128, 128, 64, 64, "bfloat16")
# Fewer than a stream queues, so that the host never waits for the GPU.
CALLS = 100


def host_timer(run: Run) -> float:
    """Microseconds until a call returns, the GPU idle at first, mean of some calls in a row."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        run()
    end = time.perf_counter()
    torch.cuda.synchronize()
    return (end - start) / CALLS * 1e6


def host_times(
    variant: Variant, step: str, candidates: Sequence[str] = (FLASHGEN, FLEX), rounds: int = 15
) -> Mapping[str, float]:
    """Host microseconds of each candidate's call, medians of interleaved rounds after a warm-up."""
    import torch

    with TemporaryDirectory() as folder:
        module = load_module(generate(variant, Path(folder)))
    call = make_inputs(variant, SMALL, "cuda")
    call = call if step == FORWARD else trainable(variant, call)
    pairwise = make(variant, {name: getattr(SMALL, name) for name in SIZES}, call.keywords)
    runs: dict[str, Callable[[], object]] = {}
    for name in candidates:
        forward = prepare(name, variant, module, SMALL, call, pairwise, step)
        runs[name] = run_of(step, forward, variant, call)
    with torch.set_grad_enabled(step != FORWARD):
        for run in runs.values():
            host_timer(run)
        return {name: timing.median_us for name, timing in interleave(runs, host_timer, rounds).items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for variants of the gallery or files; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m flashgen.bench.host", description=__doc__)
    usual = ["causal", "alibi"]
    parser.add_argument("specs", nargs="*", default=usual, metavar="SPEC", help=f"by default {' and '.join(usual)}")
    given = parser.parse_args(arguments)
    return on_a_gpu(lambda: _print_table(given.specs))


def _print_table(specs: Sequence[str]) -> int:
    print(f"{'microseconds on the host':30} {FLASHGEN:>10} {FLEX:>14}")
    for spec in specs:
        path = resolve(spec)
        for step in (FORWARD, BOTH):
            times = host_times(load(path), step)
            print(f"{path.stem + ', ' + step:30} {times[FLASHGEN]:10.1f} {times[FLEX]:14.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
