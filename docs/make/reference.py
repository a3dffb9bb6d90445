"""The reference: keys from the JSON Schema, names and functions of the language, commands from typer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer
import yaml

from flashgen.cli.app import app
from flashgen.lang.vocabulary import MEANINGS
from flashgen.spec import json_schema

# Each function: how it is called, what it gives.
FUNCTIONS = {
    "abs": ("abs(x)", "x without its sign; an integer stays one"),
    "all": ("all(i, n, test)", "whether the test holds for every i from 0 to n - 1"),
    "any": ("any(i, n, test)", "whether the test holds for some i from 0 to n - 1"),
    "ceil": ("ceil(x)", "the least integer that is not below x"),
    "clamp": ("clamp(x, low, high)", "x, or the nearer end where it lies outside"),
    "cos": ("cos(x)", "the cosine, x in radians"),
    "erf": ("erf(x)", "the error function"),
    "exp": ("exp(x)", "e to the power of x"),
    "exp2": ("exp2(x)", "2 to the power of x"),
    "floor": ("floor(x)", "the greatest integer that is not above x"),
    "log": ("log(x)", "the natural logarithm"),
    "log1p": ("log1p(x)", "log(1 + x)"),
    "log2": ("log2(x)", "the logarithm to base 2"),
    "max": ("max(x, y, ...)", "the greatest of two or more"),
    "min": ("min(x, y, ...)", "the least of two or more"),
    "sigmoid": ("sigmoid(x)", "1 / (1 + exp(-x))"),
    "sign": ("sign(x)", "-1, 0 or 1"),
    "sin": ("sin(x)", "the sine, x in radians"),
    "sqrt": ("sqrt(x)", "the square root"),
    "sum": ("sum(i, n, term)", "the sum of the term over i from 0 to n - 1"),
    "tan": ("tan(x)", "the tangent, x in radians"),
    "tanh": ("tanh(x)", "the hyperbolic tangent"),
    "where": ("where(test, x, y)", "x where the test holds, else y"),
}


def functions() -> str:
    """Names and functions of the language."""
    names = [f"| `{name}` | {meaning} |" for name, meaning in MEANINGS.items()]
    calls = [f"| `{call}` | {meaning} |" for call, meaning in FUNCTIONS.values()]
    return "\n".join(
        ["# Names and functions\n", "[The language](../language.md) has operators, types and limits.\n", "## Names\n",
         "| name | what it is |\n| --- | --- |", *names, "\n## Functions\n",
         "| call | what it gives |\n| --- | --- |", *calls, ""]
    )  # fmt: skip


def keys() -> str:
    """Keys of a spec, from the schema that `flashgen schema` prints."""
    whole = json_schema()
    sections = [("Keys of a spec", whole), *whole["$defs"].items()]
    lines = ["From the JSON Schema that `flashgen schema` prints.\n"]
    for title, part in sections:
        if "properties" in part:
            lines += [f"{'#' if part is whole else '##'} {title}\n", *_keys(part), ""]
    lines[0], lines[1] = lines[1], lines[0]
    return "\n".join(lines)


def _keys(part: Mapping[str, Any]) -> Iterator[str]:
    yield "| key | type | what it says |\n| --- | --- | --- |"
    for name, entry in part["properties"].items():
        examples = ", ".join(f"`{_cell(_yaml(each))}`" for each in entry.get("examples", ())[:2])
        said = _cell(entry.get("description", "")) + (f" Such as {examples}." if examples else "")
        need = " (needed)" if name in part.get("required", ()) else ""
        yield f"| `{name}`{need} | {_cell(_type(entry))} | {said} |"


def _type(entry: Mapping[str, Any]) -> str:
    if "$ref" in entry:
        name = str(entry["$ref"].rsplit("/", 1)[-1])
        return f"[{name}](#{name.lower()})"
    if "enum" in entry:
        return " or ".join(f"`{each}`" for each in entry["enum"])
    if "anyOf" in entry:
        return " or ".join(dict.fromkeys(_type(each) for each in entry["anyOf"]))
    if entry.get("type") == "array" and isinstance(entry.get("items"), dict):
        return f"list of {_type(entry['items'])}"
    if entry.get("type") == "object":
        below = entry.get("additionalProperties")
        return f"mapping of names to {_type(below)}" if isinstance(below, dict) else "mapping"
    if isinstance(entry.get("type"), list):
        return " or ".join(entry["type"])
    return str(entry.get("type", f"`{entry['const']}`" if "const" in entry else "any"))


def _yaml(value: object) -> str:
    """A value as a spec has it, in one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def commands() -> str:
    """Every command with its options, from the parser itself."""
    root = typer.main.get_command(app)
    return "\n".join(["# Commands and options\n", *_command(root, "flashgen")])


def _command(command: Any, name: str) -> Iterator[str]:
    children: Mapping[str, Any] = getattr(command, "commands", {})
    if not children:
        yield f"## {name}\n\n{_plain(command.help or '').strip()}\n"
        params = [param for param in command.params if not getattr(param, "hidden", False)]
        if params:
            yield "| argument or option | what it says |\n| --- | --- |"
        for param in params:
            yield f"| {_call(param)} | {_cell(_plain(getattr(param, 'help', '') or ''))} |"
        yield ""
    for child, below in children.items():
        yield from _command(below, f"{name} {child}")


def _plain(text: str) -> str:
    """What was written for a terminal, where a star is a star."""
    return re.sub(r"([*_<])", r"\\\1", text)


def _call(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.metavar or str(param.name).upper()}`"
    return ", ".join(f"`{option}`" for option in (*param.opts, *param.secondary_opts))


def _documented(path: str, name: str) -> str:
    """A function by where it is defined and by how users name it."""
    return f"::: {path}\n    options:\n      heading: {name}\n"


_SERVING = {
    "store_kv": "storing.store_kv",
    "merge_states": "merging.merge_states",
    "check": "serving_checks.check",
    "check_varlen": "serving_checks.check_varlen",
}
_VARIANT = ("attention", "attention_varlen", "attention_paged", "plan_paged", "reference")

PYTHON = f"""# Python

## The package

{_documented("flashgen.api.build", "flashgen.build")}
{_documented("flashgen.spec.load.load", "flashgen.spec.load")}
## FlexAttention's signature

{_documented("flashgen.flex.attention.flex_attention", "flashgen.flex.flex_attention")}
{_documented("flashgen.flex.spec.to_spec", "flashgen.flex.to_spec")}
## A generated variant

Every module has these functions; alibi's, as an example.

{"".join(_documented(f"generated.alibi.{name}", name) for name in _VARIANT)}
## Serving

{"".join(_documented(f"flashgen.runtime.{path}", f"serving.{name}") for name, path in _SERVING.items())}"""
