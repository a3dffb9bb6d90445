"""What dropout costs: a pass with it beside the same pass without, and the whole variant without the key.

    python -m flashgen.bench.dropout [SPEC ...] [--p 0.1] [--rounds 7]

All run in shuffled, interleaved rounds of one process. Prints for each problem the milliseconds of forward, and of
forward and backward, at p = 0 and at p, and of the module without dropout where it lies in `generated`; and how many
times the first each is. Records are looked up as ever: tune the variant with its key first.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch

from flashgen.bench.timing import cuda_timer, interleave
from flashgen.codegen import generate, load_module
from flashgen.problems import Call, Problem, make_inputs
from flashgen.spec import load
from flashgen.spec.variant import Variant

FORWARD, BOTH = "forward", "forward and backward"
PROBLEMS = (
    Problem(2, 16, 16, 8192, 8192, 128, 128, "bfloat16"),
    Problem(2, 32, 32, 8192, 8192, 64, 64, "bfloat16"),
    Problem(8, 16, 16, 2048, 2048, 128, 128, "bfloat16"),
)


def passes(module: ModuleType, call: Call, p: float) -> dict[str, Callable[[], object]]:
    """Forward alone, and with its backward."""
    leaves = [tensor.detach().requires_grad_() for tensor in (call.q, call.k, call.v)]
    seed = torch.zeros((), dtype=torch.int64, device=call.q.device)
    d_out = torch.randn_like(module.attention(call.q, call.k, call.v, **call.keywords, dropout_p=0))

    def forward() -> object:
        with torch.no_grad():
            return module.attention(call.q, call.k, call.v, **call.keywords, dropout_p=p, dropout_seed=seed)

    def both() -> object:
        out = module.attention(*leaves, **call.keywords, dropout_p=p, dropout_seed=seed)
        return torch.autograd.grad(out, leaves, d_out)

    return {FORWARD: forward, BOTH: both}


def plain_passes(module: ModuleType, call: Call) -> dict[str, Callable[[], object]]:
    """The same of a module without dropout."""
    leaves = [tensor.detach().requires_grad_() for tensor in (call.q, call.k, call.v)]
    d_out = torch.randn_like(module.attention(call.q, call.k, call.v, **call.keywords))

    def forward() -> object:
        with torch.no_grad():
            return module.attention(call.q, call.k, call.v, **call.keywords)

    def both() -> object:
        return torch.autograd.grad(module.attention(*leaves, **call.keywords), leaves, d_out)

    return {FORWARD: forward, BOTH: both}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m flashgen.bench.dropout", description=__doc__)
    parser.add_argument("specs", nargs="*", default=["variants/causal.yaml"], metavar="SPEC")
    parser.add_argument("--p", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for path in chosen.specs:
            variant = load(path)
            dropping = load_module(generate(replace(variant, dropout=chosen.p), Path(folder)))
            for problem in PROBLEMS:
                _measure(variant, dropping, problem, chosen.p, chosen.rounds)


def _measure(variant: Variant, dropping: ModuleType, problem: Problem, p: float, rounds: int) -> None:
    call = make_inputs(variant, problem, "cuda")
    ways = {"p = 0": passes(dropping, call, 0.0), f"p = {p}": passes(dropping, call, p)}
    rendered = variant.module_in("generated")
    if rendered.is_dir():
        ways[f"{rendered}, with its records"] = plain_passes(load_module(rendered), call)
    runs = {(way, name): run for way, both in ways.items() for name, run in both.items()}
    found = interleave(runs, cuda_timer(), rounds)
    for name in (FORWARD, BOTH):
        base = found["p = 0", name].median_us
        times = {way: found[way, name].median_us for way in ways}
        texts = [f"{way} {each / 1e3:.3f} ms ({each / base:.3f})" for way, each in times.items()]
        print(f"{variant.name} {problem} {name}: {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
