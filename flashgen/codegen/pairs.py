"""The score and the mask of a pair as functions of the generated file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import overload

import torch

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import level
from flashgen.emit.fragments import Fragment
from flashgen.emit.prologue import Prologue
from flashgen.lang.log2 import factored
from flashgen.lang.nodes import TRUE, Expr, Gather
from flashgen.lang.show import show
from flashgen.lang.traversal import variables, walk
from flashgen.spec.variant import Variant

# What is at hand by name: the expression, and the name.
Given = Mapping[Expr, str]
NOTHING: Given = MappingProxyType({})


@dataclass(frozen=True)
class Function:
    """A helper function of the generated file: its arguments, body, and the formula that it stands for."""

    name: str
    body: Fragment
    formula: str

    @property
    def names(self) -> tuple[str, ...]:
        first = [name for name in ("qk", "q", "k") if name in self.body.reads]
        return (*first, *(name for name in self.body.reads if name not in first))

    @property
    def arguments(self) -> str:
        return ", ".join(f"{name}: tl.constexpr" if name.isupper() else name for name in self.names)

    @property
    def call(self) -> str:
        return self.call_with({})

    def call_with(self, renamed: Mapping[str, str]) -> str:
        """A call where some arguments go by other names."""
        return f"{self.name}({', '.join(renamed.get(name, name) for name in self.names)})"

    def says_the_same(self, other: Function) -> bool:
        """Whether the other's text would be the same under this name."""
        return (self.arguments, self.body.lines, self.result) == (other.arguments, other.body.lines, other.result)

    @property
    def lines(self) -> tuple[str, ...]:
        return self.body.lines

    @property
    def result(self) -> str:
        return self.body.result


@overload
def named_apart(function: Function, known: Sequence[Function], *suffixes: str) -> Function: ...


@overload
def named_apart(function: None, known: Sequence[Function], *suffixes: str) -> None: ...


@overload
def named_apart(function: Function | None, known: Sequence[Function], *suffixes: str) -> Function | None: ...


def named_apart(function: Function | None, known: Sequence[Function], *suffixes: str) -> Function | None:
    """A function under the first name, its own or one with a suffix, by which no other one says something else."""
    if function is None:
        return None
    candidates = [replace(function, name=function.name + suffix) for suffix in ("", *suffixes)]
    return next(c for c in candidates if all(f.name != c.name or f.says_the_same(c) for f in known))


def mask_function(facts: Facts, prologue: Prologue, given: Given = NOTHING) -> Function | None:
    """The function that says which pairs are visible; None where all are. What is `given` has a name."""
    variant = facts.variant
    if variant.mask is TRUE:
        return None
    return Function("_visible", prologue.body(variant.mask, given=given), f"{show(variant.mask, variant.lets)}.")


def bytes_read(variant: Variant, reads: Iterable[Gather]) -> int:
    """Bytes of all that is read, one element each."""
    dtypes = {tensor.name: tensor.dtype for tensor in variant.inputs}
    return sum(getattr(torch, dtypes[read.input]).itemsize for read in reads)


@dataclass(frozen=True)
class Pairs:
    """How a kernel gets from the dot products of a tile to its logits; `ends` is the test that a key exists, for tiles
    that need the mask, where they are to ask for it.

    `score` computes `pair`, or is None where the logit is the dot product times `qk_scale`; `spread` where it is less
    than a whole tile.
    `factor` is what the score is still to be multiplied by, "" for nothing. `row` is what is left out of the logits,
    constant along a row; logits are in units of log2, or `natural`.
    """

    score: Function | None
    pair: Expr
    spread: bool
    mask: Function | None
    ends: Fragment
    clamps_k: bool
    factor: str
    row: Expr | None
    natural: bool

    def row_shift(self, epilogue: Prologue) -> list[str]:
        """The statement for what is left out of the logits, a vector of rows or one number; none where that is nothing.

        What it reads goes into `epilogue`, a prologue of the statements behind the loop.
        """
        if self.row is None:
            return []
        text = epilogue.inline(self.row)
        return [f"row_shift = tl.reshape({text}, [BM])" if level(self.row) else f"row_shift = {text}"]

    @property
    def reads(self) -> set[str]:
        """The names that score and mask read."""
        return {name for f in (self.score, self.mask) if f is not None for name in f.body.reads}

    @property
    def shown(self) -> Fragment:
        """What a tile that needs the mask keeps."""
        return self.shown_by(self.mask)

    def shown_by(self, mask: Function | None) -> Fragment:
        """What a tile that needs the mask keeps, by a function that says what the mask does."""
        if mask is None:
            return self.ends
        tests = [mask.call, *(f"({test})" for test in self.ends.results)]
        return Fragment(results=(" & ".join(tests),), reads=tuple(sorted({*mask.names, *self.ends.reads})))

    @property
    def score_reads_k(self) -> bool:
        return self.score is not None and "k" in self.score.body.reads

    @property
    def logit(self) -> str:
        return "qk" if self.score is None else "x"


def pairs(facts: Facts, prologue: Prologue, given: Given = NOTHING, *, apart: bool = False) -> Pairs:
    """The score and mask of a pair; what is free of k goes into the prologue, what is `given` has a name.

    `apart`: a positive constant by which the score ends is left to the softmax, whose row maximum may be taken before.
    """
    variant, found = facts.variant, facts.logits
    pair, constant = factored(found.pair) if apart and not found.natural else (found.pair, None)
    factor = "" if constant is None else repr(constant.value)
    score = None
    if found.scaled is not None:
        prologue.name(found.scaled, "qk_scale")
    else:
        less = "" if found.row is None else ", less what is constant along a row"
        over = f", over {factor}" if factor else ""
        units = "" if found.natural else ", in units of log2"
        formula = f"{show(variant.score, variant.lets)}{units}{less}{over}."
        score = Function("_score", prologue.body(pair, given=given), formula)
    mask = mask_function(facts, prologue, given)
    clamps_k = _reads_tensors_along_k(given, variant.mask, found.pair)
    ends = Fragment()
    if clamps_k or not facts.ends_before_kv_len:
        key = "col" if clamps_k else "k"
        ends = Fragment(results=(f"{key} < kv_len",), reads=(key, "kv_len"))
    # A score that ignores the keys, or the queries, is spread over the tile.
    return Pairs(score, pair, not facts.logit_of_pairs, mask, ends, clamps_k, factor, found.row, found.natural)


def _reads_tensors_along_k(given: Given, *exprs: Expr) -> bool:
    return any(
        isinstance(node, Gather) and "k" in variables(node) and node not in given for node in walk(*exprs, to=given)
    )
