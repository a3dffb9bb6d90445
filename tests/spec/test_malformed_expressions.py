"""Malformed names and expressions of specs, each with the message it must give at its place in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from malformed import INPUT, refused

from flashgen.errors import ExpressionError
from flashgen.spec import load

NAMES = {
    "path": (
        "name: ../../x\n",
        ":1:7: the name '../../x'; "
        "expected a lower-case letter, then lower-case letters, digits and underscores, at most 64 in all",
    ),
    "upper case": (
        "name: Alibi\n",
        ":1:7: the name 'Alibi'; "
        "expected a lower-case letter, then lower-case letters, digits and underscores, at most 64 in all",
    ),
    "keyword": ("name: import\n", ":1:7: the name 'import'; expected a name that is not a Python keyword"),
    "module": ("name: torch\n", ":1:7: the name 'torch'; expected a name that is not already a Python module's"),
    "param called like an operator": (
        "name: a\nparams: {or: 3}\n",
        ":2:10: the param name 'or'; expected a name that is not a word of the expression language",
    ),
    "param called like a number": (
        "name: a\nparams: {inf: 3}\n",
        ":2:10: the param name 'inf'; expected a name that is not a word of the expression language",
    ),
    "param called like an argument": (
        "name: a\nparams: {scale: {value: 3, runtime: true}}\n",
        ":2:10: the param name 'scale'; expected a name that is not already an argument of attention()",
    ),
    "digit first": (
        "name: a\nlet: {2d: q - k}\n",
        ":2:7: the let name '2d'; "
        "expected letters from a to z, digits and underscores, no digit first, at most 64 in all",
    ),
    "other alphabet": (
        "name: a\nlet: {ｄ: q - k}\n",
        ":2:7: the let name 'ｄ' with U+FF44, FULLWIDTH LATIN SMALL LETTER D; "
        "expected letters from a to z, digits and underscores, no digit first, at most 64 in all",
    ),
    "language word": (
        "name: a\nlet: {clamp: q - k}\n",
        ":2:7: the let name 'clamp'; expected a name that is not a word of the expression language",
    ),
    "same name twice": (
        "name: a\nparams: {d: 3}\nlet: {d: q - k}\n",
        ":3:7: the let name 'd'; expected a name that is not already a param",
    ),
    "dimension called like a let": (
        "name: a\ninputs: {rel: {shape: [d], dtype: float32}}\nlet: {d: q - k}\nscore: rel[d]\n",
        ":2:24: the dimension name 'd'; expected a name that is not already a let",
    ),
    "input that sugar adds": (
        "name: a\nbias: alibi\ninputs: {slopes: {shape: [heads], dtype: float32}}\n",
        ":2:1: bias, which adds the input 'slopes'; "
        "expected no name of the spec's own like it ('slopes' is already an input)",
    ),
    "unread input": (
        f"name: a\n{INPUT}",
        ":2:10: the input 'doc', which neither score nor mask reads; "
        "expected an expression with doc[...], or no such input",
    ),
    "input that folding removes": (
        "name: a\ninputs: {a: {shape: [heads], dtype: int32}}\nmask: (k <= q) & (a[h] == a[h])\n",
        ":2:10: the input 'a', which changes nothing: the expressions with it come to the same without it; "
        "expected an expression that depends on a[...], or no such input",
    ),
    "input of a let that nothing reads": (
        f"name: a\n{INPUT}let: {{same: 'doc[b, k] == 0'}}\n",
        ":2:10: the input 'doc', which only lets read that neither score nor mask does; "
        "expected an expression with doc[...], or no such input",
    ),
    "runtime param that folding removes": (
        "name: a\nparams: {R: {value: 2, runtime: true}}\nmask: (k <= q) | (R - R > k)\n",
        ":2:10: the runtime param 'R', which changes nothing: the expressions with it come to the same without it; "
        "expected an expression that depends on it, or no such param",
    ),
    "runtime param that folding removes from a let": (
        "name: a\nparams: {R: {value: 2, runtime: true}}\nlet: {z: R - R, y: z + 1}\nmask: k <= q + y\n",
        ":2:10: the runtime param 'R', which changes nothing: the expressions with it come to the same without it; "
        "expected an expression that depends on it, or no such param",
    ),
    "runtime param that folding removes from a shape": (
        "name: a\nparams: {R: {value: 2, runtime: true}}\n"
        "inputs: {t: {shape: [R - R + 4], dtype: float32}}\nscore: score + t[0]\n",
        ":2:10: the runtime param 'R', which changes nothing: the expressions with it come to the same without it; "
        "expected an expression that depends on it, or no such param",
    ),
    "runtime param of a let that nothing reads": (
        "name: a\nparams: {R: {value: 2, runtime: true}}\nlet: {z: q + R}\n",
        ":2:10: the runtime param 'R', which only lets read that neither score nor mask does; "
        "expected an expression with it, or no such param",
    ),
    "unread runtime param": (
        "name: a\nparams: {w: {value: 3, runtime: true}}\n",
        ":2:10: the runtime param 'w', which nothing reads; expected an expression with it, or no such param",
    ),
}


@pytest.mark.parametrize("case", NAMES)
def test_message_of_a_name(case: str, tmp_path: Path) -> None:
    text, message = NAMES[case]
    error = refused(text, message, tmp_path)
    assert not isinstance(error, ExpressionError)


EXPRESSIONS = {
    "a cap that is no param": (
        "name: a\nsoftcap: cap\n",
        ":2:10: the unknown name 'cap'; expected a number, or a name under 'params'",
    ),
    "dimension in another alphabet": (
        "name: a\ninputs: {x: {shape: [λ], dtype: float32}}\n",
        ":2:22: unexpected 'λ' with U+03BB, GREEK SMALL LETTER LAMDA; expected a name of letters from a to z",
    ),
    "unknown name in a mask": (
        "name: a\nlet: {s: score * 2, d: q - k}\nmask: k <= q + foo\n",
        ":3:16: the unknown name 'foo'; expected 'b', 'batch', 'd', 'h', 'head_dim', 'heads', 'k', 'kv_h', 'kv_heads', "
        "'kv_len', 'q' or 'q_len'",
    ),
    "unknown name in a reduction of a mask": (
        "name: a\nmask: any(i, 2, k <= q + foo)\n",
        ":2:26: the unknown name 'foo'; expected 'b', 'batch', 'h', 'head_dim', 'heads', 'i', 'k', 'kv_h', 'kv_heads', "
        "'kv_len', 'q' or 'q_len'",
    ),
    "another word for the score in a mask": (
        "name: a\nmask: scores > 0\n",
        ":2:7: the unknown name 'scores'; expected 'b', 'batch', 'h', 'head_dim', 'heads', 'k', 'kv_h', 'kv_heads', "
        "'kv_len', 'q' or 'q_len'",
    ),
    "unknown name in a score": (
        "name: a\nscore: score + foo\n",
        ":2:16: the unknown name 'foo'; expected 'b', 'batch', 'h', 'head_dim', 'heads', 'k', 'kv_h', 'kv_heads', "
        "'kv_len', 'q', 'q_len' or 'score'",
    ),
    "unknown name": ("name: a\nmask: k <= qq\n", ":2:12: the unknown name 'qq'; expected 'q'"),
    "in quotes": ("name: a\nmask: '  k <= qq'\n", ":2:15: the unknown name 'qq'; expected 'q'"),
    "in a block": ("name: a\nmask: |\n   (k <= q)\n    & (kk < 3)\n", ":4:8: the unknown name 'kk'; expected 'k'"),
    "in a folded block": ("name: a\nmask: >-\n\n  k <= q &\n  (kk < 3)\n", ":5:4: the unknown name 'kk'; expected 'k'"),
    "over two plain lines": ("name: a\nmask: (k <= q)\n  & (kk < 3)\n", ":3:6: the unknown name 'kk'; expected 'k'"),
    "with carriage returns": ("name: a\r\nmask: k <= qq\r\n", ":2:12: the unknown name 'qq'; expected 'q'"),
    "in a dimension": (
        "name: a\ninputs: {rel: {shape: [heads, 2*head + 1], dtype: float32}}\nscore: rel[h, 0]\n",
        ":2:33: the unknown name 'head'; expected 'head_dim' or 'heads'",
    ),
    "in a window": ("name: a\nparams: {W: 3}\nwindow: {left: w + W}\n", ":3:16: the unknown name 'w'; expected 'W'"),
    "of the wrong type": (
        "name: a\nscore: k <= q\n",
        ":2:8: score is a bool; expected a float, such as where(test, 1.0, 0.0) for a test",
    ),
    "mask that is a number": (
        "name: a\nmask: 1\n",
        ":2:7: mask is an int; expected a bool, such as the comparison 'k <= q'",
    ),
    "mask of scores": (
        "name: a\nlet: {high: score > 0}\nmask: high\n",
        ":3:7: a mask that reads 'score'; "
        "expected positions, sizes, params, inputs and lets: what is visible is decided before the scores; "
        "what a test of the score hides is 'score: where(test, score, -inf)'",
    ),
    "cyclic lets": (
        "name: a\nlet:\n  x: 1 + y\n  y: x\nscore: y\n",
        ":3:10: 'y' before its own let; expected lets that come earlier: each let may read those before it",
    ),
    "let of itself": (
        "name: a\nlet: {x: x + 1}\n",
        ":2:10: the let 'x' reading itself; expected lets that come earlier: each let may read those before it",
    ),
    "too few indices": (
        f"name: a\n{INPUT}mask: doc[k] > 0\n",
        ":3:7: 'doc' with 1 index; expected 2 indices, one for each dimension",
    ),
    "index that is a float": (
        f"name: a\n{INPUT}mask: doc[b, k / 2] > 0\n",
        ":3:16: an index of 'doc' is a float; expected an int or a bool",
    ),
    "attribute": (
        "name: a\nscore: score.real\n",
        ":2:8: 'score.real'; expected a plain name or number; there are no attributes",
    ),
    "Python call": (
        "name: a\nscore: __import__('os').system('true')\n",
        ":2:19: unexpected '''; expected a number, 'inf' or a name; there are no strings",
    ),
    "10,000 parentheses": (
        f"name: a\nscore: {'(' * 10_000}score{')' * 10_000}\n",
        ":2:4008: an expression of more than 4000 tokens; expected parts named with 'let'",
    ),
    "3,000 parentheses": (
        f"name: a\nscore: {'(' * 1_500}score{')' * 1_500}\n",
        ":2:72: an expression nested more than 64 deep; expected parts named with 'let'",
    ),
    "score of no number": (
        "name: a\nscore: nan\n",
        ":2:8: the unknown name 'nan'; expected 'b', 'batch', 'h', 'head_dim', 'heads', 'k', 'kv_h', 'kv_heads', "
        "'kv_len', 'q', 'q_len' or 'score'",
    ),
}


@pytest.mark.parametrize("case", EXPRESSIONS)
def test_message_of_an_expression(case: str, tmp_path: Path) -> None:
    text, message = EXPRESSIONS[case]
    error = refused(text, message, tmp_path)
    assert isinstance(error, ExpressionError)


@pytest.mark.parametrize(
    ("scalar", "place"),
    [
        ('"score +\\n zz"', (2, 19)),
        ('"score +\\x20\\u0020\\U00000020zz"', (2, 36)),
        ('"score \\/ zz"', (2, 18)),
        ('"score + \\\n    1.0 + zz"', (3, 11)),
        ('"score + 1.0 +\n  zz"', (3, 3)),
        ('"score +\\n 1.0 +\n  zz"', (3, 3)),
        ("'score + '' zz'", (2, 17)),
        ("score +\n  1.0 +\n\n  zz", (5, 3)),
        ("|  # a block\n  score + # a comment\n  zz", (4, 3)),
        (">-\n\n  score + # a comment\n  zz", (5, 3)),
        ("&there score + zz", (2, 23)),
        ("&there  # a comment\n  score + zz", (3, 11)),
        ("&there |\n  score +\n  zz", (4, 3)),
        ('&there "score +\n  zz"', (3, 3)),
    ],
)
@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_the_place_of_a_name_is_that_in_the_file(
    tmp_path: Path, scalar: str, place: tuple[int, int], line_break: str
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(f"name: a\nscore: {scalar}\ncausal: true\n".replace("\n", line_break).encode())
    with pytest.raises(ExpressionError) as caught:
        load(path)
    assert (caught.value.location.line, caught.value.location.column) == place
