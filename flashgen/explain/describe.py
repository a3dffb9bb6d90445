"""What a spec means, in words and formulas, for a person to check against what they meant."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.analysis.facts import facts_of
from flashgen.codegen import kernels_of_variant
from flashgen.codegen.kernel_text import KernelText
from flashgen.lang.nodes import TRUE, Expr
from flashgen.lang.show import show
from flashgen.problems.draws import drawn_as
from flashgen.runtime.registry import REGISTRY
from flashgen.spec.digest import digest
from flashgen.spec.variant import Input, Variant


@dataclass(frozen=True)
class Named:
    """A named expression as it is understood: its text in the language, sugar spelled out, and its type."""

    name: str
    text: str
    type: str


@dataclass(frozen=True)
class Explanation:
    """`skipping` says how tiles without a visible pair are left out, `lower` and `upper` bound the visible keys.

    `kernels` says which there are, and the calls that each serves; `warnings` what may not be meant.
    """

    name: str
    description: str
    source: str
    digest: str
    formula: tuple[str, ...]
    lets: tuple[Named, ...]
    score: Named
    mask: Named
    inputs: tuple[str, ...]
    params: tuple[str, ...]
    lower: str | None
    upper: str | None
    residual: str | None
    skipping: str
    kernels: tuple[str, ...]
    warnings: tuple[str, ...]


def describe(variant: Variant, scheduled: bool) -> Explanation:
    """Explain a variant; `scheduled` says whether its kernel needs a schedule of tiles."""
    bounds = facts_of(variant).keys
    lower = _shown(variant, bounds.lower_bound)
    upper = _shown(variant, bounds.upper_bound)
    residual = None if bounds.closed else show(bounds.residual, variant.lets)
    return Explanation(
        name=variant.name,
        description=variant.description,
        source=variant.source,
        digest=digest(variant),
        formula=_formula(variant),
        lets=tuple(_named(name, node, ()) for name, node in variant.lets),
        score=_named("score", variant.score, variant.lets),
        mask=_named("mask", variant.mask, variant.lets),
        inputs=tuple(_input(tensor, drawn_as(variant).get(tensor.name)) for tensor in variant.inputs),
        params=tuple(_params(variant)),
        lower=lower,
        upper=upper,
        residual=residual,
        skipping=_skipping(variant, scheduled, lower, upper),
        kernels=tuple(_kernel(text, variant) for text in kernels_of_variant(variant)),
        warnings=variant.warnings,
    )


def _named(name: str, node: Expr, lets: tuple[tuple[str, Expr], ...]) -> Named:
    return Named(name, show(node, lets), node.type.value)


def _shown(variant: Variant, node: Expr | None) -> str | None:
    return None if node is None else show(node, variant.lets)


def _formula(variant: Variant) -> tuple[str, ...]:
    start = "i + kv_len - q_len" if variant.align == "bottom_right" else "i"
    total = "sum over visible k of exp(s[q, k])" + (" + exp(sinks[h])" if variant.sink else "")
    mask = "every k" if variant.mask is TRUE else show(variant.mask, variant.lets)
    return (
        f"q = {start} for query i",
        "score = scale * dot(Q[q], K[k])",
        f"s[q, k] = {show(variant.score, variant.lets)}",
        f"visible: {mask}",
        f"Z[q] = {total}",
        "out[q] = sum over visible k of exp(s[q, k]) / Z[q] * V[k]",
        "lse[q] = log(Z[q])" if not variant.sink else "lse[q] = log(Z[q]), the sink included",
    )


def _input(tensor: Input, kind: str | None) -> str:
    dims = ", ".join(f"{dim.text} or 1" if dim.may_be_one else dim.text for dim in tensor.dims)
    notes = ["learned"] if tensor.grad else []
    if tensor.range is not None:
        notes.append(f"drawn from {tensor.range[0]:g} to {tensor.range[1]:g}")
    elif kind:
        notes.append(f"drawn {kind}")
    if tensor.default is not None:
        notes.append("optional: the paper's slopes" if tensor.default == "alibi_slopes" else "optional")
    return f"{tensor.name}: {tensor.dtype} [{dims}]" + (f" ({', '.join(notes)})" if notes else "")


def _kernel(text: KernelText, variant: Variant) -> str:
    """Which calls a kernel serves, or what it computes where another one needs that; and whether it has a config to
    find."""
    names = {name for name, _ in text.functions}
    record = next((kernel for kernel in REGISTRY if kernel.name in names), None)
    found = f"{text.name}: {text.what(variant) if record is None else record.serves}"
    return found if record is not None and record.tuned else f"{found} (not tuned)"


def _params(variant: Variant) -> list[str]:
    return [
        f"{p.name}: {p.type.value} = {p.value} ({'argument of attention()' if p.runtime else 'baked in'})"
        for p in variant.params
    ]


def _skipping(variant: Variant, scheduled: bool, lower: str | None, upper: str | None) -> str:
    if variant.mask is TRUE:
        return "nothing to skip: every pair is visible, one loop over all keys without mask code"
    span = f"keys from {lower or '0'} to {upper or 'kv_len - 1'}"
    if not scheduled:
        return (
            f"in closed form: query q sees the {span}; over the queries of a tile their least and greatest give the "
            "loop's limits, and the keys that all of them see run without mask code"
        )
    within = f", within the {span}" if lower or upper else ""
    return (
        f"by a schedule{within}: a generated kernel finds for each tile whether none, some or all of its pairs are "
        "visible; plan() prepares it once, attention() rebuilds it when no plan is given"
    )
