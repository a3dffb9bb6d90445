"""The words of the language, and what those of PyTorch, NumPy and FlexAttention are called in it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from flashgen.lang.nodes import FLOAT_FUNCTIONS

# Those that go over a short axis: a new name, how many values it takes from 0 on, and a term.
REDUCTIONS = frozenset({"any", "all", "sum"})
FUNCTIONS = FLOAT_FUNCTIONS | REDUCTIONS | {"abs", "min", "max", "clamp", "where", "floor", "ceil", "sign", "log1p"}
WORD_OPERATORS = ("and", "or", "not", "if", "else")
LITERALS: Mapping[str, float] = {"True": True, "False": False, "true": True, "false": False, "inf": math.inf}

MEANINGS: Mapping[str, str] = {
    "score": "the scaled dot product",
    "b": "the index of the sequence in its batch",
    "h": "the query's head",
    "kv_h": "the head of k and v",
    "q": "the position of the query",
    "k": "the position of the key",
    "batch": "the number of sequences",
    "heads": "the number of query heads",
    "kv_heads": "the number of heads of k and v",
    "q_len": "the number of queries",
    "kv_len": "the number of keys",
    "head_dim": "the size of a head",
}

# Those whose value differs from pair to pair of one call, unlike sizes and params.
VARYING = frozenset({"b", "h", "kv_h", "q", "k", "score"})
# Those that differ from sequence to sequence where these are packed.
PER_SEQUENCE = frozenset({"q_len", "kv_len"})

# What others call them, by what they are here.
_ALSO: Mapping[tuple[str, ...], str] = {
    ("q",): "q_idx q_index q_pos q_i qi query_idx query_pos query_index query row i m m_idx offs_m q_positions",
    ("k",): "kv_idx k_idx kv_index k_index kv_pos k_pos kv_i ki key_idx key_pos key_index key col j n n_idx offs_n kv "
            "k_positions kv_positions",
    ("q", "k"): "pos position positions idx index t pos_ids position_ids",
    ("b",): "b_idx batch_idx batch_index bi b_i z off_z seq seq_idx",
    ("h",): "h_idx head_idx head_index head hi q_head query_head off_h hq",
    ("kv_h",): "kv_head kv_head_idx k_head h_kv hk kv_h_idx head_kv",
    ("q_len",): "Q_LEN Lq Tq M q_length query_len query_length seqlen_q tgt_len target_len q_seqlen num_queries L",
    ("kv_len",): "KV_LEN Lk Tk S kv_length k_len k_length key_len key_length seqlen_k src_len source_len kv_seqlen "
                 "num_keys klen",
    ("q_len", "kv_len"): "T N seqlen seq_len seq_length sequence_length length max_len max_length context_length",
    ("heads",): "H Hq num_heads n_heads n_head nheads nhead num_attention_heads num_q_heads",
    ("kv_heads",): "Hkv Hk num_kv_heads n_kv_heads n_kv_head num_key_value_heads",
    ("batch",): "B Z bsz batch_size nbatch num_seqs",
    ("head_dim",): "D d_head head_size dim d_k headdim",
    ("score",): "scores s qk attn attn_score attn_scores att logit logits sim similarity dots attn_weight "
                "attention_score scale sm_scale softmax_scale",
}  # fmt: skip
_NAMES = {foreign: own for own, words in _ALSO.items() for foreign in words.split()}

_OPERATORS = {
    "&": "logical_and bitwise_and and_ and_masks all_of", "|": "logical_or bitwise_or or_ or_masks any_of",
    "^": "logical_xor bitwise_xor xor", "~": "logical_not bitwise_not invert not_",
    "+": "add plus", "-": "sub subtract minus", "*": "mul multiply times", "/": "div divide true_divide truediv",
    "//": "floor_divide floordiv cdiv idiv", "%": "remainder fmod mod modulo", "**": "pow power",
    "==": "eq equal", "!=": "ne not_equal", "<": "lt less", "<=": "le less_equal", ">": "gt greater",
    ">=": "ge greater_equal", "<<": "left_shift bitwise_left_shift", ">>": "right_shift bitwise_right_shift",
}  # fmt: skip
_CALLS: Mapping[str, str] = {
    **{name: f"the operator '{symbol}'" for symbol, words in _OPERATORS.items() for name in words.split()},
    **dict.fromkeys(("maximum", "fmax", "amax"), "'max'"),
    **dict.fromkeys(("minimum", "fmin", "amin"), "'min'"),
    **dict.fromkeys(("absolute", "fabs"), "'abs'"),
    **dict.fromkeys(("clip", "clamp_min", "clamp_max", "clip_by_value"), "'clamp'"),
    **dict.fromkeys(("select", "cond", "iff", "ifelse", "if_else"), "'where'"),
    "expit": "'sigmoid'",
    "ln": "'log'",
    "neg": "the operator '-'",
    "negative": "the operator '-'",
    "square": "'x ** 2'",
    "rsqrt": "'1 / sqrt(x)'",
    "reciprocal": "'1 / x'",
    "expm1": "'exp(x) - 1'",
    "log10": "'log(x) / log(10)'",
    # Of a large x exp is infinite in float32.
    "softplus": "'max(x, 0) + log1p(exp(-abs(x)))'",
    **dict.fromkeys(("logsigmoid", "log_sigmoid"), "'min(x, 0) - log1p(exp(-abs(x)))'"),
    **dict.fromkeys(("silu", "swish"), "'x * sigmoid(x)'"),
    "gelu": "'x * (1 + erf(x / sqrt(2))) / 2'",
    "leaky_relu": "'max(x, 0.01 * x)'",
    "sinh": "'(exp(x) - exp(-x)) / 2'",
    "cosh": "'(exp(x) + exp(-x)) / 2'",
    **dict.fromkeys(
        ("atan", "atan2", "arctan", "arctan2", "asin", "arcsin", "acos", "arccos", "atanh", "arctanh"),
        "another function: there is no inverse of 'sin', 'cos', 'tan' and 'tanh'",
    ),
    "mean": "'sum(i, n, term) / n'",
    **dict.fromkeys(("dot", "matmul", "inner", "einsum", "vdot"), "'sum(i, n, x[i] * y[i])'"),
    "isnan": "'x != x'",
    "isinf": "'abs(x) == inf'",
    "isfinite": "'abs(x) < inf'",
    "isin": "'(x == a) | (x == b)', or of a table 'any(i, n, x == table[i])'",
    "relu": "'max(x, 0)'",
    "round": "'floor(x + 0.5)'",
    "trunc": "'floor(x)' for x >= 0",
    "int": "'floor(x)'",
    "long": "'floor(x)'",
    "float": "'x' itself: numbers are promoted",
    "bool": "a comparison, such as 'x != 0'",
    "len": "a size, such as 'kv_len'",
    "masked_fill": "'where(test, value, x)'",
    **dict.fromkeys(("softmax", "log_softmax"), "the score alone: the softmax is taken of what the formula gives"),
}
# What to write instead of keywords of Python that the language does not have.
_KEYWORDS: Mapping[str, str] = {
    "in": "'(x == a) | (x == b)', or of a table 'any(i, n, x == table[i])'",
    "is": "'=='",
    "for": "'any(i, n, test)', 'all(i, n, test)' or 'sum(i, n, term)'",
}
_CONSTANTS: Mapping[str, str] = {
    "pi": "'3.141592653589793'",
    "e": "'2.718281828459045'",
    "causal": "'k <= q'",
    "mask": "a test as the mask has it, or none: what the mask hides never counts",
    "softcap": "a number, or a name under 'params'",
    **dict.fromkeys(("infinity", "Infinity", "Inf", "INF", "PINF"), "'inf'"),
}
_MODULES = frozenset({
    "torch", "np", "numpy", "jnp", "jax", "math", "tl", "triton", "F", "nn", "tf", "lax", "scipy", "special",
    "operator",
})  # fmt: skip
_LEAST_LIKENESS = 0.75


def expected_name(name: str, known: Collection[str], functions: Iterable[str]) -> str:
    """What to write instead of a name that is not known: what it is called here, one that is near, or what there is."""
    own = meant_by(name, known)
    if own:
        return " or ".join(f"'{word}', {MEANINGS[word]}" for word in own)
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name in _CALLS:
        return _CALLS[name]
    return listed(near(name, known) or near(name, functions) or known) or "a number, or a name under 'params'"


def meant_by(name: str, known: Collection[str]) -> list[str]:
    """Which of the known names others call so; none where it is a name of one's own."""
    return [word for word in _NAMES.get(name, ()) if word in known]


