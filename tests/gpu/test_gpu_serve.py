"""The serving example on a GPU: what it serves is what dense attention finds, nothing waits and memory stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import serve
from engine.alone import compare
from engine.engine import Engine
from engine.model import Model

SETTING = serve.SETTINGS["cuda"]

pytestmark = pytest.mark.gpu


def engine_for(name: str, cache: torch.dtype, out: Path) -> Engine:
    if cache == torch.float8_e4m3fn and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("Triton has no float8_e4m3fn below sm_89")
    config = SETTING.models[name]
    model = Model(config, serve.variants(config, str(out))).converted("cuda", serve.CACHES[cache])
    return Engine(model, SETTING.limits, cache, keep_logits=True)


@pytest.mark.parametrize("cache", serve.CACHES, ids=str)
@pytest.mark.parametrize("name", SETTING.models)
def test_requests_are_served_as_dense_attention_has_them(name: str, cache: torch.dtype, tmp_path: Path) -> None:
    """In float32 token by token; otherwise logits are no further from exact ones."""
    engine = engine_for(name, cache, tmp_path)
    run = serve.serve(engine, SETTING.traffic, 150)
    comparison = compare(engine.model, run.sequences, cache)
    print(run, comparison, sep="\n")
    assert comparison.agree, comparison
    assert comparison.requests > 20 and run.shared > 200 and 0 < run.replayed < run.steps


@pytest.mark.parametrize("name", SETTING.models)
def test_a_thousand_steps_wait_for_their_tokens_alone_and_take_no_more_memory(name: str, tmp_path: Path) -> None:
    """`serve` refuses to wait for anything else."""
    engine = engine_for(name, torch.bfloat16, tmp_path)
    run = serve.serve(engine, SETTING.traffic, 1000)
    print(run)
    assert run.grown == 0
    assert sum(sequence.finished for sequence in run.sequences) > 100
    # By then pages have held several texts.
    comparison = compare(engine.model, run.sequences[-60:], torch.bfloat16)
    assert comparison.agree and comparison.requests > 30, comparison


def test_waiting_is_refused() -> None:
    number = torch.ones((), device="cuda")
    with pytest.raises(RuntimeError, match="synchronizing"), serve.waiting_refused(True):
        number.item()
    assert number.item() == 1


def test_attention_takes_a_part_of_a_step(tmp_path: Path) -> None:
    engine = engine_for("gqa", torch.bfloat16, tmp_path)
    assert 0.05 < serve.attention_share(engine, 1024, 20) < 1
