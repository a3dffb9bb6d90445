"""Train a GPT of 12 layers, 768 wide, on documents packed into rows of 4096 bytes, with several kinds of attention.

    python examples/gpt_packed.py [--steps 300] [ATTENTION ...]
    torchrun --nproc-per-node 2 examples/gpt_packed.py

On each GPU that torchrun starts it on it has a share of the batch, by DistributedDataParallel; the model is compiled.
The text is this repository's own, a file a document; a token sees the tokens before it in its own document. The
attentions: `generated` is variants/document.yaml with a plan a step, `packed` variants/causal.yaml through
attention_varlen, `sdpa` torch's with a mask, `flex` compiled FlexAttention with a block mask. Prints for each the loss,
tokens a second over all GPUs and the most memory of one, and how far its curve is from sdpa's beside how far sdpa's own
is where q, k and v are rounded at random; exit status 1 where a curve strays.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.functional import scaled_dot_product_attention

import flashgen
from gpt import GPT, NOISE, ROOT, Attend, Run, Settings, rounded, row, train_step

HEADER = ("attention", "loss", "tokens/s", "peak memory, MiB", "from sdpa's curve")
LARGE = Settings(layers=12, width=768, heads=12, context=4096, batch=4, steps=300, learning_rate=6e-4)
# Steps that compile, and are not timed.
WARM_UP = 5


@dataclass(frozen=True)
class Attention:
    """`prepare(doc)` makes once a step what `attend(q, k, v, *prepared)` takes in each layer.

    doc [batch, context] int32, on the CPU: the document of each token. q, k, v [batch, heads, context, head_dim].
    """

    prepare: Callable[[Tensor], tuple[Any, ...]]
    attend: Attend


def documents() -> list[Tensor]:
    """The repository's documents and source, a row of bytes for each file."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "flashgen").rglob("*.py"))]
    texts = [path.read_bytes() for path in paths]
    return [torch.frombuffer(bytearray(text), dtype=torch.uint8).long() for text in texts if len(text) > 1]


def packed_rows(files: Sequence[Tensor], batch: int, context: int, draw: torch.Generator) -> tuple[Tensor, ...]:
    """Rows of documents from random places on: text [batch, context + 1], doc and positions [batch, context]."""
    text = torch.zeros(batch, context + 1, dtype=torch.int64)
    doc, positions = torch.zeros_like(text), torch.zeros_like(text)
    for one in range(batch):
        filled = number = 0
        while filled <= context:
            file = files[int(torch.randint(len(files), (), generator=draw))]
            piece = file[int(torch.randint(len(file), (), generator=draw)) :][: context + 1 - filled]
            end = filled + len(piece)
            text[one, filled:end], doc[one, filled:end] = piece, number
            positions[one, filled:end] = torch.arange(len(piece))
            filled, number = end, number + 1
    return text, doc[:, :-1].int(), positions[:, :-1]


def begins(doc: Tensor) -> Tensor:
    """Where each packed document begins, and the end of all: cu_seqlens int32. Documents without a token make their
    number a power of two: a model is compiled for few of these, and each costs a kernel some time.
    """
    first = torch.ones_like(doc, dtype=torch.bool)
    first[:, 1:] = doc[:, 1:] != doc[:, :-1]
    places = first.flatten().nonzero().flatten()
    empty = (1 << (len(places) - 1).bit_length()) - len(places)
    return torch.cat([places, places.new_full((empty + 1,), doc.numel())]).int()


def attentions(settings: Settings, folder: str) -> dict[str, Attention]:
    """Each kind by its name."""
    document, causal = (
        flashgen.build(
            os.path.relpath(ROOT / f"variants/{name}.yaml"), out=folder, verify=False, compile=False, tune=False
        )
        for name in ("document", "causal")
    )
    shape = (settings.batch, settings.heads, settings.context, settings.width // settings.heads)
    like = torch.empty(shape, dtype=settings.dtype, device=settings.device, requires_grad=True)
    most = settings.context

    def of_tokens(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1)

    def packed(q: Tensor, k: Tensor, v: Tensor, ends: Tensor) -> Tensor:
        out = causal.attention_varlen(*map(of_tokens, (q, k, v)), ends, ends, most, most)
        return out.unflatten(0, (q.shape[0], -1)).transpose(1, 2)

    def planned(doc: Tensor) -> tuple[Any, ...]:
        doc = doc.to(settings.device)
        return doc, document.plan(like, like, like, doc=doc)

    def visible(doc: Tensor) -> tuple[Tensor]:
        doc = doc.to(settings.device)
        return (((doc[:, :, None] == doc[:, None]).tril())[:, None],)

    return {
        "generated": Attention(
            planned,
            lambda q, k, v, doc, plan: document.attention(q, k, v, doc=doc, plan=plan),
        ),
        "packed": Attention(lambda doc: (begins(doc).to(settings.device),), packed),
        "sdpa": Attention(visible, lambda q, k, v, mask: scaled_dot_product_attention(q, k, v, attn_mask=mask)),
        "flex": _flex(settings),
    }


def _flex(settings: Settings) -> Attention:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # One mask_mod for all steps: the model is compiled for what it is.
    held = torch.zeros(settings.batch, settings.context, dtype=torch.int32, device=settings.device)

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (held[b, q] == held[b, k])

    def prepare(doc: Tensor) -> tuple[Any, ...]:
        held.copy_(doc)
        return (create_block_mask(seen, settings.batch, None, settings.context, settings.context, settings.device),)

    return Attention(prepare, lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask))


