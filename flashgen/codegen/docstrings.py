"""What the docstrings of a module and of its `attention` say of the variant."""

from __future__ import annotations

from collections.abc import Mapping
from keyword import iskeyword

from flashgen.lang.nodes import TRUE
from flashgen.printable import printable
from flashgen.spec.variant import Input, Variant

SCALARS = {"bool": "bool", "int": "int", "float": "float"}


def quoted(text: str) -> str:
    """A person's text inside a triple-quoted string, on a line that is not its last."""
    return printable(text).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def formula(variant: Variant) -> str:
    """The variant in plain mathematics, line by line."""
    texts = dict(variant.texts)
    lines = ["    out = softmax(score over visible keys) v, score = scale q k^T"]
    lines += [f"    {name} = {quoted(texts[name])}" for name, _ in variant.lets]
    if texts["score"] != "score":
        lines.append(f"    score = {quoted(texts['score'])}")
    if variant.mask is not TRUE:
        lines.append(f"    key k is visible to query q where {quoted(texts['mask'])}")
    if variant.sink:
        lines.append("    each row's denominator has one more term, exp(sinks[h])")
    if variant.dropout is not None:
        lines.append("    each weight of the softmax is dropped with probability dropout_p, the others are scaled by")
        lines.append("    1 / (1 - dropout_p)")
    if variant.align == "top_left":
        lines.append("    query i stands at key position i")
    else:
        lines.append("    query i stands at key position i + kv_len - q_len")
    return "\n".join(lines)


def shape_text(tensor: Input) -> str:
    """The shape of an input as its spec has it, `|1` where a dimension may be 1 instead."""
    return f"[{', '.join(dims_of(tensor))}]"


def dims_of(tensor: Input) -> list[str]:
    """The dimensions of an input as its spec has them, with `|1` where one may be 1 instead."""
    return [f"{d.text}|1" if d.may_be_one else d.text for d in tensor.dims]


def input_table(variant: Variant) -> str:
    """The inputs with shapes and dtypes; empty without any."""
    if not variant.inputs:
        return ""
    return "\n".join(["Inputs:", *(f"    {t.name} {shape_text(t)} {t.dtype}" for t in variant.inputs)])


def contents(titles: Mapping[str, str]) -> str:
    """What the files of the package compute, by their names."""
    return "\n".join(["Beside this file:", *(f"    {f'{name}.py':26}{what}" for name, what in titles.items())])


def differentiable(variant: Variant) -> str:
    """In what `attention` is differentiable."""
    names = ["q", "k", "v", *(t.name for t in variant.inputs if t.grad)]
    return f"Differentiable in {', '.join(names[:-1])} and {names[-1]}."


def argument_lines(variant: Variant, keywords: Mapping[str, str]) -> list[str]:
    """A line for each argument that is the variant's own; `keywords` are their names."""
    lines = []
    for t in variant.inputs:
        ending = "; the paper's by default" if t.default == "alibi_slopes" else ""
        lines.append(f"{_spelled(keywords[t.name], keywords)}: {t.dtype} {shape_text(t)}{ending}.")
    for p in variant.runtime_params:
        lines.append(f"{_spelled(keywords[p.name], keywords)}: {SCALARS[p.type.value]}, {p.value!r} by default.")
    return lines


def _spelled(name: str, keywords: Mapping[str, str]) -> str:
    """An argument's name as a call can spell it: that of a keyword of Python has an underscore behind it."""
    if not iskeyword(name):
        return name
    spelled = f"{name}_"
    return f'**{{"{name}": ...}}' if spelled in keywords.values() else spelled
