"""Commands as a user calls them, in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commands import Ended, Run

from flashgen.cli import main


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in an empty folder with a gallery of one spec and a cache of its own."""
    (tmp_path / "variants").mkdir()
    (tmp_path / "variants" / "band.yaml").write_text(
        "name: band\ndescription: A band.\ndtype: float32\nhead_dim: 16\nparams: {W: 100}\nlet: {d: q - k}\n"
        "score: score - 0.5*d\nmask: (d >= 0) & (d < W)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))

    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["flashgen", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        return Ended(int(left.value.code or 0), printed.out, printed.err)

    return call
