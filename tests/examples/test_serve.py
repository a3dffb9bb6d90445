"""The serving example at a size for the interpreter: it serves what dense attention finds, and mistakes show."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch

import engine.batch
import engine.scheduler
import serve
from engine.alone import Comparison, compare
from engine.engine import Engine
from engine.model import Config, Model
from engine.scheduler import Limits, Request, Scheduler

SETTING = serve.SETTINGS["cpu"]
LIMITS = Limits(max_batch=3, max_tokens=24, max_len=64, block_size=16, num_blocks=12)
ONE, TWO, THREE, FOUR = (tuple(range(start, start + 16)) for start in (0, 13, 26, 39))
# Prompts of several chunks and a short one; then a prompt of two blocks that are known, but not one after the other,
# and one that is known as a whole.
REQUESTS = (
    Request((*ONE, *TWO, 3, 1), 3),
    Request((5,), 5),
    Request((*THREE, *FOUR, 9), 3),
    Request((*THREE, *TWO, 2), 2),
    Request((*ONE, *TWO), 2),
)

Variants = Callable[[str], list[ModuleType]]


@pytest.fixture(scope="module", autouse=True)
def _interpreted() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("the interpreter is off because there is a GPU: start pytest with TRITON_INTERPRET=1")


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Variants:
    """The modules of each layer, by the model's name."""
    return cache(lambda name: serve.variants(SETTING.models[name], str(tmp_path_factory.mktemp(name))))


def small(variants: Variants, name: str, dtype: torch.dtype = torch.float32) -> Model:
    return Model(SETTING.models[name], variants(name)).converted("cpu", dtype)


def served(
    model: Model, dtype: torch.dtype, requests: Sequence[Request] = REQUESTS
) -> tuple[Comparison, list[engine.scheduler.Sequence], list[list[int]]]:
    """Serve all requests, the last two when the others are done; their comparison, and each step's parts."""
    engine_ = Engine(model, LIMITS, dtype, keep_logits=True, debug=True)
    sequences, counts = [], []
    for group in (requests[:3], requests[3:]):
        sequences += [engine_.add(request) for request in group]
        while parts := engine_.step():
            counts.append([part.count for part in parts])
    return compare(model, sequences, dtype), sequences, counts


@pytest.mark.parametrize("name", ["gqa", "sinks"])
def test_tokens_are_those_of_dense_attention(variants: Variants, name: str) -> None:
    comparison, sequences, counts = served(small(variants, name), torch.float32)
    assert comparison.agree and comparison.same == 1.0, comparison
    assert all(sequence.finished for sequence in sequences)
    assert comparison.requests == len(REQUESTS)
    # Chunks beside a decoding sequence, and decode steps of fewer sequences than a graph has.
    assert any(1 in step and max(step) > 1 for step in counts) and [1, 1, 1] in counts
    assert [sequence.shared for sequence in sequences] == [0, 0, 0, 16, 16]


def test_logits_of_16_bits_are_as_near_as_those_of_dense_attention(variants: Variants) -> None:
    model = small(variants, "sinks", torch.bfloat16)
    comparison, _, _ = served(model, torch.float8_e4m3fn, REQUESTS[2:])
    assert comparison.agree, comparison


def alike(tokens: Sequence[int], block_size: int) -> Iterator[bytes]:
    """Digests of blocks alone, whatever stands before them."""
    for start in range(0, len(tokens) - block_size + 1, block_size):
        yield bytes(tokens[start : start + block_size])


def one_short(field: torch.Tensor, numbers: list[int]) -> None:
    """Lengths without the last key, other fields as they are."""
    short = [number - 1 for number in numbers] if field.shape == (LIMITS.max_batch,) else numbers
    field[: len(short)] = torch.tensor(short, dtype=field.dtype)


