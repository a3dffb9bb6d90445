"""Every mod by the kernels of the interpreter, as it is and through the YAML that is written of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flex_beside_torch import wrongs
from flex_mods import Mod, arguments

from flashgen.codegen import render
from flashgen.flex import to_spec
from flashgen.flex.text import yaml_of
from flashgen.spec import load

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("mod", **arguments())
def test_it_computes_what_torch_does(mod: Mod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    assert wrongs(mod, tmp_path, 16, torch.float32, "cpu") == []


@pytest.mark.parametrize("mod", **arguments())
def test_its_text_builds_the_kernels_that_tracing_builds(mod: Mod, tmp_path: Path) -> None:
    spec, *_ = to_spec(mod.score, mod.mask, name=mod.name)
    path = tmp_path / f"{mod.name}.yaml"
    path.write_text(yaml_of(spec))
    written = load(path)
    assert render(written) == render(replace(load(spec), source=written.source))
