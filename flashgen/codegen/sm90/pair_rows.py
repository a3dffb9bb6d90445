"""What Hopper kernels read for each pair in rows, such as a bias [heads, q_len, kv_len].

Threads that read their own pairs wait in each step for as long as memory takes: they have two keys of a row, or one, as
tiles of dK and dV are transposed. So a tile is loaded first, several keys of a row at once, and then handed to the
threads that have its pairs. The kernel for dQ, which has one more tile of products, has no registers for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from flashgen.analysis.facts import Facts
from flashgen.analysis.rows_of_pairs import rows_of_pairs
from flashgen.codegen.pairs import Given, bytes_read
from flashgen.emit.fragments import Load
from flashgen.emit.prologue import Prologue

# What a thread has registers for: of most tiles, and of those of 128 queries by key.
_MOST_BYTES, _BYTES_FOR_128 = 4, 2


@dataclass(frozen=True)
class PairRows:
    """`lines`: statements for the rows at positions `queries`; `loads`: those of a tile; `given`: their names for what
    they find.

    `many_bytes`: tiles of 128 queries by key leave no registers for them.
    """

    lines: tuple[str, ...]
    loads: tuple[Load, ...]
    given: Given
    many_bytes: bool

    @cached_property
    def values(self) -> Mapping[str, str]:
        """What a function of the pairs takes for each name."""
        return {load.name: load.value for load in self.loads}


def pair_rows_of(facts: Facts, prologue: Prologue, layout: str) -> PairRows | None:
    """Work it out for scores in this `layout`; None where nothing is read so, or too much.

    What holds for the whole program goes to `prologue`.
    """
    reads = rows_of_pairs(facts)
    bytes_of_pair = bytes_read(facts.variant, reads)
    if not 0 < bytes_of_pair <= _MOST_BYTES:
        return None
    for read in reads:
        prologue.name_base(read)
    rows = prologue.fork(spelled={"q": "queries"})
    loads = tuple(rows.load_of_rows(read, layout) for read in reads)
    given: Given = {read: load.name for read, load in zip(reads, loads, strict=True)}
    return PairRows(rows.lines, loads, given, many_bytes=bytes_of_pair > _BYTES_FOR_128)
