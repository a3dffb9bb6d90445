"""Scripts that know torch's FlexAttention alone run unchanged, and find the same, with generated attention."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import flex_scripts
import pytest
import torch
from torch.nn.attention import flex_attention as torchs

from flashgen.flex import flex_attention

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("the interpreter is off because there is a GPU: start pytest with TRITON_INTERPRET=1")
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("name", flex_scripts.SCRIPTS)
def test_a_script_finds_the_same(name: str) -> None:
    ours = flex_scripts.run(name, flex_attention)
    torch.testing.assert_close(ours, flex_scripts.run(name, flex_scripts.by_formula), rtol=1e-4, atol=1e-5)
    if name != "train":
        torch.testing.assert_close(ours, flex_scripts.run(name, torchs.flex_attention), rtol=1e-4, atol=1e-5)


def test_without_its_mods_a_script_finds_something_else() -> None:
    """So that the comparison means something."""

    def all_see_all(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object, **how: object) -> torch.Tensor:
        return flex_attention(q, k, v, enable_gqa="enable_gqa" in how)

    for name in flex_scripts.SCRIPTS:
        wrong, right = (flex_scripts.run(name, each) for each in (all_see_all, flex_scripts.by_formula))
        assert (wrong - right).abs().max() > 1e-3, name


def test_a_script_is_patched_from_outside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], repository: Path
) -> None:
    folder = repository / "examples/flex"
    monkeypatch.setattr(torchs, "flex_attention", torchs.flex_attention)  # restored at the end
    monkeypatch.setattr(sys, "argv", ["patched.py", str(folder / "documents.py")])
    runpy.run_path(str(folder / "patched.py"), run_name="__main__")
    assert torchs.flex_attention is flex_attention
    assert capsys.readouterr().out.startswith("documents: mean of squares 0.2093")
    monkeypatch.setattr(sys, "argv", ["patched.py"])
    with pytest.raises(SystemExit, match="usage"):
        runpy.run_path(str(folder / "patched.py"), run_name="__main__")
