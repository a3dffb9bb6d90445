"""What the docstrings of a module and of its `attention` say of the variant."""

from __future__ import annotations

from collections.abc import Sequence

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
    if variant.align == "top_left":
        lines.append("    query i stands at key position i")
    else:
        lines.append("    query i stands at key position i + kv_len - q_len")
    return "\n".join(lines)


def shape_text(tensor: Input) -> str:
    """The shape of an input as its spec has it, `|1` where a dimension may be 1 instead."""
    return "[" + ", ".join(f"{d.text}|1" if d.may_be_one else d.text for d in tensor.dims) + "]"


def input_table(variant: Variant) -> str:
    """The inputs with shapes and dtypes; empty without any."""
    if not variant.inputs:
        return ""
    return "Inputs:\n" + "".join(f"    {t.name} {shape_text(t)} {t.dtype}\n" for t in variant.inputs)


def contents(scheduled: bool, learned: Sequence[str]) -> str:
    """Where to find what in the module, top to bottom; `learned` are the inputs whose gradients have a kernel."""
    callers = "attention, attention_paged, " + ("plan, reference" if scheduled else "reference")
    parts = {
        "_forward, _forward_hopper": "out and lse: the portable kernel, and that for Hopper",
        "_classify": "which tiles of queries and keys the mask leaves out, mixes or leaves whole" if scheduled else "",
        "_delta": "what the backward kernels need of each row",
        "_backward_q, _backward_q_hopper": "dq",
        "_backward_kv, _backward_kv_hopper": "dk and dv, dq too where a config fuses it; _wide: for wide heads",
        "_backward_inputs": f"the gradient{'s' * (len(learned) > 1)} of {', '.join(learned)}" if learned else "",
        "_decode, _decode_paged": "out and lse of few queries over many keys, and of those in a paged cache",
        callers: "what callers use, after the launches of the kernels",
    }
    return "In this file:\n" + "".join(f"    {name:35}{what}\n" for name, what in parts.items() if what)


def differentiable(variant: Variant) -> str:
    """In what `attention` is differentiable."""
    names = ["q", "k", "v", *(t.name for t in variant.inputs if t.grad)]
    return f"Differentiable in {', '.join(names[:-1])} and {names[-1]}."


def argument_lines(variant: Variant) -> list[str]:
    """A line for each argument that is the variant's own."""
    lines = []
    for t in variant.inputs:
        ending = "; the paper's by default" if t.default == "alibi_slopes" else ""
        lines.append(f"{t.name}: {t.dtype} {shape_text(t)}{ending}.")
    return lines + [f"{p.name}: {SCALARS[p.type.value]}, {p.value!r} by default." for p in variant.runtime_params]
