"""`flashgen convert`: YAML that reads as if written by hand, and that builds the same kernels as tracing does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import flex_mods as mods
import pytest
from typer.testing import CliRunner

from flashgen.cli.app import app
from flashgen.codegen import render
from flashgen.errors import UsageError
from flashgen.flex import to_spec
from flashgen.flex.converted import converted
from flashgen.flex.text import yaml_of
from flashgen.spec import load

FILE = '''
"""Mods."""
import torch

slopes = torch.rand(8)
WINDOW = 16


def alibi_in_window(score, b, h, q_idx, kv_idx):
    """ALiBi over the last
    sixteen keys.

    Nothing more.
    """
    distance = q_idx - kv_idx
    return torch.where(distance < WINDOW, score - slopes[h] * distance, -float("inf"))


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


class Torch:
    @staticmethod
    def bad(score, b, h, q_idx, kv_idx):
        return score.lgamma()


CONSTANT = 3
'''
YAML = """\
# By flashgen convert, from mods.py:alibi_in_window, with the mask mods.py:causal.
name: alibi_in_window
description: ALiBi over the last sixteen keys.
# FlexAttention counts queries from 0, also where there are fewer than keys; a decoder has bottom_right.
align: top_left
causal: true
# Numbers that the mod reads: arguments of attention(), with their values of today.
params:
  WINDOW: {value: 16, runtime: true}
inputs:
  slopes: {shape: [heads], dtype: float32}
let:
  distance: q - k
score: score - slopes[h] * distance
mask: distance < WINDOW
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mods.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)


def test_it_prints_what_a_person_would_have_written(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["convert", "mods.py:alibi_in_window", "--mask", "mods.py:causal"])
    assert ended.exit_code == 0
    assert ended.stdout == YAML
    spec = tmp_path / "mine.yaml"
    spec.write_text(ended.stdout)
    assert load(spec).name == "alibi_in_window"


def test_for_machines_the_text_is_a_document() -> None:
    ended = CliRunner().invoke(app, ["convert", "mods.py:alibi_in_window", "--mask", "mods.py:causal", "--json"])
    assert ended.exit_code == 0
    assert json.loads(ended.stdout) == {"spec": YAML}


def test_a_mod_with_four_arguments_is_a_mask() -> None:
    ended = CliRunner().invoke(app, ["convert", "mods.py:causal"])
    assert ended.stdout.splitlines()[-1] == "causal: true"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("mods.py", "expected FILE.py:NAME"),
        ("nowhere.py:f", "no file 'nowhere.py'"),
        (".:f", "'.' is no file of Python; expected the path of one, such as mods.py"),
        ("mods.py:alibi", "mods.py has no 'alibi'; expected one of alibi_in_window, causal"),
        ("mods.py:CONSTANT", "'CONSTANT' of mods.py is of type int; expected a score_mod or a mask_mod"),
        ("mods.py:Torch.bad", "mods.py:26: aten.lgamma.default"),
    ],
)
def test_what_is_no_mod_is_said(place: str, message: str) -> None:
    ended = CliRunner().invoke(app, ["convert", place])
    assert ended.exit_code == 2
    assert message in ended.stderr


@pytest.mark.parametrize("name", ["document", "natten", "gemma2", "relative", "module"])
def test_the_text_is_the_spec(name: str, tmp_path: Path) -> None:
    mod = next(each for each in mods.MODS if each.name == name)
    spec, *_ = to_spec(mod.score, mod.mask, name=name)
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml_of(spec))
    written, traced = load(path), load(spec)
    assert (written.score, written.mask, written.inputs) == (traced.score, traced.mask, traced.inputs)
    assert max(map(len, path.read_text().splitlines())) <= 120


PARTIAL = """
from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass
class Reach:
    width: int


def near(reach, width, b, h, q, k):
    return (q - k < reach.width) & (k - q < width)


mask = functools.partial(near, Reach(5), 3)
"""


def test_arguments_of_a_partial_are_called_as_the_function_calls_them(tmp_path: Path) -> None:
    file = tmp_path / "operator.py"
    file.write_text(PARTIAL)
    text = converted(f"{file}:mask")
    assert "width: {value: 5, runtime: true}" in text
    assert text.endswith("mask: (q - k < width) & (k - q < width_2)\n")


def test_what_the_file_and_its_mods_print_is_no_part_of_the_spec(tmp_path: Path) -> None:
    file = tmp_path / "chatty.py"
    file.write_text("print('one')\ndef near(b, h, q, k):\n    print('two')\n    return q - k < 3\n")
    ended = CliRunner().invoke(app, ["convert", f"{file}:near"])
    (tmp_path / "near.yaml").write_text(ended.stdout)
    assert load(tmp_path / "near.yaml").name == "near"
    assert "one\n" in ended.stderr
    assert "two\n" in ended.stderr


def test_a_score_in_the_place_of_a_mask_is_said(tmp_path: Path) -> None:
    file = tmp_path / "swapped.py"
    file.write_text("def score(s, b, h, q, k): return s\ndef mask(b, h, q, k): return q >= k\n")
    with pytest.raises(UsageError, match=r"swapped.py:score takes five arguments.*; expected a mask_mod"):
        converted(f"{file}:mask", f"{file}:score")


def test_a_file_that_exits_is_said(tmp_path: Path) -> None:
    file = tmp_path / "exits.py"
    file.write_text("raise SystemExit(3)\n")
    with pytest.raises(UsageError, match="cannot be imported: SystemExit: 3"):
        converted(f"{file}:mask")


def test_the_text_builds_the_kernels_that_tracing_builds(tmp_path: Path) -> None:
    spec, *_ = to_spec(mods.softcap, mods.sliding_window, name="capped")
    path = tmp_path / "capped.yaml"
    path.write_text(yaml_of(spec))
    written = load(path)
    assert render(written) == render(replace(load(spec), source=written.source))
