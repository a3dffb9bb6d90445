"""The score expression as the kernel computes it: uniform factors gathered, row terms left out.

The kernel forms exp2(x - max x), so it wants x = log2(e) * score_out as a function of the raw dot product `qk`, with

    score = qk * scale.

log2(e) and scale are pushed through the expression as far as it is affine and meet in one uniform factor, computed
once. A term that is constant along a row does not change the softmax; it is left out of the loop and added to the
log-sum-exp. A term that is linear in k and q, as ALiBi's, is split into a column part, relative to the tile's first
query so that no precision is lost, and a row part.

What is taken out of a sum must not lose what the sum would keep. `score + (1.0 - pad[b, k]) * -1e9` is the score itself
where pad is 1, of which nothing is left once -1e9 is taken out. So a sum without the score stays whole, and a row term
stays where it may be large. Where a score may come near the largest float32, as an additive mask does, nothing is
multiplied by log2(e) before the maximum is off: `natural`. So it is where the text itself has a huge number, such as
-1e9 for padding: a row may have no other score, and the backward pass makes up for what its log-sum-exp loses in those
units alone. There no term is left out either: what the backward pass computes of a huge score must be the very number
that the forward pass took the maximum of. So it must not depend on which products a compiler joins with which sums in
fused multiply-adds, and kernels go without these where there is a choice: `without_fma`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashgen.lang.addends import added, addends, negated
from flashgen.lang.bounds import always
from flashgen.lang.fold import fold
from flashgen.lang.linear import Linear, expression, linear
from flashgen.lang.magnitudes import is_beyond, magnitude
from flashgen.lang.nodes import Const, Expr, Op, Type, const, op
from flashgen.lang.scaling import ONE, scaled, times
from flashgen.lang.traversal import substitute, transform, variables, walk
from flashgen.lang.variables import Q_FIRST, QK, SCALE, SCORE, K, is_uniform

LOG2E = const(math.log2(math.e))

# The scaled dot product, and what is of one rounding at most beside it, and no product.
_DOT_PRODUCT = op("mul", QK, SCALE)
_SINGLE_STEPS = frozenset({"add", "sub", "neg", "abs", "min", "max", "where", "to_float"})

# Scores up to this one are in units of log2: the largest float32 is 3.4e38.
_LARGEST_IN_LOG2 = 1e30
# A row term up to this one costs the log-sum-exp none of the digits that the backward pass needs.
_LARGEST_ROW_TERM = 1e4
# So is a slope: a score is counted from the first query of a tile, and the digits below 128 of it are lost.
_STEEPEST = 16.0
# Times a position, which has 31 bits, it does not wrap: what is split at a tile's first query does not either.
_LARGEST_COEFFICIENT = 2**31


@dataclass(frozen=True)
class Logits:
    """x = pair + row, in units of log2, or where `natural` the score as it is. `row` is free of k and qk, None when
    there is nothing to add.

    `scaled` is the uniform factor c where pair is just qk * c, with c of scale's sign: then the row maximum may be
    taken before the multiplication.
    """

    pair: Expr
    row: Expr | None
    scaled: Expr | None
    natural: bool

    @property
    def without_fma(self) -> bool:
        """Whether fused multiply-adds could round a huge score in one kernel otherwise than in another."""
        return self.natural and not _rounds_alike(self.pair)


def logits(score: Expr, mask: Expr) -> Logits:
    """Rewrite a score expression for the kernel; it only has to hold where the mask shows the pair."""
    shown = _where_shown(score, mask)
    natural = magnitude(transform(shown, _not_hidden)) > _LARGEST_IN_LOG2 or any(
        is_beyond(_LARGEST_ROW_TERM, node) for node in walk(shown)
    )
    if natural:
        # Added up in the order in which it is written: of terms that cancel another order may lose the digits.
        return Logits(scaled(shown, ONE), None, None, natural)
    pair_terms: list[Expr] = []
    row_terms: list[Expr] = []
    for pair, row in map(_split, addends(scaled(shown, LOG2E))):
        pair_terms += [] if pair is None else [pair]
        row_terms += [] if row is None else [row]
    pair = added(pair_terms) or const(0.0)
    return Logits(pair, added(row_terms), _factor(pair), natural)


def _rounds_alike(pair: Expr) -> bool:
    """Whether a compiler has no choice of what to join: there is one product, the dot product's, and it is added up."""
    rounded = [node for node in walk(pair) if isinstance(node, Op) and node.type is Type.FLOAT]
    return pair is not _DOT_PRODUCT and all(node is _DOT_PRODUCT or node.name in _SINGLE_STEPS for node in rounded)


def _not_hidden(node: Expr) -> Expr:
    """The other branch of a choice one of whose is minus infinity: that one hides a pair, and has no digits to lose."""
    if isinstance(node, Op) and node.name == "where" and const(-math.inf) in node.args:
        return node.args[2] if node.args[1] is const(-math.inf) else node.args[1]
    return node


