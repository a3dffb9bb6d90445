"""What people write out of habit from PyTorch, NumPy and FlexAttention, and what the message says it is called here."""

from __future__ import annotations

import pytest
import torch

from flashgen.errors import ExpressionError, Location
from flashgen.lang.check import expression
from flashgen.lang.evaluate import evaluate
from flashgen.lang.nodes import Type, var
from flashgen.lang.scope import Scope, TensorType
from flashgen.lang.vocabulary import FUNCTIONS, MEANINGS, near

NAMES = {name: var(name, Type.FLOAT if name == "score" else Type.INT) for name in MEANINGS}
SCOPE = Scope(NAMES | {"W": var("W", Type.INT)}, {"doc": TensorType(Type.INT, 2), "slopes": TensorType(Type.FLOAT, 1)})

MESSAGES = {
    "k <= kv_idx": "6: the unknown name 'kv_idx'; expected 'k', the position of the key",
    "q_idx - 5": "1: the unknown name 'q_idx'; expected 'q', the position of the query",
    "batch_idx": "1: the unknown name 'batch_idx'; expected 'b', the index of the sequence in its batch",
    "head_idx": "1: the unknown name 'head_idx'; expected 'h', the query's head",
    "kv_head": "1: the unknown name 'kv_head'; expected 'kv_h', the head of k and v",
    "S": "1: the unknown name 'S'; expected 'kv_len', the number of keys",
    "T": "1: the unknown name 'T'; expected 'q_len', the number of queries or 'kv_len', the number of keys",
    "seqlen": "1: the unknown name 'seqlen'; expected 'q_len', the number of queries or 'kv_len', the number of keys",
    "pos": "1: the unknown name 'pos'; expected 'q', the position of the query or 'k', the position of the key",
    "i - j": "1: the unknown name 'i'; expected 'q', the position of the query",
    "q - n": "5: the unknown name 'n'; expected 'k', the position of the key",
    "num_heads": "1: the unknown name 'num_heads'; expected 'heads', the number of query heads",
    "attn_score": "1: the unknown name 'attn_score'; expected 'score', the scaled dot product",
    "pi * 2": "1: the unknown name 'pi'; expected '3.141592653589793'",
    "w": "1: the unknown name 'w'; expected 'W'",
    "kk": "1: the unknown name 'kk'; expected 'k'",
    "Score": "1: the unknown name 'Score'; expected 'score'",
    "scor": "1: the unknown name 'scor'; expected 'score'",
    "absolut": "1: the unknown name 'absolut'; expected 'abs'",
    "logical_and(q, k)": "1: the unknown function 'logical_and'; expected the operator '&'",
    "maximum(q, k)": "1: the unknown function 'maximum'; expected 'max'",
    "Where(q < k, 1, 2)": "1: the unknown function 'Where'; expected 'where'",
    "sigmoyd(q)": "1: the unknown function 'sigmoyd'; expected 'sigmoid'",
    "round(q / 2)": "1: the unknown function 'round'; expected 'floor(x + 0.5)'",
    "torch.where(q < k, 1, 2)": "1: 'torch.where'; expected 'where', without 'torch.'",
    "1 + jnp.exp(score)": "5: 'jnp.exp'; expected 'exp', without 'jnp.'",
    "math.log(2)": "1: 'math.log'; expected 'log', without 'math.'",
    "np.minimum(q, k)": "1: 'np.minimum'; expected 'min', without 'np.'",
    "torch.nn.functional.softplus(score)": "1: 'torch.nn.functional.softplus'; expected 'max(x, 0) + "
                                           "log1p(exp(-abs(x)))', without 'torch.nn.functional.'",
    "F.silu(score)": "1: 'F.silu'; expected 'x * sigmoid(x)', without 'F.'",
    "score * scale": "9: the unknown name 'scale'; expected 'score', the scaled dot product",
    "torch.dot(q, k)": "1: 'torch.dot'; expected 'sum(i, n, x[i] * y[i])', without 'torch.'",
    "isnan(score)": "1: the unknown function 'isnan'; expected 'x != x'",
    "xor(q < k, k < q)": "1: the unknown function 'xor'; expected the operator '^'",
    "isin(q, k)": "1: the unknown function 'isin'; expected '(x == a) | (x == b)', or of a table 'any(i, n, x == "
                  "table[i])'",
    "math.atan(score)": "1: 'math.atan'; expected another function: there is no inverse of 'sin', 'cos', 'tan' and "
                        "'tanh', without 'math.'",
    "k in (1, 2)": "3: the Python keyword 'in'; expected '(x == a) | (x == b)', or of a table 'any(i, n, x == "
                   "table[i])'",
    "any(q == k for k in q)": "12: the Python keyword 'for'; expected 'any(i, n, test)', 'all(i, n, test)' or "
                              "'sum(i, n, term)'",
    "math.pi": "1: 'math.pi'; expected '3.141592653589793', without 'math.'",
    "score.abs()": "1: 'score.abs'; expected 'abs': a plain name or number has no attributes",
    "q.shape[0]": "1: 'q.shape'; expected a plain name or number; there are no attributes",
    "q < k && k < q": "7: unexpected '&&'; expected '&' between tests in parentheses",
    "q < k || k < q": "7: unexpected '||'; expected '|' between tests in parentheses",
    "k ≤ q": "3: unexpected '≤'; expected '<='",
    "k ≥ q": "3: unexpected '≥'; expected '>='",
    "k ≠ q": "3: unexpected '≠'; expected '!='",
    "k × q": "3: unexpected '×'; expected '*'",
    "k − q": "3: unexpected '−'; expected '-'",
    "k⋅q": "2: unexpected '⋅'; expected '*'",
    "score > -∞": "10: unexpected '∞'; expected 'inf'",
    "⌊q / 2⌋": "1: unexpected '⌊'; expected 'floor(...)'",
    "k => q": "3: unexpected '=>'; expected '>='",
    "k =< q": "3: unexpected '=<'; expected '<='",
    "k <> q": "3: unexpected '<>'; expected '!='",
    "k =! q": "3: unexpected '=!'; expected '!='",
    "k ~= q": "3: unexpected '~='; expected '!='",
    "k /= q": "3: unexpected '/='; expected '!=' to compare, '/' to divide; nothing is assigned",
    "k === q": "3: unexpected '==='; expected '=='",
    "k !== q": "3: unexpected '!=='; expected '!='",
    "k >>> 2": "3: unexpected '>>>'; expected '>>'",
    "k = q": "3: unexpected '='; expected '==' to compare; arguments have no names but their order, and parts get "
             "names under 'let'",
    "clamp(q, min=1, max=2)": "13: unexpected '='; expected '==' to compare; arguments have no names but their order, "
                              "and parts get names under 'let'",
    "sum(doc[b, k])": "1: 'sum' with 1 argument; expected 3, as in 'sum(i, n, term)'",
    "clamp(q, 3)": "1: 'clamp' with 2 arguments; expected 3, as in 'clamp(x, low, high)'",
    "min(q)": "1: 'min' with 1 argument; expected 2 or more",
    "causal & (q < 5)": "1: the unknown name 'causal'; expected 'k <= q'",
    "where(mask, score, 0)": "7: the unknown name 'mask'; expected a test as the mask has it, or none: what the mask "
                             "hides never counts",
    "doc(b, k)": "1: the input 'doc' called as a function; expected 'doc[...]' with 2 indices",
    "where(k < q, score, -math.inf)": "22: 'math.inf'; expected 'inf', without 'math.'",
    "float('-inf')": "7: unexpected '''; expected a number, 'inf' or a name; there are no strings",
    "-np.Infinity": "2: 'np.Infinity'; expected 'inf', without 'np.'",
    "np.tanhh(score)": "1: 'np.tanhh'; expected one of 'tan' or 'tanh', without a module",
    "score.masked_fill(k > q, 0)": "1: 'score.masked_fill'; expected 'where(test, value, x)': a plain name or number "
                                   "has no attributes",
    "softmax(score)": "1: the unknown function 'softmax'; expected the score alone: the softmax is taken of what the "
                      "formula gives",
    "k := q": "3: unexpected ':='; expected a name under 'let'; nothing is assigned",
    "k += q": "3: unexpected '+='; expected '+'; nothing is assigned",
    "k //= q": "3: unexpected '//='; expected '//'; nothing is assigned",
    "(k < q) and= (k < 3)": "9: unexpected 'and='; expected 'and'; nothing is assigned",
    "score ^ 2": "7: '^' of a float; expected '**' for a power; '^' is exclusive or",
    "2.0 ^ k": "5: '^' of a float; expected '**' for a power; '^' is exclusive or",
    "|q - k| < 5": "1: unexpected '|'; expected a number, a name or '('; a magnitude is 'abs(...)'",
    "q ? 1 : 2": "3: unexpected '?'; expected 'a if test else b'",
    "scores[0]": "1: the unknown input 'scores' with an index; expected an input: 'doc' or 'slopes'",
    "docs[b, k]": "1: the unknown input 'docs' with an index; expected an input: 'doc'",
}  # fmt: skip


