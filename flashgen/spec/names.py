"""The names that a spec may give: one place for what is reserved, and why."""

from __future__ import annotations

import keyword
import re
import sys

SIZES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
POSITIONS = ("b", "h", "kv_h", "q", "k")

# The language's own words.
LANGUAGE = frozenset({
    "score", *POSITIONS, *SIZES, "v_head_dim",
    "abs", "min", "max", "clamp", "where", "exp", "exp2", "log", "log2", "tanh", "sqrt", "sigmoid", "floor", "inf",
})  # fmt: skip

# Arguments that attention() has in every variant.
ARGUMENTS = frozenset({"q", "k", "v", "scale", "return_lse", "plan", "config", "backward_config", "deterministic"})

# Names that a generated module uses itself: its imports, its constants, what its host code names and calls.
GENERATED = frozenset({
    "tl", "triton", "torch", "math", "runtime", "attention", "reference", "out", "acc", "lse",
    "BM", "BN", "HEAD_DIM", "V_HEAD_DIM", "CHUNK", "STAGES", "TILE", "PRECISE", "LOG2E", "IDENTITY", "CONFIGS",
    "OPERATOR", "BACKWARD_Q", "BACKWARD_KV", "FUSE_DQ", "d_out", "d_lse", "dq", "dk", "dv", "dq_sums", "needs",
    "needs_q", "needs_k", "needs_v", "fuse_dq", "kv_config", "q_config", "incoming", "by_key", "learned", "at_once",
    "first_head", "input_sums", "LEARNED", "parts", "backward", "key_plan", "key_counts", "key_tiles",
    "gl", "gluon", "mbarrier", "tma", "tma_add", "tma_load", "tma_store", "fence_async_shared", "reinterpret",
    "warpgroup_mma", "warpgroup_mma_wait", "CONSUMER", "CONSUMERS", "MAIN", "OUT_WIDTH", "PING_PONG", "PRODUCTS",
    "Q_SLOTS", "REST", "ROWS", "SPLIT", "V_MAIN", "V_REST", "V_WIDTH", "WIDTH",
    "qk", "q_first", "q_last", "k_first", "k_last",
    "call", "sizes", "counts", "tiles", "grid", "shape", "states", "chunk", "q_tiles", "kv_tiles", "formula",
    "bool", "dict", "float", "int", "isinstance", "len", "list", "print", "range", "str", "tuple", "type",
})  # fmt: skip

MAX_LENGTH = 64
_MODULE = re.compile(rf"[a-z][a-z0-9_]{{0,{MAX_LENGTH - 1}}}")
_NAME = re.compile(rf"[A-Za-z][A-Za-z0-9_]{{0,{MAX_LENGTH - 1}}}")
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


def name_problem(name: str) -> str | None:
    """What the name of a param, input, let or dimension would have to be, or None where it is good."""
    if not _NAME.fullmatch(name):
        return f"a letter, then letters, digits and underscores, at most {MAX_LENGTH} in all"
    if keyword.iskeyword(name):
        return "a name that is not a Python keyword"
    if name in LANGUAGE:
        return "a name that is not a word of the expression language"
    if name in ARGUMENTS:
        return "a name that is not already an argument of attention()"
    if name in GENERATED or name.endswith("_ptr") or name.startswith("stride_"):
        return "a name that the generated module does not use itself"
    return None
