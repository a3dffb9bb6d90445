"""Nothing that a spec says reaches Python but through the typed graph or a quoted literal.

Hostile text stands in every field of a spec, in its file's name and its comments. Nothing that is rendered is imported:
each file's syntax tree must be that of the same spec with harmless text, but for docstrings and the spec's path.
"""

from __future__ import annotations

import ast
import copy
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from flashgen.codegen import render
from flashgen.codegen.export import bundle
from flashgen.codegen.pairwise import render as render_pairwise
from flashgen.codegen.render import exported_docstring
from flashgen.codegen.rendered_kernels import render_kernels
from flashgen.errors import SpecError
from flashgen.printable import is_printable
from flashgen.spec import load
from flashgen.spec.variant import Variant

Path_ = tuple[str | int, ...]

BASE: dict[str, Any] = {
    "name": "everything",
    "description": "What it is.",
    "dtype": ["bfloat16"],
    "head_dim": [64],
    "causal": True,
    "window": {"left": "W + 3", "right": "2"},
    "bias": "alibi",
    "softcap": "cap",
    "block_sparse": {"block_q": 64, "block_kv": 64},
    "sink": "learned",
    "align": "top_left",
    "params": {"W": 40, "cap": 30.0, "shift": {"value": 3, "runtime": True}},
    "inputs": {
        "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
        "rel": {"shape": ["heads", "2*W + 1"], "dtype": "float32", "grad": True},
        "off": {"shape": ["docs", "heads * 2"], "dtype": "int32"},
    },
    "let": {"d": "q - k", "near": "abs(d) <= W"},
    "score": "score + rel[h, clamp(d, -W, W) + W]",
    "mask": "near & (doc[b, q] == doc[b, k]) & (k >= off[doc[b, q], h] - shift)",
    "tune": {"inputs": {"doc": {"segments": 8}}},
}

PROGRAM = 'import os; os.system("touch P")'
PAYLOADS = {
    "docstring": f'"""; {PROGRAM}; """',
    "single quotes": f"'''; {PROGRAM}; '''",
    "docstring after a comment": f' # """; {PROGRAM}; """',
    "line after a comment": f" # \n{PROGRAM}",
    "return after a comment": f" # \r{PROGRAM}",
    "line separator after a comment": f" # \u2028{PROGRAM}",
    "next line after a comment": f" # \x85{PROGRAM}",
    "form feed after a comment": f" # \f\v{PROGRAM}",
    "reordering after a comment": f" # \u202e\u2066{PROGRAM}\u2069",
    "closing": f"); {PROGRAM}; (",
    "closing a string": f"\"); {PROGRAM}; (\"",
    "backslash": "\\",
    "backslashes and quotes": '\\\\"\\"\\\\\\"""\\',
    "template": "{{ 7*7 }}{% include 'module.py.jinja' %}{# #}",
    "format": "{0.__class__}%s%(x)s{",
    "call": " + __import__('os').system('touch P')",
    "walrus": " if (P := 1) else 2",
    "coding": "# -*- coding: utf-7 -*- +AAo-import os",
    "wide letters": " ＋ ｅｖａｌ(１)",
    "hidden": "\u200b\ufeff\xad\u200f",
}  # fmt: skip


