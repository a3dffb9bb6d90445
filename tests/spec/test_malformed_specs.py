"""Malformed and hostile specs, each with the message it must give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from malformed import INPUT, refused

from flashgen.errors import ExpressionError, SpecError
from flashgen.spec import load


def ranged(pair: str, dtype: str = "float32") -> str:
    """A spec whose input has this range."""
    return f"name: a\ninputs: {{r: {{shape: [heads], dtype: {dtype}, range: {pair}}}}}\nscore: score + r[h]\n"


# id: (the spec's text, the message after the file's name)
FORM = {
    "empty": ("", ":1:1: an empty file; expected keys such as name and score, each with a value"),
    "a list": ("- name\n", ":1:1: no mapping at the top; expected keys such as name and score, each with a value"),
    "no name": ("causal: true\n", ":1:1: no key 'name'; expected name, with a value"),
    "unknown key": ("name: a\nsofcap: 3\n", ":2:1: the unknown key 'sofcap'; expected softcap"),
    "unknown key in a window": ("name: a\nwindow: {lft: 3}\n", ":2:10: the unknown key 'lft'; expected left"),
    "duplicate key": ("name: a\nname: b\n", ":2:1: the key 'name' again; expected it once (the first is at line 1)"),
    "empty value": ("name: a\nscore:\n", ":2:7: no value; expected a value, or the key left out"),
    "a key that is no name": (
        "name: a\nparams: {1: 3}\n",
        ":2:10: the key 1; expected a name (in quotes, if it is meant as text)",
    ),
    "a compound key": (
        "name: a\n? [a]\n: b\n",
        ":2:3: a compound key; expected a name (in quotes, if it is meant as text)",
    ),
    "two documents": (
        "name: a\n---\nname: b\n",
        ":2:1: expected a single document in the stream, but found another document; expected one valid YAML document",
    ),
    "unclosed bracket": (
        "name: [a",
        ":1:9: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'; "
        "expected one valid YAML document",
    ),
    "YAML 1.1 bool": ("name: a\ncausal: yes\n", ":2:9: 'yes'; expected true or false"),
    "name of another type": ("name: 7\n", ":1:7: 7; expected text"),
    "dtype": ("name: a\ndtype: fp8\n", ":2:8: 'fp8'; expected float16 or bfloat16 or float32"),
    "dtype twice": (
        "name: a\ndtype: [float16, float16]\n",
        ":2:8: ['float16', 'float16']; expected at least one value, each once",
    ),
    "head_dim": ("name: a\nhead_dim: [64, 600]\n", ":2:16: 600; expected an integer from 1 to 512"),
    "head_dim as a bool": ("name: a\nhead_dim: true\n", ":2:11: true; expected an integer from 1 to 512"),
    "bias": ("name: a\nbias: t5\n", ":2:7: 't5'; expected alibi"),
    "sink": ("name: a\nsink: true\n", ":2:7: true; expected learned"),
    "align": ("name: a\nalign: left\n", ":2:8: 'left'; expected bottom_right or top_left"),
    "softcap below zero": (
        "name: a\nsoftcap: -30\n",
        ":2:10: -30; expected a number > 0 or an expression of params",
    ),
    "softcap param below zero": (
        "name: a\nparams: {cap: -1.5}\nsoftcap: cap\n",
        ":3:10: softcap of -1.5; expected a number > 0",
    ),
    "softcap beyond float32": (
        "name: a\nsoftcap: 1e39\n",
        ":2:10: 1e+39; expected a number > 0 that float32 holds, or an expression of params",
    ),
    "softcap param beyond float32": (
        "name: a\nparams: {cap: .inf}\nsoftcap: cap\n",
        ":3:10: softcap of inf; expected a number > 0 that float32 holds",
    ),
    "open window": ("name: a\nwindow: {}\n", ":2:9: an empty mapping; expected left, right or both"),
    "window as a number": ("name: a\nwindow: 3\n", ":2:9: 3; expected a mapping with the keys left, right"),
    "negative window": (
        "name: a\nwindow: {left: -1}\n",
        ":2:16: -1; expected an integer >= 0 or an expression of params; for a window that leaves out the query itself "
        "write 'mask: k >= q + 1', joined with & to another mask",
    ),
    "negative window to the right": (
        "name: a\nwindow: {left: 9, right: -8}\n",
        ":2:26: -8; expected an integer >= 0 or an expression of params; for a window that leaves out the query itself "
        "write 'mask: k <= q - 8', joined with & to another mask",
    ),
    "negative window by a param": (
        "name: a\nparams: {W: 8}\nwindow: {left: -W}\n",
        ":3:16: window left of -8; expected an integer >= 0; for a window that leaves out the query itself "
        "write 'mask: k >= q + 8', joined with & to another mask",
    ),
    "block size": ("name: a\nblock_sparse: {block_q: 0, block_kv: 8}\n", ":2:25: 0; expected an integer >= 1"),
    "block size beyond 31 bits": (
        "name: a\nblock_sparse: {block_q: 8, block_kv: 2147483648}\n",
        ":2:38: 2147483648; expected an integer from 1 to 2147483647",
    ),
    "dimension beyond 31 bits": (
        "name: a\ninputs: {r: {shape: [2147483648], dtype: int8}}\nscore: score + r[k]\n",
        ":2:22: 2147483648; expected an integer from 1 to 2147483647, an expression of sizes and params, or a new name",
    ),
    "param as text": (
        "name: a\nparams: {W: '64'}\n",
        ":2:13: '64'; expected a number, true, false, or {value: ..., runtime: true}",
    ),
    "param beyond 64 bits": (
        "name: a\nparams: {W: 9223372036854775808}\n",
        ":2:13: 9223372036854775808; expected a number that is not NaN, as an integer one of 64 bits",
    ),
    "runtime param beyond 32 bits": (
        "name: a\nparams: {W: {value: 2147483648, runtime: true}}\nmask: q - k < W\n",
        ":2:21: 2147483648; expected an integer of 32 bits, as a runtime param has, or a baked one",
    ),
    "runtime param below 32 bits": (
        "name: a\nparams: {W: {runtime: true, value: -2147483649}}\nmask: q - k < W\n",
        ":2:36: -2147483649; expected an integer of 32 bits, as a runtime param has, or a baked one",
    ),
    "param that is no number": (
        "name: a\nparams: {W: .nan}\n",
        ":2:13: nan; expected a number that is not NaN, as an integer one of 64 bits",
    ),
    "huge number": (
        f"name: a\nhead_dim: {'9' * 5000}\n",
        ":2:11: an integer of 5000 digits; expected an integer of 64 bits",
    ),
    "shape without a list": (
        "name: a\ninputs: {doc: {shape: kv_len, dtype: int32}}\n",
        ":2:23: 'kv_len'; expected a list of up to 6 dimensions, such as [batch, kv_len], or [] for a scalar",
    ),
    "shape of size zero": (
        "name: a\nparams: {W: 0}\ninputs: {doc: {shape: [2*W], dtype: int32}}\nscore: doc[0]\n",
        ":3:24: a dimension of size 0; expected at least 1",
    ),
    "a choice of sizes": (
        "name: a\ninputs: {doc: {shape: [batch|1, kv_len], dtype: int32}}\n",
        ":2:24: a dimension batch | 1; expected one size, such as batch, or 1",
    ),
    "two problems": (
        "name: a\nsink: 3\ncausal: 3\n",
        ":2:7: 3; expected learned (and 1 more)",
    ),
    "input dtype": (
        "name: a\ninputs: {doc: {shape: [2], dtype: int4}}\n",
        ":2:35: 'int4'; expected bool or int8 or uint8 or int16 or int32 or int64 or float16 or bfloat16 or float32",
    ),
    "gradient of a bool": (
        "name: a\ninputs: {keep: {shape: [2], grad: true, dtype: bool}}\n",
        ":2:35: true; expected grad: true only with dtype float16, bfloat16, float32",
    ),
    "gradient in a loop": (
        "name: a\ninputs: {w: {shape: [heads, n], dtype: float32, grad: true}}\nscore: score + sum(i, n, w[h, i])\n",
        ":2:55: a gradient of 'w', read at an index 'i' whose length a call decides; expected no gradient, or a length "
        "of integers and baked params, of at most 256",
    ),
    "a dimension that a loop computes": (
        "name: a\nparams: {n: {value: 3, runtime: true}}\ninputs: {w: {shape: ['sum(i, n, i)'], dtype: int32}}\n",
        ":3:23: a dimension that a reduction over an index comes to; expected a sum of integers and sizes",
    ),
    "gradient of an integer": (
        "name: a\ninputs: {doc: {shape: [2], dtype: int32, grad: true}}\n",
        ":2:48: true; expected grad: true only with dtype float16, bfloat16, float32",
    ),
    "kv_heads": (
        "name: a\ntune: {shapes: [{batch: 1, heads: 4, kv_heads: 3, q_len: 8}]}\n",
        ":2:48: 3; expected a divisor of heads, 4",
    ),
    "two hints": (
        f"name: a\n{INPUT}tune: {{inputs: {{doc: {{segments: 1, density: 0.5}}}}}}\n",
        ":3:22: a mapping; expected exactly one of segments and density",
    ),
    "hint for no input": (
        f"name: a\n{INPUT}mask: doc[b, k] > 0\ntune: {{inputs: {{dok: {{segments: 1}}}}}}\n",
        ":4:17: the unknown input 'dok'; expected one of the inputs doc",
    ),
    "hint of another dtype": (
        f"name: a\n{INPUT}mask: doc[b, k] > 0\ntune: {{inputs: {{doc: {{density: 0.5}}}}}}\n",
        ":4:22: a hint that does not fit dtype int32; expected segments, or a range of the input",
    ),
    "range as a hint": (
        f"name: a\n{INPUT}mask: doc[b, k] > 0\ntune: {{inputs: {{doc: {{range: [0, 5]}}}}}}\n",
        ":4:23: the key 'range'; expected it under inputs, as a key of the input",
    ),
    "range and a hint": (
        "name: a\ninputs: {doc: {shape: [batch, kv_len], dtype: int32, range: [0, 5]}}\nmask: doc[b, k] > 0\n"
        "tune: {inputs: {doc: {segments: 3}}}\n",
        ":4:17: a hint for 'doc', which has a range; expected the one or the other",
    ),
    "range of one number": (ranged("[1]"), ":2:53: [1]; expected a pair [low, high]"),
    "range that is a number": (ranged("3"), ":2:53: 3; expected a pair [low, high]"),
    "range the wrong way round": (
        ranged("[2, 1]"),
        ":2:53: [2, 1]; expected a pair [low, high] with -3.4e+38 <= low <= high <= 3.4e+38, of dtype float32",
    ),
    "range without an end": (ranged("[0, .inf]"), ":2:57: inf; expected a number"),
    "range of no number": (ranged("[.nan, 0]"), ":2:54: nan; expected a number"),
    "range of bools": (ranged("[false, true]"), ":2:54: false; expected a number (and 1 more)"),
    "range of texts": (ranged("['0', 1]"), ":2:54: '0'; expected a number"),
    "range beyond the dtype": (
        ranged("[0, 300]", "uint8"),
        ":2:51: [0, 300]; expected a pair [low, high] with 0 <= low <= high <= 255, of dtype uint8",
    ),
    "range of fractions for integers": (
        ranged("[0, 1.5]", "int32"),
        ":2:51: [0, 1.5]; expected a pair of integers with dtype int32",
    ),
    "range of a bool": (
        ranged("[0, 1]", "bool"),
        ":2:50: [0, 1]; expected no range with dtype bool; tune has a density for it",
    ),
}


HOSTILE = {
    "exploding aliases": (
        "name: a\na: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
        "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
        "e: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n",
        ":2:22: too many values; expected at most 5000 values, those that aliases repeat counted again",
    ),
    "alias of itself": ("name: &a [*a]\n", ":1:7: deeper nesting; expected at most 24 levels of nesting"),
    "undefined alias": (
        "name: *a\n",
        ":1:7: found undefined alias 'a'; expected one valid YAML document, with text that begins with '*' in quotes",
    ),
    "a comma between braces": (
        "name: a\nlet: {d: clamp(q - k, 0, 5)}\n",
        ":2:23: '0' without a value; expected 'KEY: VALUE'; between braces a value that has a comma in it stands in "
        "quotes",
    ),
    "an index between braces": (
        "name: a\nlet: {d: doc[b]}\n",
        ":2:13: while parsing a flow mapping, expected ',' or '}', but got '['; expected one valid YAML document, with "
        "an expression between braces or brackets in quotes",
    ),
    "a magnitude": (
        "name: a\nscore: |q - k|\n",
        ":2:9: while scanning a block scalar, expected chomping or indentation indicators, but found 'q'; expected one "
        "valid YAML document, with text that begins with '|' in quotes",
    ),
    "a minus and a blank": (
        "name: a\nscore: - slopes[h]\n",
        ":2:8: sequence entries are not allowed here; expected one valid YAML document, with text that begins with '-' "
        "in quotes",
    ),
    "a negation": (
        "name: a\nmask: !(k>q)\n",
        ":2:10: while scanning a tag, expected ' ', but found '>'; expected one valid YAML document, with text that "
        "begins with '!' in quotes",
    ),
    "a colon and a blank": (
        "name: a\nmask: k if q: k\n",
        ":2:13: mapping values are not allowed here; expected one valid YAML document, with text that has ': ' in "
        "it in quotes",
    ),
    "text behind quotes": (
        "name: a\nmask: 'a' == b\n",
        ":2:11: while parsing a block mapping, expected <block end>, but found '<scalar>'; expected one valid YAML "
        "document, with nothing behind a closing quote",
    ),
    "keys indented unlike": (
        "name: a\ninputs:\n  x:\n    shape: [2]\n   dtype: int32\n",
        ":5:4: while parsing a block mapping, expected <block end>, but found '<block mapping start>'; expected one "
        "valid YAML document, with keys that belong together indented alike",
    ),
    "an expression that goes on at the margin": (
        "name: a\nmask: (k <= q) &\n(k > 3)\n",
        ":4:1: while scanning a simple key, could not find expected ':'; expected one valid YAML document, with an "
        "expression of several lines indented further than its key",
    ),
    "a shape without its length": (
        "name: a\ntune: {shapes: [{batch: 1, heads: 4}]}\n",
        ":2:17: no key 'q_len'; expected q_len, as mode dense needs it",
    ),
    "deep nesting": (f"name: {'[' * 5000}", ":1:30: deeper nesting; expected at most 24 levels of nesting"),
    "many values": (
        f"name: [{'1,' * 20_000}]\n",
        ":1:10002: too many values; expected at most 5000 values, those that aliases repeat counted again",
    ),
    "many lets": (
        "name: a\nlet:\n" + "".join(f"  x{i}: q\n" for i in range(100)),
        ":3:3: 100 lets; expected at most 64 lets",
    ),
    "Python object": (
        "name: !!python/object/apply:os.system [ls]\n",
        ":1:7: the YAML tag 'tag:yaml.org,2002:python/object/apply:os.system'; expected a plain value without a tag",
    ),
    "a letter that looks like another": (
        "name: a\nс\u0430usal: true\n",
        ":2:1: the unknown key 'с\u0430usal' with U+0441, CYRILLIC SMALL LETTER ES; expected causal",
    ),
    "a digit that looks like another": (
        "name: a\nhead_dim: ６４\n",
        ":2:11: '６４' with U+FF16, FULLWIDTH DIGIT SIX; expected an integer from 1 to 512",
    ),
    "a tab as indentation": (
        "name: a\nparams:\n\tW: 3\n",
        ":3:1: while scanning for the next token, found character '\\t' that cannot start any token; "
        "expected one valid YAML document, with spaces in the place of tabs",
    ),
    "control character": ("name: a\ndescription: \x1b[2J\n", ":2:14: the character U+001B; expected printable text"),
    "escaped control character": (
        'name: a\ndescription: "a\\0b"\n',
        ":2:14: 'a\\x00b'; expected text without control characters",
    ),
    "escaped surrogate": (
        'name: a\ndescription: "a\\ud800b"\n',
        ":2:14: 'a\\ud800b'; expected text without control characters",
    ),
    "text that reorders itself": (
        'name: a\ndescription: "a\\u202eb"\n',
        ":2:14: 'a\\u202eb'; expected text without control characters",
    ),
    "large file": (f"name: a\n# {'x' * 300_000}", ": more than 262144 bytes; expected a spec of ordinary size"),
}


@pytest.mark.parametrize("case", FORM | HOSTILE)
def test_message_of_a_spec(case: str, tmp_path: Path) -> None:
    text, message = (FORM | HOSTILE)[case]
    error = refused(text, message, tmp_path)
    assert not isinstance(error, ExpressionError)


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"name: a\ndescription: \xff\n")
    with pytest.raises(SpecError) as caught:
        load(path)
    assert str(caught.value) == f"{path}:2:14: the byte 0xFF; expected UTF-8 text"


def test_a_line_separator_within_a_value_is_no_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("name: a\ndescription: one\u2028  two\nsofcap: 3\n", encoding="utf-8")
    with pytest.raises(SpecError, match=re.escape(f"{path}:3:1: ")):
        load(path)
