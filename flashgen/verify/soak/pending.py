"""What the language is to have and flashgen has not yet: the soak leaves it out."""

from __future__ import annotations

# "functions": sin, cos, tan, erf.
PENDING = frozenset({"functions"})
