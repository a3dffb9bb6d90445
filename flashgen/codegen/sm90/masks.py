"""The mask of a mixed tile by its parts: bounds of k, which few tiles reach, and what else there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.codegen.limits import extreme
from flashgen.codegen.pairs import Function, Given, Pairs, named_apart
from flashgen.emit.prologue import Prologue
from flashgen.lang.bounds import KeyRange
from flashgen.lang.linear import expression, linear
from flashgen.lang.monotone import increasing_in_q
from flashgen.lang.nodes import TRUE, Expr, const, op
from flashgen.lang.show import show


@dataclass(frozen=True)
class Test:
    """A part of the mask: what a pair must satisfy, and of which tiles one must ask it; "" stands for all."""

    pair: str
    tile: str = ""


@dataclass(frozen=True)
class Mixed:
    """What mixed tiles are asked: the function for a mask, or what of it is no bound; `reads_k` says who needs k."""

    mask: Function | None
    tests: tuple[Test, ...]
    reads_k: bool


def mixed(facts: Facts, found: Pairs, prologue: Prologue, given: Given, known: Sequence[Function]) -> Mixed:
    """The mask of `found` by its parts, where there are several: one bound alone is what makes tiles mixed.

    What is `given` has a name; `known` are the functions of the kernels before.
    """
    ranges = facts.keys
    bounds = len(ranges.upper) + len(ranges.lower) + ("kv_len" in found.shown.reads)
    if bounds + (ranges.residual is not TRUE) <= 1:
        mask = named_apart(found.mask, known, "_sm90")
        return Mixed(mask, (Test(found.shown.result if mask is None else mask.call),), True)
    mask = named_apart(_residual(facts, prologue, given), known, "_sm90")
    reads_k = any("k" in f.body.reads for f in (found.score, mask) if f is not None)
    k = "k" if reads_k or found.clamps_k else "masked_keys(start, BN, col_layout)"
    tests = [] if mask is None else [Test(mask.call)]
    tests += _bounds(ranges, prologue, k)
    if "kv_len" in found.shown.reads:
        tests.append(Test(f"{'col' if found.clamps_k else k} < kv_len", "start + BN > kv_len"))
    return Mixed(mask, tuple(tests), reads_k)


def _residual(facts: Facts, prologue: Prologue, given: Given) -> Function | None:
    """What the mask says beyond bounds of k."""
    rest = facts.keys.residual
    if rest is TRUE:
        return None
    return Function("_visible", prologue.body(rest, given=given), f"{show(rest, facts.variant.lets)}.")


def _bounds(ranges: KeyRange, prologue: Prologue, k: str) -> Iterator[Test]:
    """Each is asked of the tiles alone that reach beyond it, or of all where rows would have to be reduced to know."""
    for bound in ranges.upper:
        stop = expression(linear(op("add", bound, const(1))))
        reaches = f"start + BN > {extreme(stop, prologue, 'least')}" if _moves_one_way(stop) else ""
        yield Test(f"{k} <= {prologue.name(bound)}", reaches)
    for bound in ranges.lower:
        reaches = f"start < {extreme(bound, prologue, 'greatest')}" if _moves_one_way(bound) else ""
        yield Test(f"{k} >= {prologue.name(bound)}", reaches)


def _moves_one_way(bound: Expr) -> bool:
    return increasing_in_q(bound) is not None
