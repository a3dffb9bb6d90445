"""What the module template needs around the kernels: argument checks, operator signature, launches."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flashgen.codegen.docstrings import (
    SCALARS,
    argument_lines,
    contents,
    differentiable,
    formula,
    input_table,
    quoted,
    shape_text,
)
from flashgen.codegen.kernels.backward_kv import BackwardKvView
from flashgen.codegen.kernels.backward_kv_sm90 import BackwardKvSm90View
from flashgen.codegen.kernels.backward_q import BackwardQView
from flashgen.codegen.kernels.backward_q_sm90 import BackwardQSm90View
from flashgen.codegen.kernels.decode import DecodeView
from flashgen.codegen.kernels.delta import DeltaView
from flashgen.codegen.kernels.forward import ForwardView
from flashgen.codegen.kernels.forward_sm90 import ForwardSm90View
from flashgen.codegen.kernels.schedule import ScheduleView
from flashgen.codegen.launches import Launch, dim_lines, launches, read_by
from flashgen.codegen.learned import LearnedLaunch, learned_launch
from flashgen.codegen.naming import inner, inner_names
from flashgen.codegen.packed import with_packed_queries
from flashgen.codegen.reference import SIZES, conversion, reference_view
from flashgen.codegen.signature import Signature, own_arguments, signature, sized_by
from flashgen.codegen.texts import Kernels
from flashgen.emit.torch import emit
from flashgen.lang.nodes import variables
from flashgen.runtime.identity import Identity
from flashgen.spec.variant import Input, Variant


@dataclass(frozen=True)
class Served:
    """What the launch of a decode kernel is given of the variant: `own` is the text of its inputs, runtime params and
    dimensions by name, after `dim_lines`; `options` that of what follows from the kernel, each with a comma in front.

    `input_checks` are the statements that check the inputs, () where they are those of attention(); `argument_lines`
    say what callers pass for them.
    """

    dim_lines: tuple[str, ...]
    own: str
    options: str
    input_checks: tuple[str, ...]
    argument_lines: str


@dataclass(frozen=True)
class ModuleView:
    """The holes of the module template; `kernels` is the rendered text of all kernels."""

    name: str
    title: str
    formula: str
    input_table: str
    contents: str
    source: str
    identity: Identity
    imports_math: bool
    imports_torch: bool
    kernels: str
    forward: ForwardView
    forward_sm90: ForwardSm90View
    backward_q: BackwardQView
    backward_q_sm90: BackwardQSm90View
    backward_kv: BackwardKvView
    backward_kv_sm90: BackwardKvSm90View
    backward_inputs: BackwardQView | None
    schedule: ScheduleView | None
    decode: Served
    decode_paged: Served
    operator: Signature
    parameters: str
    renaming: str
    delta: DeltaView
    launches: Mapping[str, Launch]
    schedule_call: str
    plan_dim_lines: tuple[str, ...]
    launch_inputs: LearnedLaunch
    differentiable: str
    inputs: str
    sized_by: tuple[str, ...]
    conversions: tuple[str, ...]
    learned: tuple[str, ...]
    input_checks: tuple[str, ...]
    input_keywords: str
    scalar_checks: tuple[str, ...]
    argument_lines: str
    reference_setup: tuple[str, ...]
    reference_lines: tuple[str, ...]
    reference_score: str
    reference_mask: str
    bottom_right: bool

    @property
    def plans_keys(self) -> bool:
        """Whether a plan has a part for the backward pass: which tiles of queries a tile of keys needs."""
        return self.forward.scheduled and self.backward_kv.scheduled


def module_view(variant: Variant, kernels: Kernels, identity: Identity) -> ModuleView:
    """Lay the module out around its rendered kernels.

    What callers see goes by the names of the spec, all else by those of generated code.
    """
    public, names = variant, inner_names(variant)
    variant = inner(variant)
    forward, schedule = kernels.forward, kernels.schedule
    inputs_view = kernels.backward_inputs
    sums = learned_launch(variant, None if inputs_view is None else inputs_view.learned)
    checks, checks_math = _checks(variant, {inside: name for name, inside in names.items()})
    scheduled = read_by(variant, () if schedule is None else schedule.arguments)
    reference = reference_view(variant)
    arguments = own_arguments(public, names)
    return ModuleView(
        name=variant.name,
        title=quoted(variant.description),
        formula=formula(public),
        input_table=input_table(public),
        contents=contents(schedule is not None, sums.names if inputs_view is not None else ()),
        source=quoted(shlex.quote(variant.source)),
        identity=identity,
        imports_math=reference.imports_math or checks_math or arguments.imports_math,
        imports_torch=bool(variant.inputs) or schedule is not None or reference.imports_torch,
        kernels=kernels.text,
        forward=forward,
        forward_sm90=kernels.forward_sm90,
        backward_q=kernels.backward_q,
        backward_q_sm90=kernels.backward_q_sm90,
        backward_kv=kernels.backward_kv,
        backward_kv_sm90=kernels.backward_kv_sm90,
        backward_inputs=inputs_view,
        schedule=schedule,
        decode=_served(variant, kernels.decode, public),
        decode_paged=_served(variant, kernels.decode_paged, public),
        operator=signature(variant),
        parameters=arguments.parameters,
        renaming=arguments.renaming,
        delta=kernels.delta,
        launches=launches(variant, kernels, scheduled, sums.names),
        schedule_call="".join(f"{name}, " for name in scheduled),
        plan_dim_lines=dim_lines(variant.inputs, scheduled),
        launch_inputs=sums,
        differentiable=differentiable(public),
        inputs=", ".join(t.name for t in variant.inputs),
        sized_by=sized_by(variant),
        conversions=tuple(map(conversion, variant.inputs)),
        learned=tuple(t.name for t in variant.inputs if t.grad),
        input_checks=tuple(checks),
        input_keywords="".join(f", {t.name}={names[t.name]}" for t in public.inputs),
        scalar_checks=tuple(
            f'{names[p.name]} = runtime.check_scalar("{p.name}", {names[p.name]}, {SCALARS[p.type.value]})'
            for p in public.runtime_params
        ),
        argument_lines="\n".join(argument_lines(public)),
        reference_setup=reference.setup,
        reference_lines=reference.lines,
        reference_score=reference.score,
        reference_mask=reference.mask,
        bottom_right=variant.align == "bottom_right",
    )


def _served(variant: Variant, view: DecodeView, public: Variant) -> Served:
    names = read_by(variant, view.arguments)
    own = "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"
    options = f", span={view.span}" if view.span else ""
    options += ", natural=True" if view.natural and view.paged else ""
    packed = with_packed_queries(variant) if view.paged else variant
    checks: tuple[str, ...] = ()
    if packed is not variant:
        lines, _ = _checks(packed, {inside: name for name, inside in inner_names(public).items()})
        checks = ("total_q = q.shape[0]", *lines)
    lines_of = argument_lines(with_packed_queries(public) if view.paged else public)
    return Served(dim_lines(variant.inputs, names), own, options, checks, "\n".join(lines_of))


def _checks(variant: Variant, public: Mapping[str, str]) -> tuple[list[str], bool]:
    """Statements that check each input against the `sizes` of a call, and name the sizes that they need.

    `public` has the names by which callers know the inputs.
    """
    if not variant.inputs:
        return [], False
    lines: list[str] = []
    emission = emit([dim.size for t in variant.inputs for dim in t.dims], inlined=True)
    sizes = iter(emission.results)
    used = {name for t in variant.inputs for dim in t.dims for name in variables(dim.size)}
    for t in variant.inputs:
        if t.default == "alibi_slopes":
            lines += [f"if {t.name} is None:", f"    {t.name} = runtime.alibi_slopes(sizes.heads, q.device)"]
    lines += [f"{name} = sizes.{name}" for name in SIZES if name in used]
    for t in variant.inputs:
        shape = [next(sizes) if dim.binds is None else (next(sizes), "None")[1] for dim in t.dims]
        own = {dim.binds for dim in t.dims}
        later = [dim.binds is None and bool(variables(dim.size) & own) for dim in t.dims]
        if any(later):
            # [n, n]: that there is a first n comes before what it says of the second.
            lines.append(
                _check(t, public[t.name], ["None" if wait else text for wait, text in zip(later, shape, strict=True)])
            )
            lines += dim_lines([t], used)
            lines.append(_check(t, public[t.name], shape))
        else:
            lines.append(_check(t, public[t.name], shape))
            lines += dim_lines([t], used)
    return lines, "math" in emission.reads


def _check(t: Input, name: str, shape: Sequence[str]) -> str:
    """The statement that checks an input against a shape, None for what it may choose."""
    text = ", ".join(shape) + ("," if len(shape) == 1 else "")
    ones = [str(axis) for axis, dim in enumerate(t.dims) if dim.may_be_one]
    extra = f", may_be_one=({', '.join(ones)}{',' if len(ones) == 1 else ''})" if ones else ""
    return f'{t.name} = runtime.check_input("{name}", {t.name}, {shape_text(t)!r}, ({text}), torch.{t.dtype}, q{extra})'
