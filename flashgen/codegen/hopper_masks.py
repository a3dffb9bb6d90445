"""The mask of a mixed tile by its parts: bounds of k, which few tiles reach, and what else there is."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.codegen.hopper_keys import in_gluon
from flashgen.codegen.limits import extreme
from flashgen.codegen.pairs import Function, Given, Pairs
from flashgen.lang.bounds import KeyRange, increasing_in_q
from flashgen.lang.linear import expression, linear
from flashgen.lang.nodes import TRUE, Expr, const, op
from flashgen.lang.show import show
from flashgen.lang.triton_emitter import Prologue
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class Test:
    """A part of the mask: what a pair must satisfy, and of which tiles one must ask it; "" stands for all."""

    pair: str
    tile: str = ""


def by_parts(found: Pairs, ranges: KeyRange) -> bool:
    """Whether tiles that need a mask need different parts of it: one bound alone is what makes them mixed."""
    bounds = len(ranges.upper) + len(ranges.lower) + ("kv_len" in found.shown)
    return bounds + (ranges.residual is not TRUE) > 1


def residual(variant: Variant, ranges: KeyRange, prologue: Prologue, given: Given) -> Function | None:
    """What the mask says beyond bounds of k."""
    if ranges.residual is TRUE:
        return None
    return Function("_visible", prologue.body(ranges.residual, given=given), f"{show(ranges.residual, variant.lets)}.")


def tests_of(found: Pairs, ranges: KeyRange, prologue: Prologue, k_in_mixed: bool) -> tuple[Test, ...]:
    """The mask by its parts, the function's first: a bound of k is asked of the tiles alone that reach beyond it.

    Of all mixed tiles where it would have to be reduced over the rows to know.
    """
    k = "k" if k_in_mixed or found.clamps_k else "_keys(start, BN, col_layout)"
    tests = [] if found.mask is None else [Test(found.mask.call)]
    for bound in ranges.upper:
        stop = expression(linear(op("add", bound, const(1))))
        reaches = f"start + BN > {extreme(stop, prologue, 'least')}" if _moves_one_way(stop) else ""
        tests.append(Test(f"{k} <= {prologue.name(bound)}", reaches))
    for bound in ranges.lower:
        reaches = f"start < {extreme(bound, prologue, 'greatest')}" if _moves_one_way(bound) else ""
        tests.append(Test(f"{k} >= {prologue.name(bound)}", reaches))
    if "kv_len" in found.shown:
        tests.append(Test(f"{'col' if found.clamps_k else k} < kv_len", "start + BN > kv_len"))
    return tuple(Test(*in_gluon((test.pair, test.tile))) for test in tests)


def _moves_one_way(bound: Expr) -> bool:
    return increasing_in_q(bound) is not None
