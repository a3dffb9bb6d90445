"""What all text of one kernel is written from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flashgen.analysis.levels import COL, Level
from flashgen.emit.dialects import TRITON, Dialect
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Expr


@dataclass(frozen=True)
class Tensor:
    """How a kernel reads an input: the size of each dimension, and its dtype.

    `begin` is what a kernel that serves packed sequences counts by along the batch in the place of b.
    """

    sizes: tuple[Expr, ...]
    dtype: str
    begin: Expr | None = None


@dataclass(frozen=True)
class Setting:
    """What all text of one kernel is written from: what is known of values, the inputs, the spec's `let` names.

    `walked` is the axis along which the kernel's loop goes: COL where a program owns queries, ROW where it owns keys.
    `approximate`: functions are the GPU's own where it has an approximation of them. `words` are those of the kernel's
    template, which no new value may take. `spelled` has what the kernel calls a variable otherwise than the language
    does.
    """

    ranges: Ranges
    tensors: Mapping[str, Tensor]
    dialect: Dialect = TRITON
    lets: Sequence[tuple[str, Expr]] = ()
    walked: Level = COL
    approximate: bool = False
    words: frozenset[str] = frozenset()
    spelled: Mapping[str, str] = field(default_factory=dict)
