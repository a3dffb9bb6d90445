"""What the Hopper kernels for dK and dV read for each pair in rows, such as a bias [heads, q_len, kv_len].

Their tiles are transposed: a thread has pairs of few keys and many queries, which lie far from each other in memory. So
a full tile is loaded first, several keys of a row at once, and then handed to the threads that have its pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.analysis.rows_of_pairs import rows_of_pairs
from flashgen.codegen.backward import score_function
from flashgen.codegen.pairs import Function, Given, bytes_read, named_apart
from flashgen.emit.dialects import GLUON_PAIRS
from flashgen.emit.prologue import Prologue
from flashgen.lang.variables import Q_START

# What a thread has registers for: of tiles of 64 queries, and of 128.
_MOST_BYTES, _BYTES_FOR_128 = 4, 2


@dataclass(frozen=True)
class PairTiles:
    """Statements that load a full tile's pairs, at positions `queries` and `keys`, and `score`, which takes them.

    `many_bytes`: tiles of 128 queries leave no registers for them.
    """

    lines: tuple[str, ...]
    score: Function
    many_bytes: bool


def pair_tiles_of(
    facts: Facts, score: Function | None, prologue: Prologue, known: Sequence[Function]
) -> PairTiles | None:
    """Work it out; None where nothing is read so, or too much. `score` is the function that loads by itself, whose
    addresses `prologue` has in front of the loop; `known` are functions of other kernels."""
    reads = rows_of_pairs(facts)
    bytes_of_pair = bytes_read(facts.variant, reads)
    if score is None or not 0 < bytes_of_pair <= _MOST_BYTES:
        return None
    loads = prologue.fork(spelled={"q": "queries", "k": "keys"}, dialect=GLUON_PAIRS)
    given: Given = {read: loads.name(read) for read in reads}
    of_loaded, _, _ = score_function(facts, prologue, Q_START, given)
    assert of_loaded is not None
    of_loaded = named_apart(of_loaded, (*known, score), "_of_loaded", "_of_loaded_by_key")
    return PairTiles(loads.lines, of_loaded, many_bytes=bytes_of_pair > _BYTES_FOR_128)
