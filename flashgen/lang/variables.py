"""The variables that passes over expressions know by name, each as its node."""

from __future__ import annotations

from flashgen.lang.nodes import Expr, Type, const, op, var
from flashgen.lang.traversal import variables


def _integer(name: str) -> Expr:
    return var(name, Type.INT)


# A pair of a query and a key: its score, which is the dot product `qk` times the scale, and where it stands.
SCORE, QK, SCALE = (var(name, Type.FLOAT) for name in ("score", "qk", "scale"))
B, H, KV_H, Q, K = map(_integer, ("b", "h", "kv_h", "q", "k"))
BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN = map(_integer, ("batch", "heads", "kv_heads", "q_len", "kv_len"))
LAST_KEY = op("sub", KV_LEN, const(1))

# The first and last positions of a kernel's tile: of its queries, of its keys, and of the queries at hand where its
# loop walks along these.
Q_FIRST, Q_LAST, K_FIRST, K_LAST, Q_START, Q_END = map(
    _integer, ("q_first", "q_last", "k_first", "k_last", "q_start", "q_end")
)
# The head of each row, where heads share a tile.
ROW_H = _integer("row_h")

# Of packed sequences: where one begins among all queries and among all keys, and how many of these there are.
BEGIN_Q, BEGIN_K, TOTAL_Q, TOTAL_K = map(_integer, ("begin_q", "begin_k", "total_q", "total_k"))

_OF_PAIRS = frozenset({"q", "k", "qk", "score"})


def is_uniform(expr: Expr) -> bool:
    """Whether the value is one number for a whole tile: free of q, k and the scores."""
    return not variables(expr) & _OF_PAIRS
