"""Writing one expression: which parts stand in its text, and which are computed before it and read by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flashgen.analysis.levels import COL, LONGEST, Level, is_reduction, level
from flashgen.analysis.packed import BATCH, PACKED, along_batch
from flashgen.emit.dialects import TRITON, Dialect
from flashgen.emit.names import IS_PACKED, Statements, suggest
from flashgen.emit.operators import Operators
from flashgen.lang.extrema import without_negated_operands
from flashgen.lang.infix import Text, binary
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Const, Expr, Gather, Op, Var, const, long_parts, walk
from flashgen.lang.parse import BINDING

_HAS_CU_SEQLENS = "cu_seqlens_q_ptr is not None"
_LOADED_AS = {
    **dict.fromkeys(("int8", "uint8", "int16"), "int32"),
    **dict.fromkeys(("float16", "bfloat16"), "float32"),
}


@dataclass(frozen=True)
class Tensor:
    """How a kernel reads an input: the size of each dimension, and its dtype.

    `begin` is what a kernel that serves packed sequences counts by along the batch in the place of b.
    """

    sizes: tuple[Expr, ...]
    dtype: str
    begin: Expr | None = None


@dataclass(frozen=True)
class Setting:
    """What all text of one kernel is written from: what is known of values, the inputs, the spec's `let` names.

    `walked` is the axis along which the kernel's loop goes: COL where a program owns queries, ROW where it owns keys.
    `approximate` is for Operators; `words` are those of the kernel's template. `spelled` has what the kernel calls a
    variable otherwise than the language does.
    """

    ranges: Ranges
    tensors: Mapping[str, Tensor]
    dialect: Dialect = TRITON
    lets: Sequence[tuple[str, Expr]] = ()
    walked: Level = COL
    approximate: bool = False
    words: frozenset[str] = frozenset()
    spelled: Mapping[str, str] = field(default_factory=dict)
    _plain: dict[Expr, Expr] = field(default_factory=dict)

    def plain(self, expr: Expr) -> Expr:
        """The expression as kernels compute it, without what an assembler gets wrong."""
        if expr not in self._plain:
            self._plain[expr] = without_negated_operands(expr, self.ranges.fits_int32)
        return self._plain[expr]


class Writer(ABC):
    """Writes expressions, and the statements before them."""

    def __init__(self, setting: Setting, statements: Statements) -> None:
        self.setting, self.statements = setting, statements
        self._operators = Operators(setting.dialect, setting.ranges, setting.walked == COL, setting.approximate)

    def text(self, expr: Expr) -> Text:
        """The text of an expression: a literal, a name, or the expression written out."""
        if isinstance(expr, Const):
            return self._operators.literal(expr.value)
        name = self._name_at_hand(expr)
        return self.spelled_out(expr) if name is None else Text(name)

    def spelled_out(self, expr: Expr) -> Text:
        """The text of an expression itself; its parts may be names."""
        if isinstance(expr, Const):
            return self._operators.literal(expr.value)
        if isinstance(expr, Var):
            return Text(self._read_variable(expr))
        if isinstance(expr, Gather):
            return self._load(expr)
        assert isinstance(expr, Op)
        if expr.name == "tanh" or (expr.name == "softcap" and not self.setting.approximate):
            self._read("PRECISE")
        return self._operators.write(expr, [self.text(argument) for argument in expr.args])

    @abstractmethod
    def _name_at_hand(self, expr: Expr) -> str | None:
        """The name by which to read an expression, None where it is to be spelled out."""

    @abstractmethod
    def _base(self, terms: Sequence[Text], preferred: str) -> Text:
        """A pointer that is the same for the whole program."""

    @abstractmethod
    def _offset_before_loop(self, expr: Gather, axis: int) -> Text | None:
        """`offset` for an index that the loop does not change."""

    @abstractmethod
    def _packed(self) -> str:
        """The name of whether sequences are packed, in a kernel that serves such too."""

    def _read(self, name: str) -> str:
        self.statements.reads.add(name)
        return name

    def _read_variable(self, expr: Var) -> str:
        """By the kernel's name for it: that of the language, or of the spec, which is none of the kernel's own."""
        if expr is PACKED:
            return self._packed()
        return self._read(self.setting.spelled.get(expr.name, expr.name))

    def _load(self, expr: Gather) -> Text:
        """A load: the part of the address that is the same for the whole program is one pointer, computed once."""
        name = expr.input
        base = [Text(f"{name}_ptr")]
        varying: list[Text] = []
        for axis, index in enumerate(expr.indices):
            in_loop = level(index) & self.setting.walked
            term = self.offset(expr, axis) if in_loop else self._offset_before_loop(expr, axis)
            if term is not None:
                (varying if level(index) else base).append(term)
        if varying:
            base = [self._base(base, f"{name}_base")]
        else:
            self._read(f"{name}_ptr")
        loaded = self.setting.dialect.call("load", _total([*base, *varying]))
        dtype = _LOADED_AS.get(self.setting.tensors[expr.input].dtype)
        return loaded if dtype is None else self._operators.converted(loaded, dtype)

    def offset(self, expr: Gather, axis: int) -> Text | None:
        """One index times its stride, kept inside the tensor; None where it is zero."""
        tensor = self.setting.tensors[expr.input]
        kept = self.setting.ranges.kept_inside(expr, axis, tensor.sizes[axis])
        if tensor.sizes[axis] is BATCH:
            kept = along_batch(kept, tensor.begin)
        index = self.setting.plain(kept)
        if index is const(0):
            return None
        text = self.text(index)
        if axis == len(expr.indices) - 1:
            return text
        stride = Text(self._read(f"stride_{expr.input}_{axis}"))
        return binary("*", text if isinstance(index, Const) else self._operators.wide(text), stride)


class PrologueWriter(Writer):
    """Writes what the loop does not change, in front of it; loads and reductions get lines of their own."""

    def name(self, expr: Expr, preferred: str | None = None) -> str:
        """The name under which an expression is at hand; computes it first if need be."""
        if isinstance(expr, Var):
            return self._read_variable(expr)
        known = self.statements.names.get(expr)
        if known is not None:
            return known
        self.take_apart(expr)
        text = str(self.spelled_out(expr))
        return self.statements.assign(expr, preferred or suggest(expr, self.setting.lets), text)

    def take_apart(self, expr: Expr) -> None:
        """Compute parts of a long expression first, so that its text is not."""
        names = {node for node in self.statements.names if isinstance(node, Expr)}
        if expr in names:
            return
        nodes = [node for node in walk(expr, to=names) if not level(node) & self.setting.walked]
        for node in long_parts(nodes, names, LONGEST):
            if node is not expr:
                text = str(self.spelled_out(node))
                self.statements.assign(node, suggest(node, self.setting.lets), text)

    def name_of_sum(self, terms: Sequence[Text], preferred: str) -> str:
        """The name of a pointer, or an offset, computed once."""
        text = str(_total(terms))
        return self.statements.names.get(text) or self.statements.assign(text, preferred, text)

    def _name_at_hand(self, expr: Expr) -> str | None:
        if isinstance(expr, Gather) or is_reduction(expr):
            return self.name(expr)
        return self.statements.names.get(expr)

    def _base(self, terms: Sequence[Text], preferred: str) -> Text:
        self._read(str(terms[0]))
        return terms[0] if len(terms) == 1 else Text(self.name_of_sum(terms, preferred))

    def _offset_before_loop(self, expr: Gather, axis: int) -> Text | None:
        return self.offset(expr, axis)

    def _packed(self) -> str:
        known = self.statements.names.get(_HAS_CU_SEQLENS)
        return known or self.statements.assign(
            _HAS_CU_SEQLENS, IS_PACKED, _HAS_CU_SEQLENS, self.setting.dialect.name("constexpr")
        )


class PairWriter(Writer):
    """Writes what the loop changes; the rest it takes, by name, from the prologue."""

    def __init__(
        self, setting: Setting, statements: Statements, prologue: PrologueWriter, given: Mapping[Expr, str]
    ) -> None:
        super().__init__(setting, statements)
        self._prologue, self._given = prologue, given

    def _name_at_hand(self, expr: Expr) -> str | None:
        if expr in self.statements.names:
            return self.statements.names[expr]
        if expr in self._given:
            return self._read(self._given[expr])
        return None if level(expr) & self.setting.walked else self._read(self._prologue.name(expr))

    def _base(self, terms: Sequence[Text], preferred: str) -> Text:
        return Text(self._read(str(self._prologue._base(terms, preferred))))

    def _offset_before_loop(self, expr: Gather, axis: int) -> Text | None:
        term = self._prologue.offset(expr, axis)
        if term is None or not level(expr.indices[axis]):
            return term
        along = "row" if self.setting.walked == COL else "col"
        return Text(self._read(self._prologue.name_of_sum([term], f"{expr.input}_{along}")))

    def _packed(self) -> str:
        return self._read(self._prologue._packed())


def _total(terms: Sequence[Text]) -> Text:
    """The sum of addresses and offsets; without parentheses, since no order of adding them matters."""
    if len(terms) == 1:
        return terms[0]
    return Text(" + ".join(term.within(BINDING["+"]) for term in terms), BINDING["+"])
