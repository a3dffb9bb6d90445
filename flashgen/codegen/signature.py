"""The variant's own part of its operator: what torch is told of it, and how many scalars travel as few arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashgen.codegen.docstrings import SCALARS
from flashgen.emit.torch import literal
from flashgen.lang.nodes import Type, variables
from flashgen.spec.variant import Param, Variant

# An operator of torch takes 64 arguments; that of the backward pass has up to 14 besides the variant's.
MOST = 50
_LISTS = {Type.FLOAT: "_floats", Type.INT: "_ints", Type.BOOL: "_bools"}


@dataclass(frozen=True)
class Signature:
    """`schema` is torch's, `parameters` and `arguments` stand where the operator is defined and called, each with a
    comma in front. `unpacking` are statements that name what came in lists.
    """

    schema: str
    parameters: str
    arguments: str
    unpacking: tuple[str, ...]


def signature(variant: Variant) -> Signature:
    """Each input and runtime param by itself, or where these are too many, the params in one list for each type."""
    schema = [f"Tensor{'' if t.default is None else '?'} {t.name}" for t in variant.inputs]
    parameters = [t.name for t in variant.inputs]
    arguments, unpacking = list(parameters), []
    packed = _packed(variant)
    for param in variant.runtime_params:
        if param not in packed:
            schema.append(f"{SCALARS[param.type.value]} {param.name}")
            parameters.append(param.name)
            arguments.append(param.name)
    for kind, name in _LISTS.items():
        members = ", ".join(p.name for p in packed if p.type is kind)
        if members:
            schema.append(f"{SCALARS[kind.value]}[] {name}")
            parameters.append(name)
            arguments.append(f"[{members}]")
            unpacking.append(f"{members}{'' if ',' in members else ','} = {name}")
    return Signature(", ".join(schema), _after(parameters), _after(arguments), tuple(unpacking))


@dataclass(frozen=True)
class Arguments:
    """The variant's own arguments of attention(): `parameters` stand in its head, each with a comma in front.

    What generated code calls otherwise comes in `others`, and `renaming` is the statement that takes it from there.
    """

    parameters: str
    renaming: str


def own_arguments(variant: Variant, names: Mapping[str, str]) -> Arguments:
    """Required inputs first, each keyword only; `names` are those of generated code."""
    defaults: dict[str, str] = {t.name: "" for t in variant.inputs if t.default is None}
    defaults |= {t.name: "None" for t in variant.inputs if t.default is not None}
    defaults |= {p.name: str(literal(p.value)) for p in variant.runtime_params}
    kept = {name: value for name, value in defaults.items() if names[name] == name}
    parameters = "".join(f", {name}={value}" if value else f", {name}" for name, value in kept.items())
    others = {name: value for name, value in defaults.items() if name not in kept}
    renaming = ""
    if others:
        items = ", ".join(f'"{name}": {value or "runtime.REQUIRED"}' for name, value in others.items())
        targets = ", ".join(names[name] for name in others) + ("," if len(others) == 1 else "")
        renaming = f"{targets} = runtime.keywords(others, {{{items}}})"
    return Arguments(parameters, renaming)


def sized_by(variant: Variant) -> tuple[str, ...]:
    """The runtime params that the shapes of inputs read."""
    read = variables(*(dim.size for tensor in variant.inputs for dim in tensor.dims))
    return tuple(param.name for param in variant.runtime_params if param.name in read)


def _packed(variant: Variant) -> tuple[Param, ...]:
    """Params that shapes read are never among them: a shape is checked before anything is unpacked."""
    if len(variant.inputs) + len(variant.runtime_params) <= MOST:
        return ()
    sizing = sized_by(variant)
    return tuple(p for p in variant.runtime_params if p.name not in sizing)


def _after(names: list[str]) -> str:
    return "".join(f", {name}" for name in names)
