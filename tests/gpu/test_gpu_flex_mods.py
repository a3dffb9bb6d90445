"""Every FlexAttention mod on a GPU, in 16 bits: as it is and through the YAML that is written of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
    from flex_mods import Mod, arguments

from flex_beside_torch import wrongs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("mod", **arguments())
def test_it_computes_what_torch_does(
    mod: Mod, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    assert wrongs(mod, tmp_path, 64, dtype, "cuda") == []
