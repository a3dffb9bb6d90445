"""A family's digest changes with what its kernels consist of, and with nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gallery import VARIANTS

from flashgen.codegen import identity, render
from flashgen.codegen.digests import kernel_digests
from flashgen.codegen.imports import defined_names
from flashgen.codegen.rendered_kernels import Piece, placed
from flashgen.spec import load

TEXTS = {
    "pair": "def _visible(q, k):\n    return k <= q\n",
    "forward": "def _forward(q, k):\n    return _visible(q, k)\n",
    "forward_sm90": "def _forward_sm90(q, k):\n    return q\n",
    "backward_q": "def _backward_q(q, k):\n    return _shared(q)\n",
    "backward_kv": "def _shared(q):\n    return q\n",
}


def digests(**changes: str) -> dict[str, str]:
    texts = {**TEXTS, **changes}
    own = {name: file for file, text in texts.items() for name in defined_names(text)}
    return kernel_digests(texts, own)


@pytest.mark.parametrize(
    ("file", "families"),
    [
        ("forward", {"forward"}),
        ("forward_sm90", {"forward"}),
        ("backward_q", {"backward_q"}),
        # A file that others import from belongs to these too.
        ("pair", {"forward"}),
        ("backward_kv", {"backward_q", "backward_kv"}),
    ],
)
@pytest.mark.parametrize("change", ["# A comment.\n", "\n"])
def test_a_file_changes_the_digests_of_those_that_read_it(file: str, families: set[str], change: str) -> None:
    before, after = digests(), digests(**{file: TEXTS[file] + change})
    assert {family for family in before if before[family] != after[family]} == families


def test_the_path_and_the_prose_of_a_spec_change_none() -> None:
    variant = load({"name": "mine", "causal": True})
    other = replace(variant, source="elsewhere/mine.yaml", description="Another one.")
    assert identity(variant).templates == identity(other).templates
    assert render(variant) != render(other)


def test_the_gallery_says_its_own(repository: Path) -> None:
    variant = VARIANTS["causal"]
    text = (repository / "generated" / "causal" / "__init__.py").read_text()
    assert all(digest in text for digest in identity(variant).templates.values())


def test_what_several_kernels_call_has_a_file_with_all_that_it_calls() -> None:
    tanh = Piece(("_tanh",), "def _tanh(x): ...")
    cap = Piece(("_cap",), "def _cap(x):\n    return _tanh(x)")
    alone = Piece(("_alone",), "def _alone(x): ...")
    unused = Piece(("_unused",), "def _unused(x): ...")
    kernels = {"forward": "def _forward(x):\n    return _cap(_alone(x))", "delta": "def _delta(x):\n    return _cap(x)"}
    found = placed(kernels, (tanh, cap, alone, unused))
    assert {name: defined_names(text) for name, text in found.items()} == {
        "pair": ("_tanh", "_cap"), "forward": ("_alone", "_forward"), "delta": ("_delta",)
    }  # fmt: skip
