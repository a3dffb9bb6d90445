"""What an expression may name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flashgen.lang.nodes import Expr, Type


@dataclass(frozen=True)
class TensorType:
    """The type of an input's elements, as expressions see them, and its number of dimensions."""

    type: Type
    rank: int


@dataclass(frozen=True)
class Scope:
    """What an expression may name: scalars, each with the node that it stands for, and input tensors.

    `refused` has scalars that its reader refuses afterwards: no message proposes them.
    """

    names: Mapping[str, Expr]
    tensors: Mapping[str, TensorType] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
