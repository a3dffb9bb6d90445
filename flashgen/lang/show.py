"""An expression as text in the language itself: parsing it again gives the same graph."""

from __future__ import annotations

from collections.abc import Sequence

from flashgen.lang.infix import Text, binary, call, number, prefix
from flashgen.lang.nodes import FLOAT_FUNCTIONS, Const, Expr, Gather, Index, Op, Reduction, Type, Var, const
from flashgen.lang.traversal import walk

SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "shl": "<<", "shr": ">>",
}  # fmt: skip
BITWISE = {"and": "&", "or": "|", "xor": "^"}
LONGEST = 4_000
_LOGICAL = {"and": "and", "or": "or", "xor": "^"}
_FUNCTIONS = {"softcap": "tanh"}
_CASTS = ("to_int", "to_float")
_ORDER = [Type.BOOL, Type.INT, Type.FLOAT]
# Operators that leave operands of any type as they are; the others promote bools at least to ints.
_NEVER_PROMOTE = frozenset({"eq", "ne", "and", "or", "xor", "not", "where"})


def show(expr: Expr, lets: Sequence[tuple[str, Expr]] = ()) -> str:
    """The text of `expr`. Wherever it contains the expression of one of `lets`, that name stands instead.

    A part of more than LONGEST characters is left out, as "...".
    """
    names: dict[Expr, str] = {node: name for name, node in reversed(lets) if isinstance(node, Op | Gather | Reduction)}
    texts: dict[Expr, Text] = {}
    for node in walk(expr):
        text = Text(names[node]) if node in names else _text(node, texts, names)
        # Written as a tree, a graph may be of any size.
        texts[node] = text if len(text.text) <= LONGEST else Text("...")
    return str(texts[expr])


def _text(node: Expr, texts: dict[Expr, Text], names: dict[Expr, str]) -> Text:
    if isinstance(node, Const):
        return _number(node)
    if isinstance(node, Var):
        return Text(node.name)
    if isinstance(node, Index):
        return Text(node.word)
    if isinstance(node, Reduction):
        return call(node.name, node.index.word, texts[node.index.length], texts[node.term])
    if isinstance(node, Gather):
        indices = ", ".join(str(texts[_bare(index, names)]) for index in node.indices)
        return Text(f"{node.input}[{indices}]" if indices else node.input)
    assert isinstance(node, Op)
    if node.name in _CASTS:
        # No function casts; these two do nothing else. They appear only where promotion alone would not.
        inner = texts[_bare(node, names)]
        return prefix("+", inner) if node.name == "to_int" else binary("*", inner, number(1.0))
    clamped = _clamped(node, names)
    if clamped:
        return call("clamp", *_operands("min", clamped, texts, names))
    if node.name == "where":
        test, *branches = node.args
        return call("where", texts[test], *_operands("where", branches, texts, names))
    return _operation(node, _operands(node.name, node.args, texts, names))


def _operation(node: Op, operands: list[Text]) -> Text:
    logical = node.args[0].type is Type.BOOL
    if node.name == "neg":
        return prefix("-", *operands)
    if node.name == "not":
        return prefix("not" if logical else "~", *operands)
    symbol = SYMBOLS.get(node.name) or (_LOGICAL if logical else BITWISE).get(node.name)
    return binary(symbol, *operands) if symbol else call(_FUNCTIONS.get(node.name, node.name), *operands)


def _number(node: Const) -> Text:
    if node is const(-(2**63)):  # the one int whose digits alone do not fit
        return binary("-", number(node.value + 1), number(1))
    return number(node.value)


def _bare(node: Expr, names: dict[Expr, str]) -> Expr:
    """What is left of an operand without the casts that promotion puts back."""
    while isinstance(node, Op) and node.name in _CASTS and node not in names:
        node = node.args[0]
    return node


def _clamped(node: Op, names: dict[Expr, str]) -> tuple[Expr, ...]:
    """x, low and high where the node is clamp(x, low, high)."""
    if node.name != "min":
        return ()
    inner, high = node.args
    return (*inner.args, high) if isinstance(inner, Op) and inner.name == "max" and inner not in names else ()


def _operands(name: str, operands: Sequence[Expr], texts: dict[Expr, Text], names: dict[Expr, str]) -> list[Text]:
    """The operands without their casts, if the checker would promote them alike; else the first cast is spelled out."""
    bare = [_bare(operand, names) for operand in operands]
    if name not in ("truediv", "pow", *FLOAT_FUNCTIONS):
        least = Type.BOOL if name in _NEVER_PROMOTE else Type.INT
        promoted = max((least, *(node.type for node in bare)), key=_ORDER.index)
        if promoted is not operands[0].type:
            bare[0] = operands[0]
    return [texts[node] for node in bare]
