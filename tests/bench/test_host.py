"""Measuring how long calls keep the host busy, as far as it goes without a GPU."""

from __future__ import annotations

import pytest
import torch

from flashgen.bench.host import main


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["causal"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: bench found no GPU; expected one")
