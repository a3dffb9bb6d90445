"""Train a small byte-level GPT with generated attention and with eager attention, from the same seed, and compare.

    python examples/gpt.py [--costs] [SPEC ...]

The text is this repository's own source. Another run computes the eager formula in a wider dtype, which stands for
exact arithmetic: how far the eager run strays from it, and eager runs whose q, k and v are rounded at random, is the
noise of the dtype, and generated attention must not stray much further. Prints losses, distances, step times and
peak memory; exit status 1 where a curve strays. At the end a table has the last two for compiled FlexAttention and,
where it has the variant, torch's cuDNN attention too. With --costs there is the table alone.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import flashgen
from flashgen.bench.peers import peers
from flashgen.bench.run import first_line
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.spec.variant import Variant

ROOT = Path(__file__).resolve().parent.parent
SPECS = (ROOT / "variants/causal.yaml", ROOT / "variants/alibi.yaml", ROOT / "examples/local_softcap.yaml")
WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}

# Training magnifies errors, by a factor that differs from run to run: a run may stray this much further than the
# furthest of the eager ones, of which so many are rounded at random.
NOISE = 2.0
ROUNDED = 2

# Steps of a run that shows a step's time alone, unless --steps says less; the first ones compile.
TIMED = 100

HEADER = ("variant", "attention", "step, ms", "peak memory, MiB")

# Of q, k and v [batch, heads, context, head_dim], and whatever else a model passes on to each layer.
Attend = Callable[..., Tensor]


@dataclass(frozen=True)
class Settings:
    """The model, the batches [batch, context] and the training; q, k and v are in `dtype`, parameters in float32."""

    layers: int = 6
    width: int = 384
    heads: int = 6
    context: int = 1024
    batch: int = 8
    steps: int = 200
    learning_rate: float = 1e-3
    warm_up: int = 20
    seed: int = 0
    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"

    @property
    def problem(self) -> Problem:
        """What attention has to do in a layer."""
        dim = self.width // self.heads
        dtype = str(self.dtype).removeprefix("torch.")
        return Problem(self.batch, self.heads, self.heads, self.context, self.context, dim, dim, dtype)


@dataclass(frozen=True)
class Run:
    """One training: the loss of each step in nats a byte, the median step in ms, the most memory in MiB (GPU only)."""

    losses: Tensor
    step_ms: float
    peak_mib: float

    @property
    def cost(self) -> tuple[str, str]:
        return f"{self.step_ms:.1f}", f"{self.peak_mib:.0f}"

    @property
    def resolution(self) -> float:
        """Of a loss itself, a float32."""
        return torch.finfo(torch.float32).eps * self.losses.abs().max().item()

    def distance(self, other: Run) -> float:
        """The root mean square difference of two loss curves."""
        return (self.losses - other.losses).square().mean().sqrt().item()


@dataclass(frozen=True)
class Comparison:
    """Runs of one variant from the same seed; `rounded` are eager ones with a rounding more, at random."""

    name: str
    generated: Run
    eager: Run
    exact: Run
    rounded: tuple[Run, ...]

    @property
    def agree(self) -> bool:
        distance = self.generated.distance(self.exact)
        noise = max(run.distance(self.exact) for run in (self.eager, *self.rounded))
        return math.isfinite(distance) and distance <= NOISE * max(noise, self.exact.resolution)

    def __str__(self) -> str:
        lines = [f"{self.name}: the curves {'agree' if self.agree else 'DO NOT AGREE'}"]
        for label, run in (("generated", self.generated), ("eager", self.eager)):
            lines.append(
                f"  {label}: loss {run.losses[0]:.4f} to {run.losses[-1]:.4f}, "
                f"from the exact curve {run.distance(self.exact):.1e}"
            )
        return "\n".join(lines)


class Block(nn.Module):
    """Attention and a feed-forward layer, each normalised before and added after (GPT-2)."""

    def __init__(self, settings: Settings, attend: Attend) -> None:
        super().__init__()
        width = settings.width
        self.heads, self.attend = settings.heads, attend
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        qkv = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = (tensor.transpose(1, 2) for tensor in qkv.unbind(2))  # [batch, heads, context, head_dim]
        x = x + self.out(self.attend(q, k, v, *more).transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """Logits of the next byte, [batch, context, 256].

    `positions` [batch, context] are those of the bytes, 0, 1, 2, ... by default; attention gets `more` in each layer.
    """

    def __init__(self, settings: Settings, attend: Attend) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, settings.width)
        self.positions = nn.Parameter(torch.zeros(settings.context, settings.width))
        self.blocks = nn.Sequential(*(Block(settings, attend) for _ in range(settings.layers)))
        self.head = nn.Sequential(nn.LayerNorm(settings.width), nn.Linear(settings.width, 256, bias=False))

    def forward(self, text: Tensor, positions: Tensor | None = None, *more: Any) -> Tensor:
        places = self.positions[: text.shape[1]] if positions is None else self.positions[positions]
        x = self.bytes(text) + places
        for block in self.blocks:
            x = block(x, *more)
        return self.head(x)


def corpus() -> Tensor:
    """The repository's documents and source, as one row of bytes."""
    paths = [ROOT / "README.md", *sorted((ROOT / "flashgen").rglob("*.py")), *sorted((ROOT / "variants").iterdir())]
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in paths)), dtype=torch.uint8).long()


