"""What the language is to have and flashgen has not yet: the soak leaves it out."""

from __future__ import annotations

# "batch": that size in expressions; "functions": sin, cos, tan, erf; "huge params": -1e30 as a runtime param that a
# score is set to or grows by: it counts as moderate, and gradients of rows with nothing else come out too large.
PENDING = frozenset({"batch", "functions", "huge params"})
