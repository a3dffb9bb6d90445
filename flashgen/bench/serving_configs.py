"""Which configs decode fastest, dense and from a paged cache: the grid behind the built-in ones.

    python -m flashgen.bench.serving_configs [--variant full] [--only TEXT] [--rounds N] [--best N] [--out DIR]

For each workload of `flashgen.bench.serving` the fastest configs, the one that a call takes by itself, cuDNN where it
has such a call, and a copy on the device, in shuffled rounds of one process; medians. Needs a GPU and a rendered
variant; takes about two minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import ModuleType

from triton.runtime.errors import OutOfResources

from flashgen.bench.run import on_a_gpu
from flashgen.bench.serving import (
    COPY,
    CUDNN,
    KV_HEADS,
    Run,
    Workload,
    dense_tensors,
    graph,
    lines,
    paged_call,
    replays_us,
    runs,
    workloads,
)
from flashgen.bench.timing import interleave
from flashgen.codegen import load_module
from flashgen.runtime.config import Config
from flashgen.runtime.forward_pass import decoded
from flashgen.runtime.own_arguments import prepare_own
from flashgen.tuning.timing import Timing

# What the call takes by itself.
BY_ITSELF = "by itself"


def grid(work: Workload) -> Iterator[Config]:
    """What is tried: tiles of as many rows as there are, of up to 128."""
    rows = work.q_len * (work.heads // KV_HEADS)
    for BN, num_warps, num_stages in product((64, 128), (4, 8), (2, 3, 4)):
        yield Config(128 if rows >= 128 and num_warps == 8 else 64, BN, num_warps, num_stages)


def candidates(work: Workload, module: ModuleType) -> dict[str, Run]:
    """What to time; configs that do not fit the GPU are left out."""
    others = runs(work, {BY_ITSELF: module})
    found = {name: run for name, run in others.items() if name in (BY_ITSELF, CUDNN, COPY)}
    make = _maker(work, module)
    for config in grid(work):
        try:
            found[config.label] = graph(make(config))
        except OutOfResources:
            continue
    return found


def _maker(work: Workload, module: ModuleType) -> Callable[[Config], Run]:
    """What makes a call of each config."""
    if work.block_size:
        paged = paged_call(work)
        return lambda config: paged.run(module, config)
    call = prepare_own(module.VARIANT, *dense_tensors(work), None, (), {})
    return lambda config: lambda: decoded(module.VARIANT, call, config)


def fastest(times: Mapping[str, Timing], count: int) -> dict[str, Timing]:
    """What the configs are held against, and the best of them, in this order."""
    others = {name: time for name, time in times.items() if name in (BY_ITSELF, CUDNN, COPY)}
    tried = sorted((name for name in times if name not in others), key=lambda name: times[name].median_us)
    return others | {name: times[name] for name in tried[:count]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--variant", default="full", help="one without inputs")
    parser.add_argument("--only", default="", help="the workloads whose names contain this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--best", type=int, default=4, help="how many configs of each workload are shown")
    parser.add_argument("--out", type=Path, default=Path("generated"), help="where the rendered variants are")
    given = parser.parse_args(arguments)
    return on_a_gpu(lambda: _measure(given))


def _measure(given: argparse.Namespace) -> int:
    module = load_module(given.out / given.variant)
    for work in workloads():
        if given.only in work.name:
            times = interleave(candidates(work, module), replays_us, given.rounds)
            print("\n".join(lines(work, fastest(times, given.best))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
