"""FlexAttention's mods through `flashgen.flex.flex_attention` beside torch's own, compiled: the same call of both.

    python -m flashgen.bench.mods [MOD ...] [--rounds 5]

Each mod runs in a process of its own whose caches, Triton's, torch's and flashgen's, are empty: the first calls,
forward and then backward, are timed there; then both in shuffled, interleaved rounds, forward and backward apart.
Nothing is tuned. Prints a line for each mod and the geometric means.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean

from flashgen import processes
from flashgen.bench.candidates import FLASHGEN, FLEX
from flashgen.bench.known_mods import MODS, learned
from flashgen.bench.passes import BACKWARD, FORWARD, gradients_run
from flashgen.bench.run import on_a_gpu
from flashgen.bench.timing import cuda_timer, interleave
from flashgen.problems.problem import Problem

PROBLEM = Problem(2, 16, 16, 8192, 8192, 128, 128, "bfloat16")
# Of one mod, both compiled, in seconds.
LIMIT = 240.0


@dataclass(frozen=True)
class Measured:
    """Of one mod: seconds until the first results of each were there, and microseconds of a pass, by who and pass."""

    first: dict[str, float]
    passes: dict[str, float]

    def ratio(self, step: str) -> float:
        """How many times as fast as FlexAttention a pass is."""
        return self.passes[f"{FLEX} {step}"] / self.passes[f"{FLASHGEN} {step}"]


def measure(name: str, problem: Problem, rounds: int) -> Measured:
    """Time flashgen and FlexAttention on a mod, in this process, whose caches are taken to be empty."""
    import torch
    from torch._functorch import config as compilation
    from torch.nn.attention import flex_attention as of_torch

    from flashgen.flex import flex_attention

    # The backward pass runs many times.
    compilation.donated_buffer = False
    # What torch imports to compile anything is no part of a mod's first call.
    torch.compile(lambda x: x + 1)(torch.zeros(1, device="cuda"))
    score, mask = MODS[name](problem, "cuda")
    blocks = mask and of_torch.create_block_mask(mask, None, None, problem.q_len, problem.kv_len, device="cuda")
    shape = (problem.batch, problem.heads, problem.q_len, problem.head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    compiled: Callable = torch.compile(of_torch.flex_attention, dynamic=False)
    first, runs, outs = {}, {}, {}
    for who, attend in ((FLASHGEN, flex_attention), (FLEX, compiled)):
        run = _call(attend, (q, k, v), score, blocks)
        for step in (FORWARD, BACKWARD):
            start = time.perf_counter()
            runs[f"{who} {step}"] = timed = gradients_run(step, run, (q, k, v, *learned(score)), shape)
            outs[who, step] = timed()
            torch.cuda.synchronize()
            first[f"{who} {step}"] = time.perf_counter() - start
    for step in (FORWARD, BACKWARD):
        for one, other in zip(outs[FLASHGEN, step], outs[FLEX, step], strict=True):
            error = float((one.float() - other.float()).norm() / other.float().norm())
            if not error < 0.02:
                raise RuntimeError(f"{name}, {step}: they differ by {error:.2g} in norm")
    found = interleave(runs, cuda_timer(), rounds)
    return Measured(first, {key: timing.median_us for key, timing in found.items()})


def _call(attend: Callable, qkv: Sequence[object], score: Callable | None, blocks: object) -> Callable:
    return lambda: attend(*qkv, score_mod=score, block_mask=blocks)


def in_a_process_of_its_own(name: str, rounds: int) -> Measured | str:
    """`measure` in a process of its own with empty caches, or how that ended instead."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            "FLASHGEN_CACHE_DIR": str(Path(folder) / "flashgen"),
            "TRITON_CACHE_DIR": str(Path(folder) / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor"),
        }
        line = processes.command("flashgen.bench.mods", "--here", name, "--rounds", str(rounds))
        try:
            ran = subprocess.run(
                line, env=processes.environment() | caches, capture_output=True, text=True, check=False, timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            return f"not done after {LIMIT:.0f} s"
    if ran.returncode:
        return (ran.stderr.strip().splitlines() or ["no message"])[-1]
    return Measured(**json.loads(ran.stdout.splitlines()[-1]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a mod could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m flashgen.bench.mods", description=__doc__)
    parser.add_argument("mods", nargs="*", metavar="MOD", help=f"of {', '.join(MODS)}; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    unknown = [name for name in given.mods if name not in MODS]
    if unknown:
        parser.error(f"unknown mods {unknown}; expected some of {list(MODS)}")
    if given.here:
        print(json.dumps(asdict(measure(given.mods[0], PROBLEM, given.rounds))))
        return 0
    return on_a_gpu(lambda: _print_table(given.mods or list(MODS), given.rounds))


def _print_table(names: Sequence[str], rounds: int) -> int:
    print(f"{PROBLEM}\n\n| mod | forward, us | FlexAttention | times | backward, us | FlexAttention | times "
          "| first calls, s | FlexAttention |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |")  # fmt: skip
    found = []
    for name in names:
        measured = in_a_process_of_its_own(name, rounds)
        print(_row(name, measured), flush=True)
        found += [] if isinstance(measured, str) else [measured]
    if found:
        means = (f"{step} {geometric_mean([each.ratio(step) for each in found]):.2f}" for step in (FORWARD, BACKWARD))
        print(f"\ntimes as fast, geometric means of {len(found)}: {', '.join(means)}")
    return int(len(found) < len(names))


def _row(name: str, measured: Measured | str) -> str:
    if isinstance(measured, str):
        return f"| {name} | {measured} |"
    cells = [name]
    for step in (FORWARD, BACKWARD):
        both = (f"{measured.passes[f'{who} {step}']:.0f}" for who in (FLASHGEN, FLEX))
        cells += [*both, f"{measured.ratio(step):.2f}"]
    cells += [
        " + ".join(f"{measured.first[f'{who} {step}']:.1f}" for step in (FORWARD, BACKWARD)) for who in (FLASHGEN, FLEX)
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
