"""What the integers of a variant's inputs are for, and so between which they are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flashgen.lang.evaluate import evaluate
from flashgen.lang.nodes import COMPARISONS, Expr, Gather, Op, Var
from flashgen.lang.traversal import variables, walk
from flashgen.spec.variant import Input, Sample, Variant


class Roles:
    """What a variant's expressions use the values of each int input for."""

    def __init__(self, variant: Variant) -> None:
        self.samples = dict(variant.samples)
        self._inputs = {i.name: i for i in variant.inputs}
        self._indexes: dict[str, list[tuple[str, int]]] = {}
        self._positions: set[str] = set()
        for node in walk(variant.score, variant.mask):
            if isinstance(node, Gather):
                for axis, index in enumerate(node.indices):
                    for name in _gathered(index):
                        self._indexes.setdefault(name, []).append((node.input, axis))
            elif isinstance(node, Op) and node.name in COMPARISONS:
                surface = list(_surface(node))
                if any(isinstance(n, Var) and n.name in ("q", "k") for n in surface):
                    self._positions |= {n.input for n in surface if isinstance(n, Gather)}

    def is_position(self, name: str) -> bool:
        """Whether values are compared with q or k, and index nothing."""
        return name in self._positions and name not in self._indexes

    def int_range(self, tensor: Input, sizes: dict[str, Any], hint: Sample) -> tuple[int, int]:
        """The lowest and highest value to draw, both included."""
        if tensor.range is not None:
            return int(tensor.range[0]), int(tensor.range[1])
        name = tensor.name
        dims = (self._inputs[other].dims[axis] for other, axis in self._indexes.get(name, ()))
        limits = [int(evaluate(dim.size, sizes, {})) for dim in dims]
        if hint.segments is not None:
            limits.append(hint.segments)
        if limits:
            return 0, max(min(limits) - 1, 0)
        return (0, sizes["kv_len"]) if self.is_position(name) else (0, 7)

    def ascending_axis(self, tensor: Input) -> int | None:
        """The last axis that runs over positions or a named dimension."""
        named = {dim.binds for i in self._inputs.values() for dim in i.dims if dim.binds}
        ordered = named | {"q_len", "kv_len"}
        axes = [axis for axis, dim in enumerate(tensor.dims) if variables(dim.size) & ordered]
        return axes[-1] if axes else None

    def named_size(self, dim: str, otherwise: int) -> int:
        """How long a named dimension is: the segments of the inputs that index it decide."""
        asked = [
            hint.segments
            for name, places in self._indexes.items()
            for other, axis in places
            if self._inputs[other].dims[axis].binds == dim
            and (hint := self.samples.get(name, Sample())).segments is not None
        ]
        return max((n for n in asked if n is not None), default=otherwise)


def _surface(expr: Expr) -> Iterator[Expr]:
    """The nodes below an expression, without those inside an index."""
    stack = [expr]
    seen = set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            if not isinstance(node, Gather):
                stack.extend(node.children)


def _gathered(expr: Expr) -> set[str]:
    return {node.input for node in _surface(expr) if isinstance(node, Gather)}