def python_keyword(name: str) -> tuple[str, str]:
    """What is found where a keyword of Python stands and names nothing, and what to write instead."""
    instead = _KEYWORDS.get(name, f"a name, a number, or one of {', '.join(WORD_OPERATORS)}")
    return f"the Python keyword '{name}'", instead


def expected_function(name: str, functions: Iterable[str]) -> str:
    """What to write instead of the name of a function that is not known."""
    functions = sorted(functions)
    return _CALLS.get(name) or listed(near(name, functions)) or listed(functions)


def expected_attribute(path: Sequence[str]) -> str:
    """What to write instead of `torch.where` or `score.abs`, from its names."""
    *owners, name = path
    is_own = name in FUNCTIONS or name in LITERALS
    own = f"'{name}'" if is_own else _CALLS.get(name) or _CONSTANTS.get(name) or ""
    if owners[0] in _MODULES:
        words = listed(near(name, sorted(FUNCTIONS)) or sorted(FUNCTIONS))
        return f"{own}, without '{'.'.join(owners)}.'" if own else f"one of {words}, without a module"
    if own and name not in _CONSTANTS and name not in LITERALS:
        return f"{own}: a plain name or number has no attributes"
    return "a plain name or number; there are no attributes"


def near(name: str, known: Iterable[str]) -> list[str]:
    """The names that a person may have meant: in another case, with a letter more or less, begun alike."""
    found = {word: _likeness(name.lower(), word.lower()) for word in known}
    likely = [word for word, likeness in found.items() if likeness >= _LEAST_LIKENESS]
    return sorted(likely, key=lambda word: -found[word])[:3]


def _likeness(one: str, two: str) -> float:
    if one == two:
        return 1.0
    shorter, longer = sorted((one, two), key=len)
    if longer.startswith(shorter) and (len(shorter) > 2 or len(longer) == len(shorter) + 1):
        return 0.9
    # Of three letters or fewer, others in their place make another word.
    return SequenceMatcher(None, one, two).ratio() if len(shorter) > 3 else 0.0


def listed(words: Iterable[str]) -> str:
    """Words in quotes, as people list them; empty for none."""
    quoted = [f"'{word}'" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}" if quoted else ""
