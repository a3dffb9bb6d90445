"""What dropout costs: a pass with it beside the same pass without, and the whole variant without the key.

    python -m flashgen.bench.dropout [SPEC ...] [--p 0.1] [--rounds 7]

All run in shuffled, interleaved rounds of one process. Prints for each problem the milliseconds of forward, and of
forward and backward, at p = 0 and at p, and of the module without dropout where it lies in `generated`; and how many
times the first each is. Records are looked up as ever: tune the variant with its key first.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch

from flashgen.bench.run import on_a_gpu
from flashgen.bench.timing import cuda_timer, interleave
from flashgen.codegen import generate, load_module
from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.dropped import Dropout
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.spec.variant import Variant

FORWARD, BOTH = "forward", "forward and backward"
PROBLEMS = (
    Problem(2, 16, 16, 8192, 8192, 128, 128, "bfloat16"),
    Problem(2, 32, 32, 8192, 8192, 64, 64, "bfloat16"),
    Problem(8, 16, 16, 2048, 2048, 128, 128, "bfloat16"),
)


def passes(module: ModuleType, call: Call, p: float | None) -> dict[str, Callable[[], object]]:
    """Forward alone, and with its backward; p is None of a module without dropout."""
    leaves = [tensor.detach().requires_grad_() for tensor in (call.q, call.k, call.v)]
    keywords = call.keywords | ({} if p is None else Dropout(p).keywords(call.q.device))

    def forward() -> torch.Tensor:
        with torch.no_grad():
            out: torch.Tensor = module.attention(call.q, call.k, call.v, **keywords)
            return out

    d_out = torch.randn_like(forward())
    return {
        FORWARD: forward,
        BOTH: lambda: torch.autograd.grad(module.attention(*leaves, **keywords), leaves, d_out),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m flashgen.bench.dropout", description=__doc__)
    parser.add_argument("specs", nargs="*", default=["variants/causal.yaml"], metavar="SPEC")
    parser.add_argument("--p", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args(arguments)
    return on_a_gpu(lambda: _measure_all(chosen.specs, chosen.p, chosen.rounds))


def _measure_all(specs: Sequence[str], p: float, rounds: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        for path in specs:
            variant = load(path)
            dropping = load_module(generate(replace(variant, dropout=p), Path(folder)))
            for problem in PROBLEMS:
                _measure(variant, dropping, problem, p, rounds)
    return 0


def _measure(variant: Variant, dropping: ModuleType, problem: Problem, p: float, rounds: int) -> None:
    call = make_inputs(variant, problem, "cuda")
    ways = {"p = 0": passes(dropping, call, 0.0), f"p = {p}": passes(dropping, call, p)}
    rendered = variant.module_in("generated")
    if rendered.is_dir():
        ways[f"{rendered}, with its records"] = passes(load_module(rendered), call, None)
    runs = {(way, name): run for way, both in ways.items() for name, run in both.items()}
    found = interleave(runs, cuda_timer(), rounds)
    for name in (FORWARD, BOTH):
        base = found["p = 0", name].median_us
        times = {way: found[way, name].median_us for way in ways}
        texts = [f"{way} {each / 1e3:.3f} ms ({each / base:.3f})" for way, each in times.items()]
        print(f"{variant.name} {problem} {name}: {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