@dataclass(frozen=True)
class AffineInK:
    """pair = qk * scaled + column: the column's part is affine in k and grows by `per_key` from one key to the next.

    All three are uniform but for k in `column`; `scaled` is as in Logits.
    """

    scaled: Expr
    column: Expr
    per_key: Expr


def affine_in_k(pair: Expr) -> AffineInK | None:
    """The parts of such a pair, as of ALiBi's; None for any other."""
    terms = addends(pair)
    products = [term for term in terms if "qk" in variables(term)]
    others = [term for term in terms if term not in products]
    steps = [_per_key(term) for term in others]
    factor = _factor(products[0]) if len(products) == 1 else None
    column, per_key = added(others), added([step for step in steps if step is not None])
    if factor is None or column is None or per_key is None or None in steps:
        return None
    return AffineInK(factor, column, per_key)


def factored(pair: Expr) -> tuple[Expr, Const | None]:
    """Another expression and a positive constant by which it is multiplied, as of a softcap; else it and None.

    Not one so small or large that a float32 of it is 0 or inf: a kernel multiplies what is masked, -inf, by it.
    """
    if isinstance(pair, Op) and pair.name == "mul":
        inner, constant = pair.args
        if isinstance(constant, Const) and 1e-30 <= constant.value <= 1e30:
            return inner, constant
    return pair, None


def slope(derivative: Expr, mask: Expr) -> Expr:
    """d score_out / d score as a function of qk; what it has in common with the logits is the same expression."""
    return scaled(_where_shown(derivative, mask), ONE)


def of_qk(expr: Expr) -> Expr:
    """An expression of the score as a function of qk."""
    return fold(substitute(expr, {SCORE: op("mul", QK, SCALE)}))


def _where_shown(expr: Expr, mask: Expr) -> Expr:
    """An expression of the score as a function of qk, for pairs that the mask shows."""
    return of_qk(transform(expr, lambda node: _known_sign(node, mask)))


def _known_sign(node: Expr, mask: Expr) -> Expr:
    if isinstance(node, Op) and node.name == "abs" and node.type is Type.INT:
        inside = node.args[0]
        if always(mask, inside):
            return inside
        if always(mask, op("neg", inside)):
            return expression(linear(inside) * -1)
    return node


def _split(term: Expr) -> tuple[Expr | None, Expr | None]:
    """The part of an addend that depends on the key, and the part that does not."""
    if not variables(term) & {"k", "qk"}:
        return (None, term) if magnitude(term) <= _LARGEST_ROW_TERM else (term, None)
    if isinstance(term, Op) and term.name == "neg":
        pair, row = _split(term.args[0])
        return pair and negated(pair), row and negated(row)
    factor: Expr | None = None
    body = term
    if isinstance(term, Op) and term.name == "mul" and is_uniform(term.args[1]):
        body, factor = term.args
    if not (isinstance(body, Op) and body.name == "to_float" and body.args[0].type is Type.INT):
        return term, None
    form = linear(body.args[0])
    slope, rest = form.terms.get(K, 0), form.without(K)
    if not slope or not variables(expression(rest)) & {"q"} or "k" in variables(expression(rest)):
        return term, None
    steepness = abs(slope * factor.value) if isinstance(factor, Const) else abs(slope)
    if steepness > _STEEPEST or abs(slope) > _LARGEST_COEFFICIENT:
        return term, None
    anchor = Linear({Q_FIRST: slope}, 0)
    pair = op("to_float", expression(Linear({K: slope}, 0) - anchor))
    row = op("to_float", expression(rest + anchor))
    return (pair, row) if factor is None else (op("mul", pair, factor), op("mul", row, factor))


def _per_key(term: Expr, sign: int = 1) -> Expr | None:
    """By how much an addend that is affine in k, and else uniform, grows from one key to the next, times sign."""
    if isinstance(term, Op) and term.name == "neg":
        return _per_key(term.args[0], -sign)
    if isinstance(term, Op) and term.name == "mul" and is_uniform(term.args[1]):
        step = _per_key(term.args[0], sign)
        return step and times(step, term.args[1])
    if not (isinstance(term, Op) and term.name == "to_float" and term.args[0].type is Type.INT):
        return None
    form = linear(term.args[0])
    rest = expression(form.without(K))
    return const(float(sign * form.terms[K])) if K in form.terms and is_uniform(rest) else None


def _factor(pair: Expr) -> Expr | None:
    """c where the expression is qk * c and c = scale times a positive constant."""
    if not (isinstance(pair, Op) and pair.name == "mul" and pair.args[0] is QK):
        return None
    factor = pair.args[1]
    if not (isinstance(factor, Op) and factor.name == "mul" and factor.args[0] is SCALE):
        return None
    constant = factor.args[1]
    return factor if isinstance(constant, Const) and constant.value > 0 else None
