"""Types, promotion, names, and what each mistake is told."""

from __future__ import annotations

import pytest
from language_world import AT, SCOPE, compile

from flashgen.errors import ExpressionError, Location
from flashgen.lang import check
from flashgen.lang.nodes import Expr, Type, const, gather, op, var
from flashgen.lang.scope import Scope

Q, K = var("q", Type.INT), var("k", Type.INT)
SCORE, CAP = var("score", Type.FLOAT), var("cap", Type.FLOAT)
B_, I_, F_ = Type.BOOL, Type.INT, Type.FLOAT


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("q", I_), ("score", F_), ("flag", B_), ("W", I_), ("half", F_), ("True", B_), ("false", B_), ("1e3", F_),
        ("q + k", I_), ("q + score", F_), ("flag + flag", I_), ("-flag", I_), ("+flag", I_), ("~flag", B_), ("~q", I_),
        ("q / k", F_), ("q // k", I_), ("q // half", F_), ("q % 2", I_), ("score % 2", F_),
        ("q ** 2", I_), ("q ** W", I_), ("q ** -1", F_), ("q ** k", F_), ("flag ** 3", I_), ("score ** 2", F_),
        ("q < k", B_), ("q < k < 3", B_), ("flag == (q < k)", B_), ("flag < 1", B_),
        ("flag & (q < k)", B_), ("q & 3", I_), ("q & flag", I_), ("flag ^ True", B_), ("q << 2", I_), ("flag << 2", I_),
        ("flag and not flag", B_), ("q if flag else half", F_), ("flag if flag else q", I_),
        ("where(flag, flag, q < k)", B_), ("where(flag, 1, 2.0)", F_),
        ("abs(flag)", I_), ("abs(score)", F_), ("min(q, half)", F_), ("max(flag, flag)", I_), ("clamp(q, 0, 1.0)", F_),
        ("exp(q)", F_), ("sqrt(2)", F_), ("floor(score)", I_), ("floor(q)", I_), ("floor(flag)", I_),
        ("doc[b, q]", I_), ("rel[h, off[doc[b, k]]]", F_), ("keep[b, flag]", B_),
    ],
)  # fmt: skip
def test_types(text: str, kind: Type) -> None:
    assert compile(text).type is kind


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("k <= q", op("le", K, Q)),
        ("0 <= q - k <= W", op("and", op("le", const(0), op("sub", Q, K)), op("le", op("sub", Q, K), const(3)))),
        ("clamp(q, -W, W)", op("min", op("max", Q, const(-3)), const(3))),
        ("score - abs(q - k)", op("sub", SCORE, op("to_float", op("abs", op("sub", Q, K))))),
        ("cap * tanh(score / cap)", op("mul", CAP, op("tanh", op("truediv", SCORE, CAP)))),
        ("min(q, k, 2)", op("min", op("min", Q, K), const(2))),
        ("q if k < 2 else 1.5", op("where", op("lt", K, const(2)), op("to_float", Q), const(1.5))),
        ("off[W * 2]", gather("off", (const(6),), Type.INT)),
        ("floor(q)", Q),
        ("any(i, 2, q == i)", op("or", op("eq", Q, const(0)), op("eq", Q, const(1)))),
        ("all(i, W - 1, off[i] < k)", op("and", *(op("lt", gather("off", (const(i),), Type.INT), K) for i in (0, 1)))),
        ("sum(i, W, i * q)", op("add", Q, op("mul", const(2), Q))),
        ("sum(i, 2, score)", op("add", SCORE, SCORE)),
        ("sum(i, 3, sum(j, i, 10 * i + j))", const(51)),
        ("sum(i, 2, k < q)", op("add", *[op("to_int", op("lt", K, Q))] * 2)),
        ("sum(i, 0, score)", const(0.0)),
        ("sum(i, 19, 10 ** i)", const(1111111111111111111)),
        ("sum(i, 64, (q - q) ** i)", const(1)),
        ("sum(i, 0, 10 ** i)", const(0)),
        ("any(i, -1, q == i)", const(False)),
        ("all(i, 0, q == i)", const(True)),
        ("flag < (k < q)", op("lt", op("to_int", var("flag", Type.BOOL)), op("to_int", op("lt", K, Q)))),
        ("flag == (k < q)", op("eq", var("flag", Type.BOOL), op("lt", K, Q))),
        ("not (k <= q)", op("gt", K, Q)),
        ("3 // 0 + 3 % 0", const(0)),
        ("2 ** 3 ** 2", const(512)),
        ("-7 // 2", const(-4)),
        ("7 / 2", const(3.5)),
        ("-9223372036854775808", const(-(2**63))),
        ("q - -0x8000000000000000", op("sub", Q, const(-(2**63)))),
        ("-9223372036854775808.0", const(-(2.0**63))),
        ("-True", const(-1)),
    ],
)
def test_graphs(text: str, expected: Expr) -> None:
    assert compile(text) is expected


def test_reductions_of_one_term_inside_each_other() -> None:
    text = "q"
    for number in range(60):
        text = f"sum(i{number}, 1, {text} + i{number})"
    assert compile(text) is Q


