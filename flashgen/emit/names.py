"""The names in a kernel: which it uses itself, what the spec's names become, and what new values are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flashgen.analysis.levels import ONCE, ROW, Level, is_reduction, level
from flashgen.lang.nodes import Const, Expr, Gather, Index, Op, Reduction, Var
from flashgen.lang.traversal import variables

# The first and the last query of the tile at hand where the loop walks along queries, and the head of each row where
# heads share a tile: the kernel calls them as it does elsewhere.
SPELLED: Mapping[str, str] = {"q_start": "q_first", "q_end": "q_last", "row_h": "h"}

QK_SCALE = "qk_scale"
# What values without a telling name are called: one number, one a row, one a pair.
_PLAIN: dict[Level, str] = {ONCE: "c", ROW: "r"}
_OF_PAIRS = "t"
_OF_REDUCTIONS = {"any": "found", "all": "holds", "sum": "total"}
# The names that the emitter itself gives, which templates leave to it.
EMITTED = frozenset({QK_SCALE, _OF_PAIRS, *_PLAIN.values(), *_OF_REDUCTIONS.values()})


def suggest(expr: Expr, lets: Sequence[tuple[str, Expr]]) -> str:
    """A telling name for a value."""
    for name, meaning in lets:
        if meaning is expr:
            return name
    if isinstance(expr, Var):
        return SPELLED.get(expr.name, expr.name)
    if isinstance(expr, Gather):
        if not expr.indices:
            return expr.input
        names = [SPELLED.get(i.name, i.name) for i in expr.indices if isinstance(i, Var)]
        names += [i.word for i in expr.indices if isinstance(i, Index)]
        return f"{expr.input}_{'_'.join(names) or 'at'}"
    if isinstance(expr, Reduction):
        return _OF_REDUCTIONS[expr.name]
    if isinstance(expr, Op):
        inner = expr.args[0]
        if is_reduction(expr):
            return f"{suggest(inner, lets)}_{expr.name.removeprefix('tile_')}"
        if expr.name == "reciprocal_of":
            return f"{suggest(inner, lets).rstrip('_')}_reciprocal"
        if expr.name == "to_float":
            return f"{suggest(inner, lets)}_f"
        if expr.name == "mul" and "scale" in variables(inner) and isinstance(expr.args[1], Const):
            return QK_SCALE
        if expr.name in ("mul", "truediv") and isinstance(inner, Gather | Var):
            return f"{suggest(inner, lets)}_scaled"
    return _PLAIN.get(level(expr), _OF_PAIRS)


@dataclass
class Statements:
    """Assignments under way. `names` maps what is at hand to its name, `defines` has those that the assignments made,
    `reads` those that they read from outside, `taken` those that they may not make.
    """

    taken: set[str]
    reads: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    defines: list[str] = field(default_factory=list)
    names: dict[Expr | str, str] = field(default_factory=dict)

    def assign(self, value: Expr | str, preferred: str, text: str, kind: str = "") -> str:
        """Assign the text of a value, an expression or the text itself, to a new name like `preferred`.

        `kind` annotates the name, such as what is known when the kernel is compiled.
        """
        name = self.new(value, preferred)
        self.lines.append(f"{name}{': ' if kind else ''}{kind} = {text}")
        return name

    def new(self, value: Expr | str, preferred: str) -> str:
        """A new name like `preferred` for a value that other statements give it."""
        name, number = preferred, 2
        while name in self.taken or name in self.reads:
            name, number = f"{preferred}_{number}", number + 1
        self.taken.add(name)
        self.names[value] = name
        self.defines.append(name)
        return name

    def block(self) -> Statements:
        """Statements of a block among these: its names and theirs are never the same, and it reads what they read."""
        return Statements(self.taken, self.reads, defines=self.defines)
