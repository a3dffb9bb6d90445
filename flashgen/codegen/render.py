"""From a Variant to the files of its package: the views, the templates, the imports and the layout."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache

from flashgen import spec as specs
from flashgen.codegen.digests import kernel_digests
from flashgen.codegen.docstrings import contents, formula, input_table, quoted
from flashgen.codegen.imports import defined_names, import_block
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.layout import formatted
from flashgen.codegen.module import module_view
from flashgen.codegen.naming import mangled
from flashgen.codegen.registry import TEXTS, as_read
from flashgen.codegen.rendered_kernels import PAIR, RenderedKernels, render_kernels
from flashgen.codegen.templates import environment
from flashgen.runtime.collecting import no_collections
from flashgen.runtime.identity import Identity
from flashgen.spec.variant import Variant

MODULE = "__init__.py"
# What the module does before it imports the variant's other files.
BEFORE_FILES = "runtime.forget_files(__name__)  # importlib.reload is to import them anew"


@no_collections()
def render(variant: Variant) -> dict[str, str]:
    """The text of each file of the variant's package by its path there, `__init__.py` first."""
    kernels = _kernels(variant)
    own, titles = _owners(kernels.texts), _titles(variant, kernels)
    view = module_view(variant, kernels, _identity(variant, kernels))
    body = environment().get_template("module.py.jinja").render(v=view).strip()
    parts = (formula(variant), input_table(variant), contents(titles))
    files = {MODULE: _file(variant, quoted(variant.description), parts, body, own, BEFORE_FILES)}
    for name, text in kernels.texts.items():
        named = f": {', '.join(defined_names(text))}" if name == PAIR else ""
        title = f"{variant.name}: {titles[name]}{named}."
        files[f"{name}.py"] = _file(variant, title, (), text, own)
    return formatted(files)


def identity(variant: Variant) -> Identity:
    """What the generated module says of itself, to which records refer."""
    return _identity(variant, _kernels(variant))


def _identity(variant: Variant, kernels: RenderedKernels) -> Identity:
    digests = kernel_digests(kernels.texts, _owners(kernels.texts))
    arguments = {t.name: t.dtype for t in variant.inputs} | {p.name: p.type.value for p in variant.runtime_params}
    return Identity(variant.name, specs.digest(variant), digests, variant.source, arguments)


def kernels_of_variant(variant: Variant) -> tuple[KernelText, ...]:
    """The kernels that the variant is rendered to, in the order in which their files are best read."""
    texts = _kernels(variant).texts
    return tuple(kernel for kernel in as_read() if kernel.name in texts)


def _titles(variant: Variant, kernels: RenderedKernels) -> dict[str, str]:
    """What each file computes."""
    found = {text.name: text.what(variant) for text in TEXTS if text.name in kernels.texts}
    found[PAIR] = "what several kernels compute of a pair of query and key"
    return {name: found[name] for name in kernels.texts}


def _kernels(variant: Variant) -> RenderedKernels:
    return _kernels_by(variant, tuple(TEXTS))


@lru_cache(maxsize=16)
def _kernels_by(variant: Variant, _: tuple[KernelText, ...]) -> RenderedKernels:
    return render_kernels(mangled(variant))


def _owners(texts: Mapping[str, str]) -> dict[str, str]:
    """Which file defines each name."""
    return {name: file for file, text in texts.items() for name in defined_names(text)}


def exported_docstring(variant: Variant, name: str) -> str:
    """What the variant's package begins with as one file of that name."""
    parts = (formula(variant), input_table(variant))
    return _docstring(variant, quoted(variant.description), parts, "export", f" -o {quoted(shlex.quote(name))}")


def _file(
    variant: Variant, title: str, parts: Sequence[str], body: str, own: Mapping[str, str], before_own: str = ""
) -> str:  # fmt: skip
    head = _docstring(variant, title, parts, "build")
    return "\n\n".join(part for part in (head, import_block(body, own, before_own), body) if part) + "\n"


def _docstring(variant: Variant, title: str, parts: Sequence[str], command: str, options: str = "") -> str:
    source = quoted(shlex.quote(variant.source))
    template = environment().get_template("docstring.py.jinja")
    return template.render(title=title, parts=parts, source=source, command=command, options=options).strip()