def test_a_wanted_float_promotes_an_int() -> None:
    assert compile("q", Type.FLOAT) is op("to_float", Q)
    assert compile("1", Type.FLOAT) is const(1.0)


def test_a_let_stands_for_its_expression() -> None:
    scope = Scope({"q": Q, "k": K, "d": op("sub", Q, K)})
    assert check.expression("abs(d)", scope, AT) is op("abs", op("sub", Q, K))


# Each text starts at line 3, column 8; W is 3.
ERRORS = [
    ("", None, "3:8: an empty expression; expected a formula such as 'k <= q'"),
    ("  # nothing", None, "3:8: an empty expression; expected a formula such as 'k <= q'"),
    ("q +", None, "3:11: unexpected end of the expression; expected a number, a name or '('"),
    ("q k", None, "3:10: unexpected 'k'; expected an operator or the end of the expression"),
    ("(q + k", None, "3:14: unexpected end of the expression; expected an operator or ')' to close the '(' at 3:8"),
    ("doc[b, q", None, "3:16: unexpected end of the expression; expected an operator or ']' to close the '[' at 3:11"),
    ("q)", None, "3:9: unexpected ')'; expected an operator or the end of the expression"),
    ("()", None, "3:9: unexpected ')'; expected a number, a name or '('"),
    ("q = k", None, "3:10: unexpected '='; expected '==' to compare; arguments have no names but their "),
    ("!flag", None, "3:8: unexpected '!'; expected 'not' or '~' to negate, '!=' to compare"),
    ("flag && flag", None, "3:13: unexpected '&&'; expected '&' between tests in parentheses"),
    ("doc[b, :]", None, "3:15: unexpected ':'; expected one integer index per dimension; there are no slices"),
    ("doc[b][q]", None, "3:14: unexpected '['; expected all indices in one bracket, as in 'doc[i, j]'"),
    ("doc[]", None, "3:11: 'doc[]'; expected one integer index per dimension"),
    ("q.real", None, "3:8: 'q.real'; expected a plain name or number; there are no attributes"),
    ("__import__('os')", None, "3:19: unexpected '''; expected a number, 'inf' or a name; there are no strings"),
    ("q + ²", None, "3:12: unexpected '²'; expected '** 2'"),
    ("q\x00", None, "3:9: unexpected character U+0000; expected a number, a name, an operator or a bracket"),
    ("1.2.3", None, "3:8: the malformed number '1.2.3'; expected a number such as 64, 0x40, 0.5 or 1e-3"),
    ("08", None, "3:8: the malformed number '08'; expected a number such as 64, 0x40, 0.5 or 1e-3"),
    ("2k", None, "3:8: the malformed number '2k'; expected a number such as 64, 0x40, 0.5 or 1e-3"),
    ("1e999", None, "3:8: the number 1e999, beyond double precision; expected a finite number"),
    ("9223372036854775808", None, "3:8: the integer 9223372036854775808, beyond 64 bits; expected at most 92233"),
    ("k - 9223372036854775808", None, "3:12: the integer 9223372036854775808, beyond 64 bits; expected at most 92233"),
    ("-9223372036854775808 ** 2", None, "3:9: the integer 9223372036854775808, beyond 64 bits; expected at most 92"),
    ("+9223372036854775808", None, "3:9: the integer 9223372036854775808, beyond 64 bits; expected at most 92233"),
    ("-9223372036854775809", None, "3:9: the integer 9223372036854775809, beyond 64 bits; expected at most 92233"),
    ("--9223372036854775808", None, "3:8: a constant beyond 64 bits, by '-'; expected a smaller integer"),
    ("lambda", None, "3:8: the Python keyword 'lambda'; expected a name, a number, or one of and, or, not, if, else"),
    ("q is k", None, "3:10: the Python keyword 'is'; expected '=='"),
    ("lambda q: k", None, "3:15: unexpected 'q' after the Python keyword 'lambda'; expected an operator or the end"),
    (
        "λ * q",
        None,
        "3:8: unexpected 'λ' with U+03BB, GREEK SMALL LETTER LAMDA; expected a name of letters from a to z",
    ),
    ("q if flag", None, "3:17: unexpected end of the expression; expected 'else': a conditional is 'a if test else b'"),
    ("q + not flag", None, "3:12: unexpected 'not'; expected parentheses around 'not ...' here, as in Python"),
    ("scores", None, "3:8: the unknown name 'scores'; expected 'score'"),
    ("q +\n zzz * 2", None, "4:2: the unknown name 'zzz'; expected "),
    ("doc", None, "3:8: the input 'doc' without an index; expected 'doc[...]' with 2 indices"),
    ("doc[b]", None, "3:8: 'doc' with 1 index; expected 2 indices, one for each dimension"),
    ("off[b, q]", None, "3:8: 'off' with 2 indices; expected 1 index, one for each dimension"),
    ("q[b]", None, "3:8: the scalar 'q' with an index; expected an input: 'doc', 'keep', 'off' or 'rel'"),
    ("gain[0]", None, "3:8: the scalar 'gain' with an index; expected 'gain' alone"),
    ("docs_[b]", None, "3:8: the unknown input 'docs_' with an index; expected an input: 'doc'"),
    ("off[score]", None, "3:12: an index of 'off' is a float; expected an int or a bool"),
    ("any(q == k)", None, "3:8: 'any' with 1 argument; expected 3"),
    ("any(q, 3, q == k)", None, "3:12: 'q', which has a meaning, as the index of 'any'; expected a new name, as in "),
    ("sum(i, 2, sum(i, 2, i))", None, "3:22: 'i', which has a meaning, as the index of 'sum'; expected a new name"),
    ("sum(2, 2, q)", None, "3:12: an expression as the index of 'sum'; expected a new name, as in 'sum(i, 4, ...)'"),
    ("sum(i, kv_len, i)", None, "3:15: the length of 'sum' with 'kv_len' in it; expected an integer expression of p"),
    ("sum(i, n + k, i)", None, "3:17: the length of 'sum' with 'k' in it; expected an integer expression of params, "),
    ("any(i, off[0], q == i)", None, "3:15: the length of 'any' with the input 'off' in it; expected an integer expr"),
    ("sum(i, n, sum(j, i, j))", None, "3:25: the length of 'sum' with 'i' in it; expected an integer expression of p"),
    ("sum(i, n, any(j, i + n, q == j))", None, "3:27: the length of 'any' with 'i' in it; expected an integer expres"),
    ("sum(i, sum(j, n, j), i)", None, "3:15: the length of 'sum' with a reduction in it; expected an integer expressi"),
    ("sum(i, n, sum(i, n, i))", None, "3:22: 'i', which has a meaning, as the index of 'sum'; expected a new name"),
    ("all(i, n, i)", None, "3:18: the test of 'all' is an int; expected a bool, such as the comparison 'k <= q'"),
    ("sum(i, n, i) + i", None, "3:23: the unknown name 'i'; expected "),
    ("sum(i, 2.5, i)", None, "3:15: the length of 'sum' is a float; expected an int; use floor(...) to round down"),
    ("any(i, 2, i)", None, "3:18: the test of 'any' is an int; expected a bool, such as the comparison 'k <= q'"),
    ("sum(i, 2, i) + i", None, "3:23: the unknown name 'i'; expected "),
    ("abs", None, "3:8: the function 'abs' without arguments; expected 'abs(...)'"),
    ("sigmoyd(q)", None, "3:8: the unknown function 'sigmoyd'; expected 'sigmoid'"),
    ("abs(q, k)", None, "3:8: 'abs' with 2 arguments; expected 1"),
    ("min(q)", None, "3:8: 'min' with 1 argument; expected 2 or more"),
    ("clamp(q, 1)", None, "3:8: 'clamp' with 2 arguments; expected 3"),
    ("where(q, 1, 2)", None, "3:14: the first argument of 'where' is an int; expected a bool, such as"),
    ("1 if q else 2", None, "3:13: the test of a conditional is an int; expected a bool, such as"),
    ("flag and q", None, "3:17: an operand of 'and' is an int; expected a bool, such as the comparison 'k <= q'"),
    ("not q", None, "3:12: the operand of 'not' is an int; expected a bool, such as the comparison 'k <= q'"),
    ("~score", None, "3:9: the operand of '~' is a float; expected a bool or an int"),
    ("q & score", None, "3:12: an operand of '&' is a float; expected a bool or an int"),
    ("q << half", None, "3:13: an operand of '<<' is a float; expected a bool or an int"),
    ("q ** 64", None, "3:10: the exponent 64 of an int; expected at most 63, or a float base"),
    ("3 ** 63", None, "3:10: a constant beyond 64 bits, by '**'; expected a smaller integer"),
    ("1 << 63", None, "3:10: a constant beyond 64 bits, by '<<'; expected a smaller integer"),
    ("q - k", Type.BOOL, "3:8: mask is an int; expected a bool, such as the comparison 'k <= q'"),
    ("score", Type.BOOL, "3:8: mask is a float; expected a bool, such as the comparison 'k <= q'"),
    ("q / 2", Type.INT, "3:8: mask is a float; expected an int; use floor(...) to round down"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "want", "message"), ERRORS, ids=lambda value: str(value)[:24])
def test_errors(text: str, want: Type | None, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        check.expression(text, SCOPE, AT, want=want, what="mask")
    assert str(caught.value).startswith(f"v.yaml:{message}")


def test_an_unknown_name_without_likeness_lists_all() -> None:
    scope = Scope({"q": Q, "k": K})
    with pytest.raises(ExpressionError, match=r"^s:1:1: the unknown name 'zzz'; expected 'k' or 'q'$"):
        check.expression("zzz", scope, Location("s"))


@pytest.mark.parametrize(("text", "want"), [("flag", Type.FLOAT), ("flag", Type.INT), ("1", Type.BOOL)])
def test_bools_and_numbers_do_not_stand_for_each_other(text: str, want: Type) -> None:
    with pytest.raises(ExpressionError, match="expression is a"):
        compile(text, want)
