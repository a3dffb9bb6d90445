"""What the eager `reference` of a module consists of, from the same expressions as its kernels."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.analysis.facts import facts_of
from flashgen.emit.eager_signs import POSITIVE_SIZES
from flashgen.emit.torch import emit
from flashgen.lang.branches import with_tame_branches
from flashgen.lang.nodes import TRUE, Expr, Gather, Index, Type
from flashgen.lang.traversal import inputs, variables
from flashgen.lang.vocabulary import VARYING
from flashgen.spec.names import SIZES
from flashgen.spec.variant import Input, Variant


@dataclass(frozen=True)
class Reference:
    """The statements of `reference`: what comes before the score, those of both, and the texts of score and mask."""

    setup: tuple[str, ...]
    lines: tuple[str, ...]
    score: str
    mask: str


def reference_view(variant: Variant) -> Reference:
    """Work them out."""
    ranges = facts_of(variant).ranges
    dims = {t.name: t.dims for t in variant.inputs}

    def guard(node: Gather, axis: int) -> tuple[bool, bool]:
        return ranges.guard(node, axis, dims[node.input][axis].size)

    def may_lack(node: Gather, axis: int) -> bool:
        index, size = node.indices[axis], dims[node.input][axis].size
        counts = isinstance(index, Index) and index.length is size
        return not counts and not variables(size) <= POSITIVE_SIZES

    score = with_tame_branches(variant.score, {t.name for t in variant.inputs if t.grad})
    roots: list[Expr] = [score] + ([] if variant.mask is TRUE else [variant.mask])
    taken = {*dims, *SIZES, *(p.name for p in variant.runtime_params), *variant.dim_names}
    emission = emit(roots, variant.lets, guard, taken, wraps=ranges.may_wrap, may_lack=may_lack)
    result, *masks = (_as_tensor(text, root) for text, root in zip(emission.results, roots, strict=True))
    return Reference(
        _setup(variant, {*variables(*roots), *emission.reads}),
        emission.lines,
        result,
        masks[0] if masks else "None",
    )


def expanded_shape(tensor: Input) -> str:
    """The arguments of `expand` that let a dimension of size 1 be indexed as one that is whole."""
    sizes = iter(emit([dim.size for dim in tensor.dims if dim.may_be_one], inlined=True).results)
    return ", ".join(next(sizes) if dim.may_be_one else "-1" for dim in tensor.dims)


def conversion(tensor: Input) -> str:
    """The statement that brings what a caller passes for an input to its dtype."""
    return f"{tensor.name} = runtime.as_dtype({tensor.name}, torch.{tensor.dtype})"


def _as_tensor(text: str, expr: Expr) -> str:
    """A result of sizes and params alone is a Python scalar; the formula returns tensors."""
    dtype = "" if expr.type is Type.BOOL else "dtype=score.dtype, "
    return f"torch.as_tensor({text}, {dtype}device=score.device)" if _is_scalar(expr) else text


def _is_scalar(expr: Expr) -> bool:
    return not variables(expr) & VARYING and not inputs(expr)


def _setup(variant: Variant, used: set[str]) -> tuple[str, ...]:
    lines: list[str] = []
    if params := [p.name for p in variant.runtime_params]:
        targets = ", ".join(params) + ("," if len(params) == 1 else "")
        lines.append(f"{targets} = runtime.checked_params(VARIANT, {', '.join(params)})")
    shapes = {"batch": "q.shape[0]", "heads": "q.shape[1]", "q_len": "q.shape[2]", "head_dim": "q.shape[3]"}
    shapes |= {"kv_heads": "k.shape[1]", "kv_len": "k.shape[2]"}
    expanded = {name for t in variant.inputs for d in t.dims if d.may_be_one for name in variables(d.size)}
    for t in variant.inputs:
        if t.default == "alibi_slopes":
            lines += [f"if {t.name} is None:", f"    {t.name} = runtime.alibi_slopes(q.shape[1], q.device)"]
    lines += [f"{name} = {shapes[name]}" for name in SIZES if name in used | expanded]
    # Floats keep what they are: a proof passes wider ones.
    lines += [conversion(t) for t in variant.inputs if "float" not in t.dtype]
    for t in variant.inputs:
        lines += [f"{d.binds} = {t.name}.shape[{a}]" for a, d in enumerate(t.dims) if d.binds in used]
        if any(d.may_be_one for d in t.dims):
            lines.append(f"{t.name} = {t.name}.expand({expanded_shape(t)})")
    return tuple(lines)
