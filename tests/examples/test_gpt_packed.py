"""The example with packed documents at a size for the CPU: rows, attentions, curves, and two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gpt_packed
from gpt_packed import LARGE, Attention, attentions, begins, packed_rows, report

SMALL = replace(
    LARGE, layers=2, width=32, heads=2, context=48, batch=2, steps=4, warm_up=2, dtype=torch.float32, device="cpu"
)
FILES = [torch.full((length,), length) for length in (5, 9, 30, 200)]


def rows(seed: int = 0) -> tuple[torch.Tensor, ...]:
    return packed_rows(FILES, 2, 48, torch.Generator().manual_seed(seed))


@pytest.fixture
def interpreted(tmp_path: Path) -> str:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("the interpreter is off because there is a GPU: start pytest with TRITON_INTERPRET=1")
    return str(tmp_path)


def test_rows_are_whole_and_positions_begin_anew_with_each_document() -> None:
    text, doc, positions = rows()
    assert text.shape == (2, 49) and doc.shape == positions.shape == (2, 48)
    assert set(text.unique().tolist()) <= {5, 9, 30, 200}
    follows = doc[:, 1:] == doc[:, :-1]
    assert bool((doc[:, 1:] - doc[:, :-1] == (~follows).int()).all()) and bool((doc[:, 0] == 0).all())
    assert torch.equal(positions[:, 1:], torch.where(follows, positions[:, :-1] + 1, 0))


def test_documents_begin_where_they_do_and_no_row_goes_on_in_the_next() -> None:
    _, doc, _ = rows()
    lengths = [int((row == each).sum()) for row in doc for each in row.unique()]
    ends = begins(doc)
    assert ends.dtype == torch.int32 and len(ends) == 1 + (1 << (len(lengths) - 1).bit_length())
    assert ends.diff()[: len(lengths)].tolist() == lengths
    assert bool((ends[len(lengths) :] == 96).all())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_all_attend_alike(interpreted: str) -> None:
    _, doc, _ = rows(3)
    q, k, v = (torch.randn(2, 2, 48, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    kinds = attentions(SMALL, interpreted)
    outs = {name: each.attend(q, k, v, *each.prepare(doc)) for name, each in kinds.items()}
    assert outs.keys() == {"generated", "packed", "sdpa", "flex"}
    for out in outs.values():
        torch.testing.assert_close(out, outs["sdpa"], rtol=1e-4, atol=1e-5)


def test_curves_agree_and_one_of_another_mask_does_not(
    interpreted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpt_packed, "documents", lambda: [torch.arange(length) * 37 % 256 for length in (5, 9, 14)])
    assert report(["generated", "packed"], SMALL, interpreted, backend="aot_eager")
    told = capsys.readouterr().out
    assert "| generated | 5." in told and "rounded at random" in told
    kinds = attentions(SMALL, interpreted)

    def without_documents(doc: torch.Tensor) -> tuple[Any, ...]:
        return kinds["sdpa"].prepare(torch.zeros_like(doc))

    wrong = Attention(without_documents, kinds["sdpa"].attend)
    monkeypatch.setattr(gpt_packed, "attentions", lambda *_: {**kinds, "wrong": wrong})
    assert not report(["wrong"], SMALL, interpreted, backend="eager")


ONE_OF_TWO = """
import sys
from dataclasses import replace
import torch
from torch import distributed as dist
from gpt_packed import Attention, LARGE, train
from torch.nn.functional import scaled_dot_product_attention
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
small = replace(LARGE, layers=1, width=32, heads=2, context=48, batch=1, steps=3, dtype=torch.float32, device="cpu")
causal = Attention(lambda doc: (), lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True))
run, speed = train(causal, small, backend="eager")
print(run.losses.tolist())
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_train_one_model() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    paths = [str(Path(gpt_packed.__file__).parent), str(Path(__file__).parents[2])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", ONE_OF_TWO, port]
    both = [
        subprocess.Popen([*line, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outs
    first, second = (out.splitlines()[-1] for out, _ in outs)
    assert first == second and first.count(",") == 2