def leaves(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Where text or a number stands, and where a name does: the path of the mapping with the name after it twice."""
    if isinstance(value, dict):
        for key, item in value.items():
            if path and path[-1] in ("params", "inputs", "let"):
                yield (*path, key, "<name>")
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path


def changed(path: Path_, payload: str, whole: bool) -> dict[str, Any]:
    """The spec with the payload after what stands at the path, or in its place."""
    spec = copy.deepcopy(BASE)
    at: Any = spec
    if path[-1] == "<name>":
        *way, name, _ = path
        for step in way:
            at = at[step]
        at[payload if whole else f"{name}{payload}"] = at.pop(name)
        return spec
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = payload if whole else f"{at[path[-1]]}{payload}"
    return spec


def tree(source: str) -> str:
    """The syntax tree of a module without docstrings, and without the path of its spec."""
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            assert isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
            node.body[0].value.value = "..."
        if isinstance(node, ast.keyword) and node.arg == "source":
            assert isinstance(node.value, ast.Constant)
            node.value.value = "..."
    return ast.dump(module)


@pytest.fixture(autouse=True)
def _kernels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels know nothing of prose and paths, as a test shows: they are the same where variants differ in these."""
    # The package has a function of the module's name.
    rendering = sys.modules["flashgen.codegen.render"]
    monkeypatch.setattr(rendering, "render_kernels", lambda variant: kernels(without_prose(variant)))


kernels = cache(render_kernels)


def without_prose(variant: Variant) -> Variant:
    return replace(variant, description="", source="")


@cache
def trees(variant: Variant) -> tuple[str, ...]:
    """The trees of all that is rendered of a variant: its files, the exported one, functions of a pair."""
    package = render(variant)
    alone = bundle(package, [], exported_docstring(variant, "alone.py"))
    files = (*package.values(), alone, render_pairwise(variant))
    assert all(is_printable(file) for file in files)
    return tuple(map(tree, files))


def fields() -> list[Path_]:
    return [path for path in leaves(BASE) if path not in (("causal",), ("description",))]


@pytest.mark.parametrize("path", fields(), ids=lambda path: ".".join(map(str, path)))
def test_a_field_is_refused_or_changes_no_syntax(path: Path_) -> None:
    accepted = 0
    for name, payload in PAYLOADS.items():
        for whole in (False, True):
            try:
                variant = load(changed(path, payload, whole))
            except SpecError as error:
                assert is_printable(str(error)), name
                continue
            accepted += 1
            assert trees(variant) == trees(load(BASE)), name
    # Comments are allowed where expressions are.
    takes_comments = path[0] in ("window", "softcap", "let", "score", "mask") or "shape" in path
    assert bool(accepted) == (takes_comments and path[-1] != "<name>")


VISIBLE = [payload for payload in PAYLOADS.values() if is_printable(payload)]
OF_DOCSTRINGS = [PAYLOADS[name] for name in ("docstring", "single quotes", "backslash", "backslashes and quotes")]


@pytest.mark.parametrize("text", ["\n".join(VISIBLE), " ".join(VISIBLE), *OF_DOCSTRINGS, "\u2028".join(VISIBLE)])
def test_a_description_changes_no_syntax(text: str) -> None:
    assert trees(load({**BASE, "description": text})) == trees(load(BASE))


@pytest.mark.parametrize(
    "hidden", ["\0", "\x1b[2J", "\x7f", "\u202e", "\u2066", "\u200f", "\u200b", "\ufeff", "\ud800"]
)
def test_hidden_characters_are_refused_in_a_description(hidden: str) -> None:
    with pytest.raises(SpecError) as caught:
        load({**BASE, "description": f"What {hidden} it is."})
    assert str(caught.value).endswith("; expected text without control characters")
    assert is_printable(str(caught.value))


@pytest.mark.parametrize(
    "name",
    [
        '"""; import os; """.yaml',
        "a\nimport os\n.yaml",
        "\u202egnp.yaml",
        "\u2028.yaml",
        b"caf\xe9.yaml",
        "'; ls; '.yaml",
    ],
)
def test_a_file_s_name_and_its_comments_change_no_syntax(name: str | bytes, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), os.fsencode(name))))
    text = yaml.safe_dump(BASE, sort_keys=False)
    path.write_text(f'# """\n# {PROGRAM}\n{text}# """ \u202e\n', encoding="utf-8")
    assert trees(load(path)) == trees(load(BASE))


def test_a_description_is_whole_in_the_docstrings() -> None:
    """What is hostile to a docstring does not vanish from it either."""
    for name in ("docstring", "backslash", "backslashes and quotes", "template"):
        module = ast.parse(render(load({**BASE, "description": f"It is {PAYLOADS[name]} indeed."}))["__init__.py"])
        assert (ast.get_docstring(module) or "").startswith(f"It is {PAYLOADS[name]} indeed.")


def test_kernels_know_nothing_of_prose_and_paths(tmp_path: Path) -> None:
    path = tmp_path / "here.yaml"
    path.write_text(yaml.safe_dump({**BASE, "description": "Another one."}, sort_keys=False))
    assert render_kernels(load(path)).texts == kernels(without_prose(load(BASE))).texts
