"""The words that generated code is made of, so that no name of a spec is one of them.

They are read off what generated code comes from: the texts of the templates, the strings of the modules that write
statements, and what both may import. Comments and docstrings are no code.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from jinja2 import nodes

from flashgen import analysis, emit, lang
from flashgen.codegen.imports import importable_names
from flashgen.codegen.templates import environment
from flashgen.runtime.differentiable import OPERATOR_WORDS

_WORD = re.compile(r"[A-Za-z]\w*")
# What templates call an input of sugar by, where the spec has that sugar: then it has no other input of this name.
_OF_SUGAR = frozenset({"sinks", "sinks_ptr"})
# Docstrings, comments, and what inline assembly says of registers.
_NO_CODE = re.compile(r'""".*?"""|(?<![^\s])#[^\n]*|"=[^"\n]*"', re.DOTALL)
# Modules whose strings are not emitted.
_NOT_EMITTED = frozenset({
    "compilation.py", "headers.py", "kernel_text.py", "layout.py", "loading.py", "offline.py", "registry.py",
    "rehearsal.py", "templates.py", "vocabulary.py", "words.py", "write.py",
})  # fmt: skip
# Names that begin with an underscore are those of generated code itself, of Python and of Triton. A name of a spec has
# this before its underscore there; and so once more has one that looks like that.
_BEFORE = "under"
_UNDERSCORED = re.compile(f"(?:{_BEFORE})*_")
# Arguments that torch's operators, and Python's own functions, take for something else.
_OTHERS = frozenset({"self", "Tensor", "Scalar", "SymInt", "Generator", "Device", *OPERATOR_WORDS})


@cache
def words() -> frozenset[str]:
    """All of them, those of expressions that kernels are worked out from included."""
    found = {*_of_templates(), *importable_names(), *keyword.kwlist, *dir(builtins), *_OTHERS}
    for folder in (Path(__file__).parent, *(Path(*package.__path__) for package in (lang, analysis, emit))):
        found.update(_of_modules(folder))
    return frozenset(found - _OF_SUGAR)


def mangled_name(name: str) -> str:
    """What generated code calls an input, runtime param, dimension or let of this name; different for each."""
    name = begun_with_a_letter(name)
    base = name.rstrip("_")
    derived = base.endswith("_ptr") or base.startswith("stride_") or f"{base}_ptr" in words()
    return f"{name}_" if derived or base in words() else name


def begun_with_a_letter(name: str) -> str:
    """A name of a spec that is none of those that begin with an underscore; different for each."""
    return f"{_BEFORE}{name}" if _UNDERSCORED.match(name) else name


def _of_templates() -> Iterator[str]:
    engine = environment()
    assert engine.loader is not None
    for name in engine.list_templates(extensions=["jinja"]):
        source, _, _ = engine.loader.get_source(engine, name)
        # Code that several pieces of text make is read as one.
        yield from _words("".join(_texts(engine.parse(source))))


def _texts(template: nodes.Template) -> Iterator[str]:
    """What a template writes of its own: its text, and the strings in its expressions but for names of filters."""
    filters = {id(f.args[0]) for f in template.find_all(nodes.Filter) if f.name == "map" and f.args}
    for node in template.find_all((nodes.TemplateData, nodes.Const)):
        if isinstance(node, nodes.TemplateData):
            yield node.data
        elif isinstance(node, nodes.Const) and isinstance(node.value, str) and id(node) not in filters:
            yield f" {node.value} "


def _of_modules(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        if path.name in _NOT_EMITTED:
            continue
        prose: set[int] = set()
        # A statement comes before what it is made of.
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Expr):
                prose.add(id(node.value))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                yield from _words(node.value)


def _words(text: str) -> Iterator[str]:
    return (found.group() for found in _WORD.finditer(_NO_CODE.sub(" ", text)))