@pytest.mark.parametrize("mistake", ["pages of other texts", "a key too few", "pages of several sequences"])
def test_a_mistake_shows(variants: Variants, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    if mistake == "pages of other texts":
        monkeypatch.setattr(engine.scheduler, "prefixes", alike)
    elif mistake == "a key too few":
        monkeypatch.setattr(engine.batch, "write", one_short)
    else:
        monkeypatch.setattr(Scheduler, "_admitted", taken_twice)
    comparison, _, _ = served(small(variants, "gqa"), torch.float32)
    assert not comparison.agree, comparison
    assert "DO NOT AGREE" in str(comparison)


def taken_twice(scheduler: Scheduler, sequence: engine.scheduler.Sequence) -> bool:
    """Admission to the same pages for all."""
    sequence.pages = list(range(LIMITS.max_blocks))
    for page in sequence.pages:
        scheduler.pages.hold(page)
    return True


def test_numbers_that_do_not_fit_are_told_before_the_step(variants: Variants) -> None:
    engine_ = Engine(small(variants, "gqa"), LIMITS, torch.float32, debug=True)
    sequence = engine_.add(Request((1, 2), 20))
    engine_.step()
    sequence.pages[0] = LIMITS.num_blocks
    with pytest.raises(ValueError, match=r"block_table\[0, 0\] is 12; expected 0 to 11"):
        engine_.step()


@pytest.fixture
def shorter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """The command with these arguments, of few steps."""
    monkeypatch.setitem(serve.SETTINGS, "cpu", replace(SETTING, steps=4, keys=16, repeats=1))

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["serve.py", "--device", "cpu", "--out", str(tmp_path), *arguments])
        return serve.main()

    return run


def test_the_command_reports_and_compares(shorter: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert shorter() == 0
    said = capsys.readouterr().out
    for cache_ in ("float32", "float8_e4m3fn"):
        assert f"gqa, {cache_} cache: " in said
    assert said.count("new tokens a second") == said.count("of a decode step of 4 x 16 keys") == 2
    assert said.count("agree with dense attention") == 2


def test_the_command_fails_where_requests_do_not_agree(
    shorter: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "compare", lambda *_: Comparison(3, torch.float32, 1.0, 0.1, 0.5))
    assert shorter("--cache", "float32", "--steps", "4", "--model", "sinks") == 1
    assert "3 requests DO NOT AGREE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "arguments", "message"),
    [
        ({"TRITON_INTERPRET": "0"}, ("--device", "cpu"), "expected TRITON_INTERPRET=1 before Python starts"),
        ({}, ("--device", "cuda"), "found no GPU; expected one that torch can use"),
        ({}, ("--cache", "int4"), "invalid choice: 'int4'"),
        ({}, ("--device", "cpu", "--steps", "3"), "--steps is 3; expected 4 or more"),
    ],
)
def test_what_it_cannot_serve_on_is_said(
    shorter: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    found: dict[str, str], arguments: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        shorter(*arguments)
    assert message in capsys.readouterr().err


def test_only_what_was_asked_for_has_a_window() -> None:
    plain, sinks = (SETTING.models[name] for name in ("gqa", "sinks"))
    assert {str(plain.spec(layer)).rsplit("/", 1)[-1] for layer in range(4)} == {"causal.yaml"}
    assert isinstance(sinks, Config)
    windows = [spec["window"] for layer in (0, 2) if isinstance(spec := sinks.spec(layer), dict)]
    assert windows == [{"left": 19, "right": 0}] * 2
    assert all(str(sinks.spec(layer)).endswith("sink.yaml") for layer in (1, 3))


@pytest.mark.parametrize("device", serve.SETTINGS)
def test_the_fewest_steps_are_enough_for_any_first_prompt(device: str) -> None:
    setting = serve.SETTINGS[device]
    longest = setting.traffic.common + setting.traffic.prompt[1]
    assert -(-longest // setting.limits.max_tokens) < serve.FEWEST_STEPS
    assert longest + setting.traffic.new[1] <= setting.limits.max_len
