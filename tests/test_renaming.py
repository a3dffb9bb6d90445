"""Names of a module's own are changed wherever they mean that, and nowhere else."""

from __future__ import annotations

import pytest

from flashgen.renaming import renamed

TEXT = """
_a: int = 1
def _f(x):
    "says _a and _f"
    return x._a + _a + len("é") + _a  # _f
class _C:
    a = _f(_a)
_last = _f(_C.a)
"""


def test_all_else_stays_as_it_is() -> None:
    found = renamed(TEXT, {"_a": "_a_of_mine", "_f": "_g", "_C": "_D"})
    assert (
        found
        == """
_a_of_mine: int = 1
def _g(x):
    "says _a and _f"
    return x._a + _a_of_mine + len("é") + _a_of_mine  # _f
class _D:
    a = _g(_a_of_mine)
_last = _g(_D.a)
"""
    )


@pytest.mark.parametrize(
    "text",
    ["_a = 1\ndef f(_a):\n    return _a\n", "_a = 1\ndef f():\n    _a = 2\n", "_a = 1\nf = lambda _a: _a\n",
     "_a = 1\nf'{_a}'\n", "_a = 1\ndef f():\n    global _a\n"],
)  # fmt: skip
def test_what_it_cannot_tell_apart_is_refused(text: str) -> None:
    with pytest.raises(AssertionError, match="_a is also the name of something else"):
        renamed(text, {"_a": "_b"})
