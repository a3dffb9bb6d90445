"""The table of models: `python -m flashgen.integrations.models`, with `--device cuda` their speed too."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from flashgen.integrations.comparing import compare
from flashgen.integrations.tiny import ENCODERS, MODELS, Size, model
from flashgen.integrations.transformers import register

# What speed is measured with: the layers of a model of 8e9 weights, four of them.
_LARGE = Size(layers=4, heads=32, kv_heads=8, head_dim=128, vocabulary=32768, window=1024, longest=8192)
# T5 and Whisper read other things than text of one length; they are compared, not timed.
_TIMED = tuple(name for name in MODELS if name not in ("T5", "Whisper"))
_ATTENTIONS = ("generated", "sdpa", "flex_attention")


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 where a model does not agree with its eager self."""
    parser = argparse.ArgumentParser(prog="python -m flashgen.integrations.models", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all by default")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-speed", action="store_true", help="on a GPU too compare alone")
    parser.add_argument("--q-len", type=int, default=4096, help="tokens of a sequence that is trained on or read first")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.models if name not in MODELS]
    if unknown:
        parser.error(f"unknown models {unknown}; expected some of {list(MODELS)}")
    if given.device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        # Triton reads it when it is imported, which it is by now.
        again = [sys.executable, "-m", "flashgen.integrations.models", *given.models]
        return subprocess.run(again, env={**os.environ, "TRITON_INTERPRET": "1"}).returncode
    register()
    names = given.models or list(MODELS)
    agrees = agreements(names, given.device)
    if given.device == "cuda" and not given.no_speed:
        speeds([name for name in names if name in _TIMED], given.q_len)
    return 0 if agrees else 1


def agreements(names: list[str], device: str) -> bool:
    """Print how each model agrees with its eager self in float32; whether all do."""
    print("| model | logits, difference | gradients, difference | 32 greedy tokens |\n| --- | --- | --- | --- |")
    agree = True
    for name in names:
        found = compare(name, Size(), "generated", device)
        agree &= found.agrees
        tokens = {True: "equal", False: "differ", None: ""}[found.tokens]
        print(f"| {name} | {found.logits:.1e} | {found.gradients:.1e} | {tokens} |", flush=True)
    return agree


def speeds(names: list[str], q_len: int) -> None:
    """Print the tokens a second of each model in bfloat16 on the GPU, with each attention."""
    print("\n| model | attention | training, tokens/s | generate, tokens/s |\n| --- | --- | --- | --- |")
    for name in names:
        made = model(name, _LARGE, "eager").to("cuda", torch.bfloat16)
        for attention in _ATTENTIONS:
            try:
                # Not every model has each.
                made.set_attn_implementation(attention)
                cells = (_training(made, q_len), "" if name in ENCODERS else _generation(made, q_len))
            except (RuntimeError, ValueError) as error:
                cells = (f"{type(error).__name__}: {str(error).splitlines()[0][:80]}", "")
            print(f"| {name} | {attention} | {cells[0]} | {cells[1]} |", flush=True)
            torch.cuda.empty_cache()


def _training(made: Any, q_len: int) -> str:
    words = torch.randint(3, _LARGE.vocabulary, (2, q_len), device="cuda")
    made.train()

    def step() -> None:
        made.zero_grad()
        made(input_ids=words, labels=words).loss.backward()

    return f"{words.numel() / _seconds(step):,.0f}"


def _generation(made: Any, q_len: int, tokens: int = 64) -> str:
    """The speed of single steps: the time of a longer answer less that of a shorter one."""
    words = torch.randint(3, _LARGE.vocabulary, (8, q_len), device="cuda")
    seen = torch.ones_like(words)
    made.eval()

    def answer(length: int) -> Callable[[], Any]:
        return lambda: made.generate(words, attention_mask=seen, max_new_tokens=length, do_sample=False)

    return f"{8 * tokens / (_seconds(answer(tokens + 1)) - _seconds(answer(1))):,.0f}"


def _seconds(run: Callable[[], Any], rounds: int = 5) -> float:
    """The median time of a run, in seconds, after two that warm up."""
    taken = []
    for _ in range(rounds + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return sorted(taken[2:])[rounds // 2]


if __name__ == "__main__":
    sys.exit(main())
