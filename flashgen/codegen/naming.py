"""A variant as generated code names it: where a name of its spec is a word of that code, it gives way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from flashgen.codegen.words import begun_with_a_letter, mangled_name
from flashgen.lang.nodes import Expr, Gather, Index, Var, gather, index, var
from flashgen.lang.traversal import rebuild, walk
from flashgen.spec.variant import Dim, Input, Variant


# All that is worked out of a variant begins with it.
@lru_cache(maxsize=64)
def mangled(variant: Variant) -> Variant:
    """The variant under the names of its generated code; itself where these are those of its spec."""
    names = mangled_names(variant)
    sizes = [dim.size for tensor in variant.inputs for dim in tensor.dims]
    lets = [node for _, node in variant.lets]
    roots = [variant.score, variant.mask, *sizes, *lets]
    of_indices = {node.word: begun_with_a_letter(node.word) for node in walk(*roots) if isinstance(node, Index)}
    if all(name == inside for name, inside in (*names.items(), *of_indices.items())):
        return variant
    score, mask, *rest = _renamed(roots, names)
    renamed_sizes = iter(rest[: len(sizes)])
    return replace(
        variant,
        inputs=tuple(_input(tensor, [next(renamed_sizes) for _ in tensor.dims], names) for tensor in variant.inputs),
        params=tuple(replace(p, name=names.get(p.name, p.name)) for p in variant.params),
        lets=tuple((names[name], node) for (name, _), node in zip(variant.lets, rest[len(sizes) :], strict=True)),
        score=score,
        mask=mask,
    )


def mangled_names(variant: Variant) -> dict[str, str]:
    """What generated code calls each input, runtime param, dimension and let, by its name in the spec."""
    spec = [t.name for t in variant.inputs] + [p.name for p in variant.runtime_params]
    spec += [*variant.dim_names, *(name for name, _ in variant.lets)]
    return {name: mangled_name(name) for name in spec}


def _input(tensor: Input, sizes: Sequence[Expr], names: dict[str, str]) -> Input:
    dims = tuple(_dim(dim, size, names) for dim, size in zip(tensor.dims, sizes, strict=True))
    return replace(tensor, name=names[tensor.name], dims=dims)


def _dim(dim: Dim, size: Expr, names: dict[str, str]) -> Dim:
    return replace(dim, size=size, binds=None if dim.binds is None else names[dim.binds])


def _renamed(roots: Sequence[Expr], names: dict[str, str]) -> list[Expr]:
    done: dict[Expr, Expr] = {}
    for node in walk(*roots):
        children = tuple(done[child] for child in node.children)
        if isinstance(node, Gather):
            done[node] = gather(names[node.input], children, node.type)
        elif isinstance(node, Var):
            done[node] = var(names.get(node.name, node.name), node.type)
        elif isinstance(node, Index):
            # What writes statements calls it otherwise where that is another word of theirs.
            done[node] = index(begun_with_a_letter(node.word), *children)
        else:
            done[node] = rebuild(node, children)
    return [done[root] for root in roots]
