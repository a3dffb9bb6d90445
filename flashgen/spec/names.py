"""The names that a spec may give: one place for what is reserved, and why."""

from __future__ import annotations

import keyword
import re
import sys

from flashgen.lang.vocabulary import FUNCTIONS, LITERALS, WORD_OPERATORS

SIZES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
POSITIONS = ("b", "h", "kv_h", "q", "k")

# The language's own words.
LANGUAGE = frozenset({"score", *LITERALS, *WORD_OPERATORS, *POSITIONS, *SIZES, "v_head_dim", *FUNCTIONS})

# Arguments that attention() has in every variant, and those of packed sequences.
_DENSE = frozenset({
    "q", "k", "v", "scale", "return_lse", "return_max", "plan", "config", "backward_config", "deterministic",
})  # fmt: skip
_PACKED = frozenset({"cu_seqlens_q", "max_seqlen_q", "max_seqlen_k"})
# By the function of a generated module that has them.
ARGUMENTS = {
    "attention": _DENSE,
    "attention_varlen": _DENSE | _PACKED | {"cu_seqlens_k"},
    "attention_paged": _DENSE | _PACKED | {
        "k_cache", "v_cache", "block_table", "seq_lens", "k_scale", "v_scale", "out", "batch_invariant",
    },
}  # fmt: skip
# And those that attention() has, or reference(), where the spec says dropout.
OF_DROPOUT = frozenset({"dropout_p", "dropout_seed", "dropout_mask"})

MAX_LENGTH = 64
MODULE_NAME = rf"[a-z][a-z0-9_]{{0,{MAX_LENGTH - 1}}}"
_MODULE = re.compile(MODULE_NAME)
_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{MAX_LENGTH - 1}}}")
_MODULES_IN_USE = frozenset({"flashgen", "numpy", "torch", "triton"})


def module_problem(name: str) -> str | None:
    """What a variant's name would have to be, or None where it can name a Python module as it is."""
    if not _MODULE.fullmatch(name):
        return f"a lower-case letter, then lower-case letters, digits and underscores, at most {MAX_LENGTH} in all"
    if keyword.iskeyword(name):
        return "a name that is not a Python keyword"
    if name in _MODULES_IN_USE or name in sys.stdlib_module_names:
        return "a name that is not already a Python module's"
    return None


def name_problem(name: str, is_argument: bool = True, dropout: bool = False) -> str | None:
    """What the name of a param, input, let or dimension would have to be, or None where it is good.

    Keywords of Python are names like others: generated code has other names for them. `is_argument`: callers pass it to
    attention(), as inputs and runtime params are. `dropout`: the spec says dropout.
    """
    if not _NAME.fullmatch(name):
        return f"letters from a to z, digits and underscores, no digit first, at most {MAX_LENGTH} in all"
    if name in LANGUAGE:
        return "a name that is not a word of the expression language"
    if is_argument and (name in ARGUMENTS["attention"] or (dropout and name in OF_DROPOUT)):
        return "a name that is not already an argument of attention()"
    return None
