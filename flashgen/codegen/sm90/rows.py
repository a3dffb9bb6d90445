"""The mask of a tile in the Hopper kernels for dK and dV: for each key an interval of rows, and what else there is.

The first and the last row that see a key are worked out in front of the loop. A mixed tile compares the places of its
rows with them, which takes one instruction a pair for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import ROW, level
from flashgen.codegen.limits import clipped
from flashgen.codegen.pairs import Function, named_apart
from flashgen.emit.fragments import Fragment
from flashgen.emit.prologue import Prologue
from flashgen.lang.bounds import KeyRange
from flashgen.lang.nodes import TRUE, Expr, Gather
from flashgen.lang.show import show
from flashgen.lang.traversal import indices, walk
from flashgen.lang.variables import Q

# What asks whether a row exists, by its place in the tile or by its number.
_BY_PLACE = Fragment(results=("rows_to(q_len - 1 - start, BM, row_layout)",), reads=("start",))
_BY_NUMBER = Fragment(results=("(rows < q_len)[None, :]",))
_EXISTS = "(cols < kv_len)[:, None]"


@dataclass(frozen=True)
class SeenRows:
    """What a mixed tile keeps: `shown`, which calls `rest` for the part of the mask that is no interval of rows.

    `lines` are statements in front of the loop. `loads` are those of a mixed tile that load, by the names `loaded`,
    what `rest` reads of each row alone, at the positions `queries`. `by_place`: rows are
    compared by their places in the tile. `reads` are the names that `loads` read.
    """

    lines: tuple[str, ...]
    rest: Function | None
    shown: str
    loads: tuple[str, ...]
    loaded: tuple[str, ...]
    by_place: bool
    reads: frozenset[str]


def seen_rows_of(facts: Facts, score: Function | None, prologue: Prologue, known: Sequence[Function]) -> SeenRows:
    """Work it out from the queries that see a key; what it needs in front of the loop goes to `prologue`.

    `known` are functions of other kernels. A tile with a `score` hides rows beyond the last too, though their
    log-sum-exp is infinite.
    """
    variant, rows = facts.variant, facts.rows
    rest = rows.residual
    ahead = _row_loads(rest)
    end = _BY_PLACE
    if (score and "q" in score.body.reads) or any(node is Q for node in walk(rest, to=ahead)):
        # A tile that needs the positions of its rows anyhow compares these, and reads by them.
        rows, rest, ahead, end = KeyRange(), variant.mask, [], _BY_NUMBER
    bounds = _bounds(rows.lower_bound, rows.upper_bound, prologue, end if score else None)
    if rest is TRUE:
        shown = " & ".join(bounds.results)
        return SeenRows(bounds.lines, None, shown, (), (), "start" in bounds.reads, frozenset())
    # What it reads of the keys comes first: that is at hand in all steps.
    prologue.body(rest)
    loads = prologue.fork(spelled={"q": "queries"})
    given = {n: loads.name(n) for n in ahead}
    function = Function("_visible", prologue.body(rest, given=given), f"{show(rest, variant.lets)}.")
    function = named_apart(function, known, "_by_key", "_by_key_sm90")
    return SeenRows(
        lines=bounds.lines,
        rest=function,
        shown=" & ".join((function.call, *bounds.results)),
        loads=loads.lines,
        loaded=tuple(name for name in given.values() if name in function.body.reads),
        by_place="start" in bounds.reads,
        reads=frozenset(loads.reads) if given else frozenset(),
    )


def _row_loads(expr: Expr) -> list[Expr]:
    return [node for node in walk(expr) if isinstance(node, Gather) and level(node) == ROW and not indices(node)]


def _bounds(lower: Expr | None, upper: Expr | None, prologue: Prologue, end: Fragment | None) -> Fragment:
    """Statements for the first and last row that see a key, as far as there are any, and the comparisons with them.

    `end` is the comparison with the last row that there is, None where a tile need not ask. Rows are clipped, so that
    what is compared with the place in a tile fits int32; a key beyond the last has none.
    """
    lines, tests = list[str](), list[str]()
    if lower is not None:
        first = clipped(prologue.inline(lower), lower, prologue)
        lines.append(f"seen_from = gl.where({_EXISTS}, gl.maximum({first}, 0), 1 << 30)")
        tests.append("rows_from(seen_from - start, BM, row_layout)")
    if upper is not None:
        last = f"gl.maximum({clipped(prologue.inline(upper), upper, prologue)}, -1)"
        last = f"gl.minimum({last}, q_len - 1)" if end else last
        lines.append(f"seen_to = {last if lines else f'gl.where({_EXISTS}, {last}, -1)'}")
        tests.append("rows_to(seen_to - start, BM, row_layout)")
    elif end:
        tests += end.results
    reads = ("start",) if lines else end.reads if end else ()
    if lines:
        lines.insert(0, "# The rows that see each key, as far as these are one interval.")
    else:
        tests.insert(0, _EXISTS)
    return Fragment(tuple(lines), tuple(tests), reads)
