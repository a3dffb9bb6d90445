"""From a Variant to the text of its module: the views, the templates and the layout."""

from __future__ import annotations

import hashlib
import re

from flashgen import spec as specs
from flashgen.codegen.imports import import_block
from flashgen.codegen.layout import formatted
from flashgen.codegen.module import module_view
from flashgen.codegen.naming import inner
from flashgen.codegen.templates import environment
from flashgen.codegen.texts import Kernels, render_kernels
from flashgen.runtime.identity import Identity
from flashgen.spec.variant import Variant


def render(variant: Variant) -> str:
    """The text of the generated module."""
    kernels = render_kernels(inner(variant))
    view = module_view(variant, kernels, _identity(variant, kernels))
    template = environment().get_template("module.py.jinja")
    imports = import_block(template.render(v=view, imports=""), {})
    return formatted(template.render(v=view, imports=imports))


def identity(variant: Variant) -> Identity:
    """What the generated module says of itself, to which records refer."""
    return _identity(variant, render_kernels(inner(variant)))


def _identity(variant: Variant, kernels: Kernels) -> Identity:
    templates = {kernel: templates_digest(text) for kernel, text in kernels.texts.items()}
    arguments = {t.name: t.dtype for t in variant.inputs} | {p.name: p.type.value for p in variant.runtime_params}
    return Identity(variant.name, specs.digest(variant), templates, variant.source, arguments)


def templates_digest(kernels: str) -> str:
    """12 hex digits of the kernels' text: it changes with the templates and the emitters wherever that is felt."""
    return hashlib.sha256(re.sub(r"\s+", " ", kernels).encode()).hexdigest()[:12]