def train(attention: Attention, settings: Settings, backend: str = "inductor") -> tuple[Run, float]:
    """Train from the seed, each process with rows of its own; the run, and tokens a second over all of them."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(settings.seed)
    torch._dynamo.reset()
    model: nn.Module = GPT(settings, attention.attend).to(settings.device)
    step = torch.compile(nn.parallel.DistributedDataParallel(model) if world > 1 else model, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    files, draw = documents(), torch.Generator().manual_seed(settings.seed * world + rank)
    on_gpu = settings.device.startswith("cuda")
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    losses, times = [], []
    for number in range(settings.steps):
        text, doc, positions = packed_rows(files, settings.batch, settings.context, draw)
        start = perf_counter()
        text, positions = text.to(settings.device), positions.to(settings.device)
        forward = partial(step, text[:, :-1], positions, *attention.prepare(doc))
        losses.append(_mean(train_step(forward, text[:, 1:], optimizer, settings, number), world))  # waits for the GPU
        times.append(perf_counter() - start)
    median = statistics.median(times[WARM_UP:] or times)
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else float("nan")
    run = Run(torch.tensor(losses, dtype=torch.float64), 1e3 * median, peak)
    return run, world * settings.batch * settings.context / median


def _mean(loss: Tensor, world: int) -> float:
    """The mean over all processes."""
    if world > 1:
        dist.all_reduce(loss)
    return loss.item() / world


def report(names: Sequence[str], settings: Settings, folder: str, backend: str = "inductor") -> bool:
    """Train with each and print its row of the table; whether all curves are as near to sdpa's as rounding brings its
    own."""
    kinds, first = attentions(settings, folder), not dist.is_initialized() or dist.get_rank() == 0

    def tell(line: str) -> None:
        if first:
            print(line, flush=True)

    known = {"sdpa": train(kinds["sdpa"], settings, backend)}
    eager = known["sdpa"][0]
    again = replace(kinds["sdpa"], attend=rounded(kinds["sdpa"].attend))
    noise = max(eager.resolution, eager.distance(train(again, settings, backend)[0]))
    tell(f"sdpa, rounded at random, is {noise:.1e} from itself\n\n{row(HEADER)}\n{row(['---'] * len(HEADER))}")
    agree = True
    for name in names:
        run, speed = known.get(name) or train(kinds[name], settings, backend)
        distance = run.distance(eager)
        agree &= distance <= NOISE * noise
        loss = f"{run.losses[0]:.3f} to {run.losses[-1]:.3f}"
        tell(row((name, loss, f"{speed:,.0f}", f"{run.peak_mib:.0f}", f"{distance:.1e}")))
    return agree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    kinds = ("generated", "packed", "sdpa", "flex")
    parser.add_argument("attentions", nargs="*", metavar="ATTENTION", help=f"of {', '.join(kinds)}; all by default")
    parser.add_argument("--out", default="generated", help="folder of the generated modules")
    parser.add_argument("--steps", type=int, default=LARGE.steps)
    arguments = parser.parse_args()
    if unknown := set(arguments.attentions) - {*kinds}:
        parser.error(f"unknown attentions {sorted(unknown)}; expected some of {', '.join(kinds)}")
    if not torch.cuda.is_available():
        parser.error("found no GPU; expected one that torch can use: `flashgen doctor` says what is missing")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if "RANK" in os.environ:
        dist.init_process_group("nccl")
    try:
        agree = report(arguments.attentions or kinds, replace(LARGE, steps=arguments.steps), arguments.out)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
