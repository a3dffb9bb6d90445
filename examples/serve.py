"""Serve a small language model with generated attention over a paged cache, and compare with the model run alone.

    python examples/serve.py [--device cpu|cuda] [--model gqa|sinks] [--cache DTYPE] [--steps N]

Requests of random lengths arrive while others are under way, and many of them begin alike. The model has random
weights: `gqa` is causal with grouped heads, `sinks` has sinks and alternating windows. Prints, for each cache, tokens
a second and the share of a decode step that attention takes. Then every request is run alone with dense attention: in
float32 its tokens must be the same, in 16 bits its logits as near to those in float32. On a GPU no step may wait but
for its tokens, and memory may not grow. Exit status 1 where any of this fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import torch

import flashgen
from engine.alone import compare
from engine.engine import Engine, captured
from engine.model import Config, Model
from engine.scheduler import Limits, Sequence
from engine.traffic import Traffic

# The dtype of the model by that of its cache.
CACHES = {
    torch.float32: torch.float32,
    torch.bfloat16: torch.bfloat16,
    torch.float8_e4m3fn: torch.bfloat16,
}

# The part of a run in which kernels compile and allocators fill up: neither its time nor its memory counts.
WARM_UP = 0.2

# By then the longest prompt, were it the first, has a token to compare.
FEWEST_STEPS = 4


@dataclass(frozen=True)
class Setting:
    """What a device serves: the models, the engine's limits, and the traffic of so many steps.

    `keys` are those of each sequence in the step that attention's share is measured of.
    """

    models: dict[str, Config]
    limits: Limits
    traffic: Traffic
    caches: tuple[torch.dtype, ...]
    steps: int
    keys: int
    repeats: int


SETTINGS = {
    "cuda": Setting(
        {
            "gqa": Config(layers=8, width=1024, heads=32, kv_heads=8, head_dim=128, vocabulary=1024),
            "sinks": Config(layers=8, width=1024, heads=64, kv_heads=8, head_dim=64, vocabulary=1024, window=128),
        },
        Limits(max_batch=64, max_tokens=512, max_len=2048, block_size=16, num_blocks=4096),
        Traffic(rate=0.2, prompt=(16, 1024), new=(64, 512), common=200),
        (torch.bfloat16, torch.float8_e4m3fn),
        steps=200,
        keys=1024,
        repeats=50,
    ),
    # At a size for Triton's interpreter.
    "cpu": Setting(
        {
            "gqa": Config(layers=2, width=32, heads=4, kv_heads=2, head_dim=16, vocabulary=64),
            "sinks": Config(layers=2, width=32, heads=4, kv_heads=2, head_dim=16, vocabulary=64, window=20),
        },
        Limits(max_batch=4, max_tokens=24, max_len=96, block_size=16, num_blocks=20),
        Traffic(rate=0.5, prompt=(1, 30), new=(2, 10), common=35),
        (torch.float32, torch.float8_e4m3fn),
        steps=24,
        keys=64,
        repeats=2,
    ),
}


@dataclass(frozen=True)
class Run:
    """Requests as they were served; after warming up the time, the tokens, and the bytes by which memory grew.

    Of `steps` steps so many were `replayed` as graphs.
    """

    sequences: list[Sequence]
    steps: int
    replayed: int
    seconds: float
    new_tokens: int
    prompt_tokens: int
    grown: int

    @property
    def shared(self) -> int:
        return sum(each.shared for each in self.sequences)

    @property
    def prompts(self) -> int:
        return sum(len(each.request.prompt) for each in self.sequences if each.pages)

    def __str__(self) -> str:
        new, prompt = (tokens / self.seconds for tokens in (self.new_tokens, self.prompt_tokens))
        return (
            f"{new:.0f} new tokens a second beside {prompt:.0f} of prompts, {1e3 * self.seconds / self.steps:.2f} ms a "
            f"step, {self.replayed} of {self.steps} without prompts; of these {self.shared} tokens of {self.prompts} "
            "were in the cache already"
        )


def variants(config: Config, out: str) -> list[ModuleType]:
    """The generated attention of each layer; layers of one spec have the same."""
    built: dict[str, ModuleType] = {}
    found = []
    for layer in range(config.layers):
        spec = config.spec(layer)
        # A module names its spec as it was given: the gallery's stay as they are.
        source = spec if isinstance(spec, dict) else os.path.relpath(spec)
        key = str(source)
        if key not in built:
            built[key] = flashgen.build(source, out=out, verify=False, compile=False, tune=False)
        found.append(built[key])
    return found


def serve(engine: Engine, traffic: Traffic, steps: int) -> Run:
    """Let requests arrive for so many steps. RuntimeError of torch where a step waits for more than its tokens."""
    on_gpu = engine.model.device.type == "cuda"
    arrivals = traffic.arrivals(engine.model.config.vocabulary)
    sequences: list[Sequence] = []
    warm_up = int(WARM_UP * steps)
    start, before, counts, allocated = 0.0, 0, [], []
    for number in range(steps):
        if number == warm_up:
            start, before = time.perf_counter(), sum(len(each.new_tokens) for each in sequences)
        sequences += [engine.add(request) for request in next(arrivals)]
        with waiting_refused(on_gpu):
            counts.append([part.count for part in engine.step()])
        allocated.append(torch.cuda.memory_allocated() if on_gpu else 0)
    seconds, counts = time.perf_counter() - start, counts[warm_up:]
    return Run(
        sequences,
        steps=len(counts),
        replayed=sum(max(each, default=1) == 1 for each in counts),
        seconds=seconds,
        new_tokens=sum(len(each.new_tokens) for each in sequences) - before,
        prompt_tokens=sum(count for each in counts for count in each if count > 1),
        grown=max(allocated[warm_up:]) - max(allocated[: warm_up + 1]),
    )


@contextmanager
def waiting_refused(on_gpu: bool) -> Iterator[None]:
    """What waits for the GPU raises RuntimeError; an event of one's own may be waited for."""
    if on_gpu:
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if on_gpu:
            torch.cuda.set_sync_debug_mode("default")


