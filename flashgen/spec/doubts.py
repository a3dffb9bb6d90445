"""What a spec says that is well formed and may not be meant, beyond what one expression shows by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flashgen.errors import Location
from flashgen.lang.nodes import Expr, Gather, Var
from flashgen.lang.traversal import variables, walk
from flashgen.lang.vocabulary import MEANINGS, meant_by
from flashgen.spec.source import Document
from flashgen.spec.variant import Input

# What counts along each size.
_ALONG: Mapping[str, str] = {"batch": "b", "heads": "h", "kv_heads": "kv_h", "q_len": "q", "kv_len": "k"}


def of_score(score: Expr, at: Location) -> Iterator[str]:
    """A sentence where the scaled dot product is left out: a bias alone is no score."""
    if "score" not in variables(score):
        yield (
            f"{at}: 'score' is not read, so that queries and keys count for nothing; what the expression gives is the "
            "whole score: where something is added to it write 'score + ...'"
        )


def of_dimensions(document: Document, inputs: Sequence[Input], *roots: Expr) -> Iterator[str]:
    """A sentence for each new dimension that is called as others call a size, and read along that size."""
    read: dict[tuple[str, int], set[str]] = {}
    for node in walk(*roots):
        if isinstance(node, Gather):
            for axis, index in enumerate(node.indices):
                if isinstance(index, Var):
                    read.setdefault((node.input, axis), set()).add(index.name)
    for tensor in inputs:
        for axis, dim in enumerate(tensor.dims):
            named = meant_by(dim.binds, _ALONG) if dim.binds else ()
            meant = [size for size in named if _ALONG[size] in read.get((tensor.name, axis), ())]
            if meant:
                sizes = " or ".join(f"'{size}', {MEANINGS[size]}" for size in meant)
                yield (
                    f"{document.at(('inputs', tensor.name, 'shape', axis))}: the dimension '{dim.binds}' of "
                    f"'{tensor.name}' is a new name, which may have any size; what is read at "
                    f"'{_ALONG[meant[0]]}' mostly has {sizes}"
                )
