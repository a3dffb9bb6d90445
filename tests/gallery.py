"""The gallery: its specs, and the variants that they load to by their names."""

from __future__ import annotations

from pathlib import Path

from flashgen.spec import load

FOLDER = Path(__file__).parent.parent / "variants"
PATHS = sorted(FOLDER.glob("*.yaml"))
VARIANTS = {path.stem: load(path) for path in PATHS}
NAMES = list(VARIANTS)
