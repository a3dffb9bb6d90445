"""What the programs that measure on a GPU do without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from flashgen.bench import dropout, host, mods, serving, serving_configs


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")
@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (host.main, ["causal"]),
        (dropout.main, ["variants/causal.yaml"]),
        (mods.main, ["causal"]),
        (serving.main, []),
        (serving_configs.main, []),
    ],
)
def test_without_a_gpu_it_says_so(
    main: Callable[[Sequence[str]], int], arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: bench found no GPU; expected one")
