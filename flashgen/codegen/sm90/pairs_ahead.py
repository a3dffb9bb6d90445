"""What the Hopper forward kernel reads for each pair in rows, such as a bias [heads, q_len, kv_len].

A full tile is loaded one tile ahead, four keys of a row at once: threads that read their own pairs, two side by side,
wait in each step for as long as memory takes. The kernel for dQ, which has one more tile of products, has no registers
for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.analysis.rows_of_pairs import rows_of_pairs
from flashgen.codegen.pairs import Function, Given, bytes_read, named_apart, pairs
from flashgen.emit.fragments import Load
from flashgen.emit.prologue import Prologue

# What a thread has registers for.
_MOST_BYTES = 4


@dataclass(frozen=True)
class PairsAhead:
    """Statements for the rows at positions `queries`, in front of the loop; `loads` of a full tile at positions
    `keys_ahead`; and `score`, which takes what they find.
    """

    rows: tuple[str, ...]
    loads: tuple[Load, ...]
    score: Function

    @property
    def score_call(self) -> str:
        return self.score.call_with({load.name: load.value for load in self.loads})


def pairs_ahead_of(
    facts: Facts, score: Function | None, prologue: Prologue, given: Given, known: Sequence[Function]
) -> PairsAhead | None:
    """Work it out; None where nothing is read so, or too much. `score` is the function that loads all that is not
    `given`, by addresses that `prologue` has in front of the loop; `known` are functions of other kernels."""
    reads = rows_of_pairs(facts)
    if score is None or not 0 < bytes_read(facts.variant, reads) <= _MOST_BYTES:
        return None
    rows = prologue.fork(spelled={"q": "queries", "k": "keys_ahead"})
    loads = tuple(rows.load_ahead(read, "qk_layout") for read in reads)
    ahead: Given = {read: load.name for read, load in zip(reads, loads, strict=True)}
    of_loaded = pairs(facts, prologue, {**given, **ahead}, apart=True).score
    assert of_loaded is not None
    of_loaded = named_apart(of_loaded, (*known, score), "_of_loaded", "_of_loaded_by_query")
    return PairsAhead(rows.lines, loads, of_loaded)