@pytest.mark.parametrize("text", MESSAGES)
def test_what_a_word_is_called_here(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        expression(text, SCOPE, Location("v.yaml", 1, 1))
    assert str(caught.value) == f"v.yaml:1:{MESSAGES[text]}"


REPLACED = {
    "softplus": ("max({x}, 0) + log1p(exp(-abs({x})))", torch.nn.functional.softplus),
    "logsigmoid": ("min({x}, 0) - log1p(exp(-abs({x})))", torch.nn.functional.logsigmoid),
    "silu": ("{x} * sigmoid({x})", torch.nn.functional.silu),
    "gelu": ("{x} * (1 + erf({x} / sqrt(2))) / 2", torch.nn.functional.gelu),
    "leaky_relu": ("max({x}, 0.01 * {x})", torch.nn.functional.leaky_relu),
    "sinh": ("(exp({x}) - exp(-{x})) / 2", torch.sinh),
    "cosh": ("(exp({x}) + exp(-{x})) / 2", torch.cosh),
}


@pytest.mark.parametrize("name", REPLACED)
def test_what_stands_for_a_function_gives_the_same(name: str) -> None:
    text, function = REPLACED[name]
    with pytest.raises(ExpressionError) as caught:
        expression(f"{name}(score)", SCOPE, Location("v.yaml", 1, 1))
    assert caught.value.expected == f"'{text.format(x='x')}'"
    node = expression(text.format(x="score"), SCOPE, Location("v.yaml", 1, 1))
    for value in (-30.0, -1.5, 0.0, 0.25, 20.0, *((200.0, -200.0) if name in ("softplus", "logsigmoid") else ())):
        expected = float(function(torch.tensor(value, dtype=torch.float64)))
        assert evaluate(node, {"score": value}, {}) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("text", ["zzz", "blocks", "xy", "QQQ", "offset"])
def test_what_is_near_nothing_gets_the_whole_list(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        expression(text, SCOPE, Location("v.yaml", 1, 1))
    assert caught.value.expected.count("'") == 2 * len([*SCOPE.names, *SCOPE.tensors])


def test_a_function_that_is_near_none_gets_all_of_them() -> None:
    with pytest.raises(ExpressionError) as caught:
        expression("bessel(q)", SCOPE, Location("v.yaml", 1, 1))
    assert all(f"'{name}'" in caught.value.expected for name in FUNCTIONS)


def test_short_words_are_near_when_one_begins_the_other() -> None:
    assert near("inf", FUNCTIONS) == near("foo", FUNCTIONS) == []
    assert near("log", ["log2", "exp"]) == ["log2"]
    assert near("k1", ["k", "q"]) == ["k"]
