"""The variants that layers ask for: each has a name of its own, by which it is found again."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

pytest.importorskip("transformers", minversion="5.17")

from flashgen.integrations.variants import spec_of

FORMS = ("full", "causal", "rows", "rows_and_keys", "matrix", "matrices")
SOFTCAPS = (None, 0.5, 5.0, 30.0, 50.0)
ADDED = ((), ("b",), ("h",), ("bh",), ("b", "h"), ("h", "b"))


def test_what_is_computed_otherwise_has_another_name() -> None:
    """A model would be given the attention of another one, whose softcap, say, is not its own."""
    known: dict[str, dict[str, Any]] = {}
    for asked in product(FORMS, SOFTCAPS, (False, True), ADDED, (False, True), (False, True)):
        spec = spec_of(*asked)
        assert known.setdefault(spec["name"], spec) == spec, asked
    assert len(known) == len(FORMS) * len(SOFTCAPS) * len(ADDED) * 8
