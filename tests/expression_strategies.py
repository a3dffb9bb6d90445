"""Random well-typed expressions, as texts, over any scope.

The texts are tame, so that exact and rounded evaluations can be compared:
- integers stay below 2**31 where the scope's own values stay below about 1000;
- what jumps (comparisons, floor, float // and %) reads only floats that are exact in binary: never `score`, never
  a function that rounds, and constants and factors that are multiples or powers of a half. Float inputs and
  runtime params should hold such values too;
- functions are used inside their domains and where they are not steep.
Indices may leave their tensors, divisors may be zero and shift counts may be negative: the language defines these.
"""

from __future__ import annotations

import re

from hypothesis import strategies as st

from flashgen.lang.nodes import Type
from flashgen.lang.scope import Scope

# Each {symbol} of a rule is drawn anew. `exact` is a float without rounding, `float` any float; `number` and
# `value` may be integers too.
_RULES = {
    "bool": [
        "({int} {compare} {int})",
        "({int} {compare} {int} {compare} {int})",
        "({exact} {compare} {number})",
        "({bool} {join} {bool})",
        "({negate} {bool})",
        "where({bool}, {bool}, {bool})",
        "({bool} if {bool} else {bool})",
        "{some}(i_, {few}, {int} {compare} i_)",
    ],
    "int": [
        "({int} {integral} {int})",
        "({int} {sum} {bool})",
        "({bool} {sum} {bool})",
        "({int} * {factor})",
        "(clamp({int}, -9, 9) ** {power})",
        "(clamp({int}, -99, 99) << ({int} & 3))",
        "({int} >> {int})",
        "({sign}{int})",
        "abs({int})",
        "{extremum}({int}, {int})",
        "min({int}, {int}, {bool})",
        "clamp({int}, {int}, {int})",
        "{rounded}({exact})",
        "sign({int})",
        "where({bool}, {int}, {int})",
        "({int} if {bool} else {int})",
        "sum(i_, {few}, {int} * (i_ - 1))",
    ],
    "exact": [
        "({exact} {sum} {number})",
        "({exact} {sum} {bool})",
        "({exact} * {half})",
        "({number} / {half})",
        "({exact} // {half})",
        "({exact} % {half})",
        "(-{exact})",
        "abs({exact})",
        "sign({exact})",
        "{extremum}({exact}, {number})",
        "clamp({exact}, {number}, {number})",
        "where({bool}, {exact}, {exact})",
        "({number} if {bool} else {exact})",
    ],
    "float": [
        "{exact}",
        "({value} {sum} {float})",
        "({float} * {scale})",
        "({value} / (abs({value}) + 1))",
        "{bounded}({float})",
        "{steep}(clamp({value}, -4, 4))",
        "tan(clamp({value}, -1.25, 1.25))",
        "{slow}(abs({value}) + 1)",
        "((abs({float}) + 1.0) ** {exponent})",
        "(clamp({float}, -3, 3) ** {small})",
        "(2.0 ** clamp({value}, -6, 6))",
        "(-{float})",
        "abs({float})",
        "{extremum}({float}, {value})",
        "clamp({float}, {value}, {value})",
        "where({bool}, {float}, {float})",
        "({float} if {bool} else {value})",
        "sum(i_, {few}, {float} * (i_ + 0.5))",
    ],
    "number": ["{int}", "{exact}"],
    "value": ["{int}", "{float}"],
}
_WORDS = {
    "compare": ["<", "<=", ">", ">=", "==", "!="],
    "join": ["&", "|", "^", "and", "or", "==", "!="],
    "negate": ["not", "~"],
    "integral": ["+", "-", "//", "%", "&", "|", "^"],
    "sum": ["+", "-"],
    "sign": ["-", "~", "+"],
    "extremum": ["min", "max"],
    "factor": ["(-5)", "(-1)", "0", "1", "2", "3"],
    "power": ["0", "1", "2", "3", "4"],
    "half": ["2", "1.0", "0.5", "-4"],
    "scale": ["0.3", "-1.7", "2"],
    "bounded": ["tanh", "sigmoid", "sin", "cos", "erf"],
    "rounded": ["floor", "ceil"],
    "steep": ["exp", "exp2"],
    "slow": ["log", "log2", "sqrt", "log1p"],
    "exponent": ["0.5", "-1", "1.5", "-2.0"],
    "some": ["any", "all"],
    "few": ["0", "1", "2", "3"],
    "small": ["1", "2", "2.0", "3"],
}
# Lengths that a call decides, where a scope has the runtime param n.
_OF_A_CALL = ["n", "n", "(n - 1)", "(n - 2)", "(n - 3)", "(2 - n)"]
_SYMBOL = re.compile(r"\{(\w+)\}")


@st.composite
def expressions(draw: st.DrawFn, kind: Type, scope: Scope, depth: int = 3) -> str:
    """Texts of expressions of a type, with operators nested at most `depth` deep."""
    gathers, leaves = _gathers(scope), _leaves(scope)
    words = {**_WORDS, "few": [*_WORDS["few"], *(_OF_A_CALL if "n" in scope.names else ())]}

    def expand(symbol: str, depth: int) -> str:
        if symbol in words:
            return draw(st.sampled_from(words[symbol]))
        if symbol in leaves and (depth <= 0 or draw(st.integers(0, 3)) == 0):
            return draw(leaves[symbol])
        rule = draw(st.sampled_from(_RULES[symbol] + gathers.get(symbol, [])))
        # A rule that only chooses between symbols is no level of its own.
        below = depth if symbol in ("number", "value") or rule == "{exact}" else depth - 1
        # One reduction inside another has an index of its own.
        rule = re.sub(r"\bi_", f"i{depth}" if depth >= 0 else f"j{-depth}", rule)
        return _SYMBOL.sub(lambda match: expand(match[1], below), rule)

    return expand(kind.value, depth)


def _gathers(scope: Scope) -> dict[str, list[str]]:
    gathers: dict[str, list[str]] = {}
    for name, tensor in scope.tensors.items():
        symbol = "exact" if tensor.type is Type.FLOAT else tensor.type.value
        indices = f"[{', '.join(['{int}'] * tensor.rank)}]" if tensor.rank else ""
        gathers.setdefault(symbol, []).append(f"{name}{indices}")
    return gathers


def _leaves(scope: Scope) -> dict[str, st.SearchStrategy[str]]:
    names = {kind: [name for name, node in scope.names.items() if node.type is kind] for kind in Type}
    exact = st.sampled_from([name for name in names[Type.FLOAT] if name != "score"] or ["0.5"])
    quarters = st.integers(-40, 40).map(lambda n: _literal(n / 4))
    return {
        "bool": st.sampled_from([*names[Type.BOOL], "True", "False"]),
        "int": st.one_of(st.sampled_from(names[Type.INT] or ["1"]), st.integers(-9, 300).map(_literal)),
        "exact": st.one_of(exact, quarters),
        "float": st.one_of(st.sampled_from(names[Type.FLOAT] or ["0.5"]), quarters),
    }


def _literal(value: int | float) -> str:
    return f"({value})" if value < 0 else str(value)
