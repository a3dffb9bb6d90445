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
# Of encoder-decoders one word is written for so many places read.
_READ_FOR_A_WORD = 4
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
        speeds(names, given.q_len)
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
        for attention in _ATTENTIONS:
            try:
                # Not every model has each.
                made = model(name, _LARGE, attention, "cuda").to(torch.bfloat16)
                cells = (_training(made, q_len), "" if name in ENCODERS else _generation(made, q_len))
            except (RuntimeError, ValueError) as error:
                cells = (f"{type(error).__name__}: {str(error).splitlines()[0][:80]}", "")
            print(f"| {name} | {attention} | {cells[0]} | {cells[1]} |", flush=True)
            torch.cuda.empty_cache()


def reading(made: Any, batch: int, q_len: int) -> dict[str, torch.Tensor]:
    """What a model reads: words, int64 [batch, q_len], or, of sounds, all the frames that it takes."""
    if made.main_input_name == "input_ids":
        return {"input_ids": _words(made, batch, q_len)}
    # Two frames make one place of Whisper's encoder.
    shape = (batch, made.config.num_mel_bins, 2 * made.config.max_source_positions)
    return {made.main_input_name: torch.randn(shape, device=made.device, dtype=made.dtype)}


def trained_on(made: Any, batch: int, q_len: int) -> tuple[dict[str, torch.Tensor], int]:
    """What a model is trained on, with its labels, and how many tokens that are, read and written."""
    read = reading(made, batch, q_len)
    if not made.config.is_encoder_decoder:
        return {**read, "labels": read["input_ids"]}, batch * q_len
    places = q_len if "input_ids" in read else made.config.max_source_positions
    labels = _words(made, batch, places // _READ_FOR_A_WORD)
    return {**read, "labels": labels}, batch * places + labels.numel()


def _words(made: Any, batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, made.config.vocab_size, (batch, length), device=made.device)


def _training(made: Any, q_len: int) -> str:
    given, tokens = trained_on(made, 2, q_len)
    made.train()

    def step() -> None:
        made.zero_grad()
        made(**given).loss.backward()

    return f"{tokens / _seconds(step):,.0f}"


def _generation(made: Any, q_len: int, tokens: int = 64) -> str:
    """The speed of single steps: the time of a longer answer less that of a shorter one."""
    given = reading(made, 8, q_len)
    if "input_ids" in given:
        given["attention_mask"] = torch.ones_like(given["input_ids"])
    made.eval()

    def answer(length: int) -> Callable[[], Any]:
        return lambda: made.generate(**given, max_new_tokens=length, do_sample=False)

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
