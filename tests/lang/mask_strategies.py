"""Random masks as texts, most of them made of comparisons of positions: what skipping is worked out from."""

from __future__ import annotations

from hypothesis import strategies as st

# Integers free of k, integers along k, and what joins them; each {symbol} of a rule is drawn anew.
_RULES = {
    "row": [
        "q", "n", "W", "q_len", "kv_len", "h", "{small}", "off[doc[b, q]]", "doc[b, q]", "off[n]", "(q + {small})",
        "(q - {small})", "(q // {factor})", "(q % {modulus})", "min({row}, {row})", "max({row}, {row})",
        "({row} - {row})", "where({once}, {row}, {row})", "abs({row})", "sum(i_, {few}, {row} % (i_ + 2))",
    ],
    "key": [
        "k", "k", "(k + {row})", "(k - {row})", "({row} - k)", "(k * {factor})", "({factor} * k + {row})", "abs({key})",
        "(q - k)", "min({key}, {row})", "max({key}, {row})", "max({key}, {key})", "({key} // {modulus})",
        "({key} % {modulus})", "doc[b, k]", "off[doc[b, k]]", "(-{key})", "sum(i_, {few}, {key} // (i_ + 1))",
    ],
    "line": ["k", "(k + {row})", "({row} - k)", "({row} - 2 * k)", "{row}"],
    "once": ["flag", "{row} {compare} {row}", "keep[b, q]", "(not {once})", "any(i_, {few}, {row} == off[i_])"],
    "mask": [
        "({key} {compare} {row})", "({row} {compare} {key})", "({row} <= {key} < {row})", "({key} == {row})",
        "({mask} & {mask})", "({mask} & {mask})", "({mask} | {mask})", "(not {mask})", "({mask} ^ {mask})",
        "where({once}, {mask}, {mask})", "({once} | {mask})", "({once} & {mask})", "keep[b, k]", "keep[h, k - q]",
        "(doc[b, q] == doc[b, k])", "({key} {compare} {key})", "where({mask}, {mask}, {mask})",
        "any(i_, {few}, {key} == {row} + i_)", "all(i_, {few}, {mask} | ({line} {compare} off[i_]))",
        "any(i_, {few}, ({line} {compare} off[i_ + 1]) & {mask})",
    ],
}  # fmt: skip
_WORDS = {
    "compare": ["<", "<=", ">", ">="],
    "factor": ["1", "2", "3", "(-1)", "(-2)", "(-3)"],
    "modulus": ["1", "2", "3", "4", "(-2)", "n"],
    "few": ["(n % 4)", "(n % 3)", "(n % 4 - 3)", "heads"],
    "small": ["0", "1", "2", "5", "9", "(-1)", "(-4)"],
}
_FEWEST = {"row": "q", "key": "k", "line": "k", "once": "flag", "mask": "(k <= q)"}


@st.composite
def drawn(draw: st.DrawFn, symbol: str, depth: int = 4) -> str:
    """A text for a symbol of the rules: "mask" for a bool, "row" or "key" for an int without or with k."""

    def expand(symbol: str, depth: int) -> str:
        if symbol in _WORDS:
            return draw(st.sampled_from(_WORDS[symbol]))
        if depth <= 0:
            return _FEWEST[symbol]
        # One reduction inside another has an index of its own.
        text = draw(st.sampled_from(_RULES[symbol])).replace("i_", f"i{depth}")
        while "{" in text:
            head, rest = text.split("{", 1)
            inner, tail = rest.split("}", 1)
            text = head + expand(inner, depth - 1) + tail
        return text

    return expand(symbol, depth)
