"""The grammar is Python's, and hostile text gets an error at the right place."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.errors import ExpressionError, Location
from flashgen.lang.parse import COMPARISONS, parse
from flashgen.lang.syntax import Call, Chain, Conditional, Index, Literal, Name, Operation, Syntax

AT = Location("v.yaml", 3, 8)

_SYMBOLS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.And: "and", ast.Or: "or",
    ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip


def shape(syntax: Syntax) -> tuple:
    match syntax:
        case Literal(value=value):
            return ("literal", value)
        case Name(id=name):
            return ("name", name)
        case Operation(symbol=symbol, operands=operands):
            return (symbol, *map(shape, operands))
        case Chain(symbols=symbols, operands=operands):
            return ("chain", symbols, *map(shape, operands))
        case Conditional(test=test, then=then, otherwise=otherwise):
            return ("if", shape(test), shape(then), shape(otherwise))
        case Call(function=name, arguments=parts) | Index(input=name, indices=parts):
            return (type(syntax).__name__, name, *map(shape, parts))
    raise AssertionError(syntax)


def python_shape(node: ast.expr) -> tuple:
    match node:
        case ast.Constant(value=value):
            return ("literal", value)
        case ast.Name(id=name):
            return ("name", name)
        case ast.BinOp(left=left, op=op, right=right):
            return (_SYMBOLS[type(op)], python_shape(left), python_shape(right))
        case ast.UnaryOp(op=op, operand=operand):
            return (_SYMBOLS[type(op)], python_shape(operand))
        case ast.BoolOp(op=op, values=[first, *rest]):
            whole = python_shape(first)
            for operand in rest:
                whole = (_SYMBOLS[type(op)], whole, python_shape(operand))
            return whole
        case ast.Compare(left=left, ops=ops, comparators=others):
            return ("chain", tuple(_SYMBOLS[type(op)] for op in ops), *map(python_shape, [left, *others]))
        case ast.IfExp(test=test, body=then, orelse=otherwise):
            return ("if", python_shape(test), python_shape(then), python_shape(otherwise))
        case ast.Call(func=ast.Name(id=name), args=parts):
            return ("Call", name, *map(python_shape, parts))
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=parts)):
            return ("Index", name, *map(python_shape, parts))
        case ast.Subscript(value=ast.Name(id=name), slice=part):
            return ("Index", name, python_shape(part))
    raise AssertionError(ast.dump(node))


_OPERANDS = st.sampled_from(["q", "k", "x1", "0", "7", "0x1F", "0b101", "1_000", "2.5", ".5", "3.", "1e-3", "True"])
_BINARY = st.sampled_from(
    ["+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>", "and", "or", *sorted(COMPARISONS)]
)


def _flat(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Chains without parentheses, so that precedence alone decides."""
    return st.one_of(
        st.tuples(children, _BINARY, children).map(" ".join),
        st.tuples(children, _BINARY, children, _BINARY, children).map(" ".join),
        st.tuples(st.sampled_from(["-", "+", "~", "not"]), children).map(" ".join),
        st.tuples(children, children, children).map(lambda t: f"{t[0]} if {t[1]} else {t[2]}"),
        children.map("({})".format),
        st.tuples(children, children).map(lambda t: f"max({t[0]}, {t[1]},)"),
        st.tuples(children, children).map(lambda t: f"doc[{t[0]}, {t[1]}]"),
    )


@given(st.recursive(_OPERANDS, _flat, max_leaves=12))
def test_grammar_is_pythons(text: str) -> None:
    try:
        expected = python_shape(ast.parse(text, mode="eval").body)
    except SyntaxError:
        with pytest.raises(ExpressionError):
            parse(text, AT)
    else:
        assert shape(parse(text, AT)) == expected


@given(st.text(alphabet="qk 01.(),[]+-*/%<>=!&|^~#_eifnotandors\n", max_size=30))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        parse(text, AT)
    except ExpressionError as error:
        assert error.location.file == "v.yaml"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("q +\n  k )", (4, 5)),
        ("q + # a comment (\n k ]", (4, 4)),
        ("\n\n\n  $", (6, 3)),
        ("q $", (3, 10)),
    ],
)
def test_places_in_texts_of_several_lines(text: str, place: tuple[int, int]) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, AT)
    assert (caught.value.location.line, caught.value.location.column) == place


def test_places_without_a_file_position_count_within_the_text() -> None:
    with pytest.raises(ExpressionError, match=r"^<dict>:1:3: "):
        parse("q $", Location("<dict>"))


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "q" + ")" * 10_000,
        "(" * 1_500 + "q" + ")" * 1_500,
        "-" * 1_500 + "q",
        "not " * 1_500 + "q",
        "~" * 100_000,
        "doc[" * 1_200,
        "max(" * 1_200,
        "q ** " * 1_200 + "q",
        "q + " * 2_100 + "q",
        "q < " * 2_500 + "q",
        "1 if q else " * 900 + "1",
        "q if " * 1_200 + "q",
    ],
    ids=lambda text: f"{text[:12].strip()}... x{len(text)}",
)
def test_hostile_size_is_an_error_and_not_a_crash(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"expected parts named with 'let'|expected 'else'"):
        parse(text, AT)


def test_reasonable_nesting_is_accepted() -> None:
    parse("(" * 60 + "q" + ")" * 60, AT)
    parse(" + ".join(["q"] * 1_000), AT)