def train(attend: Attend, text: Tensor, settings: Settings) -> Run:
    """Train on the text from the seed, with AdamW; the batches are the same whatever the attention."""
    torch.manual_seed(settings.seed)
    on_gpu = settings.device.startswith("cuda")
    draw = torch.Generator().manual_seed(settings.seed)
    model = GPT(settings, attend).to(settings.device)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    losses, times = [], []
    for step in range(settings.steps):
        starts = torch.randint(len(text) - settings.context, (settings.batch, 1), generator=draw)
        rows = text[starts + torch.arange(settings.context + 1)].to(settings.device)
        start = time.perf_counter()
        loss = train_step(partial(model, rows[:, :-1]), rows[:, 1:], optimizer, settings, step)
        losses.append(loss.item())  # waits for the GPU
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else math.nan
    return Run(torch.tensor(losses, dtype=torch.float64), 1e3 * statistics.median(times), peak)


def train_step(
    forward: Callable[[], Tensor], targets: Tensor, optimizer: torch.optim.Optimizer, settings: Settings, number: int
) -> Tensor:
    """Step `number` from the logits of `forward` to new weights, at a rate that grows in the first ones; the loss."""
    optimizer.param_groups[0]["lr"] = settings.learning_rate * min(1.0, (number + 1) / settings.warm_up)
    with torch.autocast(settings.device, settings.dtype, enabled=settings.dtype != torch.float32):
        logits = forward()
    loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def rounded(attend: Attend) -> Attend:
    """The same of q, k and v with a rounding more, at random."""

    def attend_rounded(q: Tensor, k: Tensor, v: Tensor, *more: Any) -> Tensor:
        ulp = torch.finfo(q.dtype).eps
        return attend(*(tensor * (1 + ulp * (torch.rand_like(tensor) - 0.5)) for tensor in (q, k, v)), *more)

    return attend_rounded


def compare(module: ModuleType, settings: Settings) -> Comparison:
    """Train with the module's attention, with its reference, and with its reference in a wider dtype."""

    def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast(settings.device, enabled=False):
            return module.reference(*(tensor.to(WIDER[q.dtype]) for tensor in (q, k, v))).to(q.dtype)

    text = corpus()
    attends = (module.attention, module.reference, exact, *[rounded(module.reference)] * ROUNDED)
    generated, eager, wide, *others = (train(attend, text, settings) for attend in attends)
    return Comparison(module.IDENTITY.variant, generated, eager, wide, tuple(others))


def costs(module: ModuleType, variant: Variant, settings: Settings) -> Iterator[tuple[str, ...]]:
    """Each attention by name, and what a step costs with it in a short run, or why it does not run here."""
    text, short = corpus(), replace(settings, steps=min(TIMED, settings.steps))
    ours = {"generated": module.attention, "eager": module.reference}
    for name, attend in {**ours, **peers(variant, settings.problem, settings.device)}.items():
        try:
            yield variant.name, name, *train(attend, text, short).cost
        except RuntimeError as error:
            if name in ours:
                raise
            yield variant.name, name, f"not here: {first_line(error)}", ""


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("specs", nargs="*", type=Path, default=SPECS, metavar="SPEC")
    parser.add_argument("--out", default="generated", help="folder of the generated modules")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--costs", action="store_true", help="only the table of what a step costs")
    arguments = parser.parse_args()
    settings = Settings(steps=arguments.steps)
    if not torch.cuda.is_available():
        parser.error("found no GPU; expected one that torch can use: `flashgen doctor` says what is missing")
    # A module names its spec as it was given: the gallery's stay as they are.
    modules = {
        spec: flashgen.build(os.path.relpath(spec), out=arguments.out, verify=False, compile=False, tune=False)
        for spec in arguments.specs
    }
    agree = True
    for module in () if arguments.costs else modules.values():
        comparison = compare(module, settings)
        print(comparison, flush=True)
        agree = agree and comparison.agree
    print("\n".join(map(row, (HEADER, ("---",) * len(HEADER)))))
    for spec, module in modules.items():
        for cells in costs(module, load(spec), settings):
            print(row(cells), flush=True)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
