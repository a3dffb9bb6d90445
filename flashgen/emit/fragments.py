"""Emitted code as a value, which nobody has to read to know what is in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fragment:
    """Statements and the values that they lead to.

    `reads` are the names that both take from outside, in their order, `q` and `k` included; `defines` those that the
    statements make. Functions that they call are in neither: a file imports those by its text.
    """

    lines: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()

    @property
    def result(self) -> str:
        """The values as one expression, a tuple where they are several."""
        return ", ".join(self.results)


@dataclass(frozen=True)
class Load:
    """A load for each pair that a kernel makes itself: the `name` for what it finds in the rows that begin at the
    addresses `rows`, and the `value` by it.
    """

    name: str
    rows: str
    value: str
