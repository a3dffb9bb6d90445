"""Rows of attention once their sums are complete: what the end of a kernel and the merge of splits have in common."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def exp_of(x, NATURAL: tl.constexpr):
    """exp(x) for logits that are NATURAL, else exp2(x)."""
    return tl.exp2(x * 1.4426950408889634) if NATURAL else tl.exp2(x)


@triton.jit
def largest_logit(m, l, shift, NATURAL: tl.constexpr):
    """The largest natural logit of each row, of what `finished` takes; minus infinity where it has seen no key.

    NaN where a logit is, which no maximum keeps, but a sum does.
    """
    largest = m if NATURAL else (m + shift) * 0.6931471805599453
    return tl.where(l == 0, -float("inf"), tl.where((l == l) | (m == float("inf")), largest, l))


@triton.jit
def finished(m, l, shift, sink, NATURAL: tl.constexpr):
    """What the sums of values are multiplied by, the natural log-sum-exp, and what float32 lost of it.

    m and l are the maxima and sums of rows, logits NATURAL or in units of log2. `shift` is what these logits lack, the
    same for all of a row; `sink` is a further natural logit in the denominator, None for none. A row that has seen no
    key has a factor of 0 and a log-sum-exp of minus infinity.
    """
    UNIT: tl.constexpr = 1.0 if NATURAL else 0.6931471805599453
    empty = l == 0
    factor = 1.0 / tl.where(empty, 1.0, l)
    if sink is not None:
        sink = sink - shift if NATURAL else sink * 1.4426950408889634 - shift
        highest = tl.maximum(m, sink)
        alpha = exp_of(m - highest, NATURAL)
        l = l * alpha + exp_of(sink - highest, NATURAL)
        m = highest
        factor = alpha / l
    if NATURAL:
        lse = m + tl.log2(l) * 0.6931471805599453
        residue = tl.where(empty, 0.0, tl.log2(l) * 0.6931471805599453 - (lse - m))
    else:
        lse = (m + tl.log2(l) + shift) * UNIT
        residue = tl.where(empty, 0.0, 0.0)
    return tl.where(empty, 0.0, factor), tl.where(empty, -float("inf"), lse), residue
