"""The variant's own arguments as its module declares them to the runtime, and the sums for their gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flashgen.codegen.docstrings import SCALARS, dims_of
from flashgen.codegen.kernels.backward_pairs import Axis
from flashgen.codegen.learned import LearnedView, SiteView
from flashgen.codegen.packed import with_packed_queries, with_packed_sequences
from flashgen.emit.torch import emit
from flashgen.lang.nodes import Expr
from flashgen.lang.reductions import counted_sizes
from flashgen.lang.traversal import variables
from flashgen.spec.names import SIZES
from flashgen.spec.variant import Input, Variant

_DEFAULTS = {"alibi_slopes": "runtime.alibi_slopes"}


@dataclass(frozen=True)
class Declaration:
    """A text for each input, runtime param and place whose gradient is summed, as in runtime/declared.py."""

    inputs: tuple[str, ...]
    params: tuple[str, ...]
    sums: tuple[str, ...]
    loads: int
    owners: str | None


def declaration(
    variant: Variant, names: Mapping[str, str], learned: LearnedView | None, owning: Sequence[Axis] | None = None
) -> Declaration:
    """Of a variant under the names of generated code, of which `names` are those in the spec. `owning` are the axes of
    its kernel for pairs, if there is one."""
    drops = variant.dropout is not None
    known = (*SIZES, "total_q", "total_k", *(p.name for p in variant.runtime_params), *variant.dim_names)
    queries, both = with_packed_queries(variant).inputs, with_packed_sequences(variant).inputs
    return Declaration(
        tuple(
            _input(t, names[t.name], known, counted, *(None if other == t else other for other in others))
            for t, *others in zip(variant.inputs, queries, both, strict=True)
            for counted in [counted_sizes(t.name, [dim.size for dim in t.dims], variant.score, variant.mask)]
        )
        + (("runtime.DROPOUT_SEED",) if drops else ()),
        tuple(
            _made("Param", [_quoted(p.name), SCALARS[p.type.value]], _called(p.name, names[p.name]))
            for p in variant.runtime_params
        )
        + (("runtime.DROPOUT_P",) if drops else ()),
        tuple(_sums(site, known) for site in learned.sites) if learned else (),
        learned.loads if learned else 1,
        None if owning is None else tuple_text([_owner(axis, known) for axis in owning]),
    )


def _input(
    t: Input, public: str, known: Iterable[str], counted: Collection[Expr], packed: Input | None = None,
    varlen: Input | None = None,
) -> str:  # fmt: skip
    sizes = emit([dim.size for dim in t.dims], inlined=True).results
    shape = ["None" if dim.binds else size for dim, size in zip(t.dims, sizes, strict=True)]
    read = {name for dim in t.dims if not dim.binds for name in variables(dim.size)}
    binds = [f"{_quoted(dim.binds)}: {axis}" for axis, dim in enumerate(t.dims) if dim.binds]
    ones = [str(axis) for axis, dim in enumerate(t.dims) if dim.may_be_one]
    counts = [str(axis) for axis, dim in enumerate(t.dims) if dim.size in counted and variables(dim.size)]
    options = {
        "binds": f"{{{', '.join(binds)}}}" if binds else "",
        "may_be_one": tuple_text(ones) if ones else "",
        "may_be_empty": tuple_text(counts) if counts else "",
        "default": _DEFAULTS[t.default] if t.default else "",
        "grad": "True" if t.grad else "",
        **_called(t.name, public),
        "packed": _input(packed, public, known, counted) if packed else "",
        "varlen": _input(varlen, public, known, counted) if varlen and varlen != packed else "",
    }
    texts = [_quoted(text) for text in dims_of(t)]
    function = _function(read, known, tuple_text(shape))
    return _made("Input", [_quoted(t.name), f"torch.{t.dtype}", tuple_text(texts), function], options)


def _sums(site: SiteView, known: Iterable[str]) -> str:
    apart = _function(site.apart.reads, known, " and ".join(site.apart.results) or "True") if site.writes else ""
    options = {"apart": apart, "turns": _quoted(site.shared_by) if site.shared_by else ""}
    return _made("Sums", [_quoted(site.name), _quoted(site.input)], options)


def _owner(axis: Axis, known: Iterable[str]) -> str:
    group = _function(axis.group.reads, known, axis.group.results[0]) if axis.grouped else ""
    options = {"group": group, "strided": "True" if axis.kind == "strided" else ""}
    return _made("Owner", [_quoted(axis.name)], options)


def _called(name: str, public: str) -> dict[str, str]:
    return {} if name == public else {"called": _quoted(public)}


def _function(read: Collection[str], known: Iterable[str], body: str) -> str:
    """A function of sizes, params and dimensions by their names."""
    taken = ", ".join(name for name in known if name in read)
    return f"lambda {taken}: {body}" if taken else f"lambda: {body}"


def _made(kind: str, given: Iterable[str], options: Mapping[str, str]) -> str:
    named = (f"{name}={value}" for name, value in options.items() if value)
    return f"runtime.{kind}({', '.join([*given, *named])})"


def tuple_text(parts: Collection[str]) -> str:
    """A tuple of these texts."""
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _quoted(text: str) -> str:
    return repr(text)