@torch.inference_mode()
def attention_share(engine: Engine, keys: int, repeats: int) -> float:
    """Attention's share, with plans and the writing of keys, of a decode step of a full batch with so many keys each.

    Both are timed alone, as graphs on a GPU. What stands in the cache is spoilt.
    """
    model, limits, fields = engine.model, engine.limits, engine.batch.device
    config, size, blocks = model.config, limits.max_batch, -(-keys // limits.block_size)
    pages = torch.randperm(limits.num_blocks, dtype=torch.int32)[: size * blocks].view(size, blocks)
    fields.block_table[:, :blocks] = pages.to(model.device)
    fields.seq_lens.fill_(keys)
    fields.positions[:size] = keys - 1
    fields.slots[:size] = fields.block_table[:, blocks - 1] * limits.block_size + (keys - 1) % limits.block_size
    q, k, v = (
        torch.randn(size, heads, config.head_dim, device=model.device, dtype=model.dtype)
        for heads in (config.heads, config.kv_heads, config.kv_heads)
    )

    def attention() -> None:
        attend = engine.paged(size)
        for layer in model.attentions:
            attend(layer, q, k, v)

    return seconds(captured(attention, model.device), repeats) / seconds(engine.graphs[size], repeats)


def seconds(function: Callable[[], None], repeats: int) -> float:
    """The time of a call, on average over so many after a first one."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    function()
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    wait()
    return (time.perf_counter() - start) / repeats


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    on_gpu = torch.cuda.is_available()
    dtypes = {str(dtype).removeprefix("torch."): dtype for dtype in CACHES}
    parser.add_argument("--device", choices=SETTINGS, default="cuda" if on_gpu else "cpu")
    parser.add_argument("--model", choices=("gqa", "sinks"), default="gqa")
    parser.add_argument("--cache", choices=dtypes, action="append", help="once for each; a 16-bit and an 8-bit one")
    parser.add_argument("--steps", type=int, help="of the engine, with each cache")
    parser.add_argument("--out", default="generated", help="folder of the generated modules")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not on_gpu:
        parser.error("found no GPU; expected one that torch can use: `flashgen doctor` says what is missing")
    if arguments.device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("found no interpreter for the CPU; expected TRITON_INTERPRET=1 before Python starts")
    if arguments.steps is not None and arguments.steps < FEWEST_STEPS:
        parser.error(f"--steps is {arguments.steps}; expected {FEWEST_STEPS} or more, for a request to get tokens")
    setting = SETTINGS[arguments.device]
    config = setting.models[arguments.model]
    layers, well = variants(config, arguments.out), True
    for cache in [dtypes[name] for name in arguments.cache or ()] or setting.caches:
        model = Model(config, layers).converted(arguments.device, CACHES[cache])
        engine = Engine(model, setting.limits, cache, keep_logits=True, debug=arguments.device == "cpu")
        run = serve(engine, setting.traffic, arguments.steps or setting.steps)
        share = attention_share(engine, setting.keys, setting.repeats)
        compared = compare(model, run.sequences, cache)
        name = str(cache).removeprefix("torch.")
        print(f"{arguments.model}, {name} cache: {run}")
        print(f"  attention takes {share:.0%} of a decode step of {setting.limits.max_batch} x {setting.keys} keys")
        print(f"  {compared}", flush=True)
        if run.grown:
            print(f"  memory GREW by {run.grown} bytes")
        well = well and compared.agree and not run.grown
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
