"""Where a variant reads its inputs, and whether that depends on the number of queries."""

from __future__ import annotations

from collections.abc import Iterable

from flashgen.analysis.facts import Facts
from flashgen.lang.fold import fold
from flashgen.lang.nodes import Gather, const, op
from flashgen.lang.traversal import substitute, variables
from flashgen.lang.variables import KV_LEN, Q_LEN, K, Q


def counts_queries(facts: Facts, reads: Iterable[Gather]) -> bool:
    """Whether the place of one of them depends on the number of queries, as that of `t[h]` of shape [q_len] does, which
    is kept inside."""
    return any(_counts_queries(facts, read, axis) for read in reads for axis in range(len(read.indices)))


def counts_queries_for_first_pair(facts: Facts) -> bool:
    """Whether what the first query and the first key read is at places that depend on the number of queries."""
    first = {Q: op("sub", KV_LEN, Q_LEN) if facts.bottom_right else const(0), K: const(0)}
    return any(
        _counts_queries(facts, read, axis)
        for read in facts.gathers
        for axis, index in enumerate(read.indices)
        if fold(substitute(index, first)) is not const(0)
    )


def _counts_queries(facts: Facts, read: Gather, axis: int) -> bool:
    return "q_len" in variables(facts.ranges.kept_inside(read, axis, facts.sizes_of(read)[axis]))
