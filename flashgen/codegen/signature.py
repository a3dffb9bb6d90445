"""The variant's own arguments of a function of its module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashgen.codegen.docstrings import argument_lines
from flashgen.emit.eager_nodes import literal
from flashgen.lang.traversal import variables
from flashgen.lang.variables import KV_LEN, Q_LEN
from flashgen.spec.keywords import keyword_names
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class Arguments:
    """The variant's own arguments of a function: `parameters` stand in its head, each with a comma in front.

    What generated code calls otherwise comes in `others`, and `renaming` is the statement that takes it from there.
    `lines` say in the docstring what each is; some of them name lengths where it `counts_lengths`.
    """

    parameters: str
    renaming: str
    lines: str
    counts_lengths: bool


def own_arguments(variant: Variant, names: Mapping[str, str], function: str) -> Arguments:
    """Required inputs first, each keyword only; `names` are those of generated code."""
    defaults: dict[str, str] = {t.name: "" for t in variant.inputs if t.default is None}
    defaults |= {t.name: "None" for t in variant.inputs if t.default is not None}
    defaults |= {p.name: str(literal(p.value)) for p in variant.runtime_params}
    keywords = keyword_names(variant, function)
    kept = {name: value for name, value in defaults.items() if names[name] == name == keywords[name]}
    parameters = "".join(f", {name}={value}" if value else f", {name}" for name, value in kept.items())
    others = {name: value for name, value in defaults.items() if name not in kept}
    renaming = ""
    if others:
        items = ", ".join(f'"{keywords[name]}": {value or "runtime.REQUIRED"}' for name, value in others.items())
        targets = ", ".join(names[name] for name in others) + ("," if len(others) == 1 else "")
        renaming = f"{targets} = runtime.keywords(others, {{{items}}})"
    sizes = [dim.size for tensor in variant.inputs for dim in tensor.dims]
    return Arguments(
        parameters,
        renaming,
        "\n".join(argument_lines(variant, keywords)),
        bool(variables(Q_LEN, KV_LEN) & variables(*sizes)),
    )
