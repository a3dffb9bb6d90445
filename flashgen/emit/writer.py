"""Writing one expression: which parts stand in its text, and which are computed before it and read by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from flashgen.analysis.arithmetic import is_reciprocal
from flashgen.analysis.levels import COL, is_reduction, level, places_of, shared_by_turn
from flashgen.emit.names import Statements, suggest
from flashgen.emit.operators import Operators
from flashgen.emit.setting import Setting
from flashgen.lang.fold import nothing
from flashgen.lang.infix import Text, binary, call
from flashgen.lang.intervals import Ranges
from flashgen.lang.long import long_parts
from flashgen.lang.nodes import Const, Expr, Gather, Index, Op, Reduction, Type, Var, const, gather
from flashgen.lang.parse import BINDING
from flashgen.lang.traversal import indices, walk
from flashgen.lang.variables import BATCH

_LOADED_AS = {
    **dict.fromkeys(("int8", "uint8", "int16"), "int32"),
    **dict.fromkeys(("float16", "bfloat16"), "float32"),
}


class Writer(ABC):
    """Writes expressions, and the statements before them."""

    def __init__(self, setting: Setting, statements: Statements) -> None:
        self.setting, self.statements = setting, statements
        self._operators = Operators(setting.dialect, setting.ranges, setting.walked == COL, setting.approximate)

    # The indices of the loops that these statements stand in.
    counters: frozenset[Index] = frozenset()

    def assign(self, expr: Expr, preferred: str | None = None) -> str:
        """Compute a value under a new name."""
        preferred = preferred or suggest(expr, self.setting.lets)
        if isinstance(expr, Reduction):
            return write_loop(self, expr, preferred)
        return self.statements.assign(expr, preferred, str(self.spelled_out(expr)))

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
        if isinstance(expr, Reduction):
            return Text(self.assign(expr))
        if isinstance(expr, Index):
            # Under the interpreter it is a number of Python's.
            return self.setting.dialect.call("cast", self._counter(expr), self.setting.dialect.name("int32"))
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

    def _counter(self, expr: Index) -> str:
        """The name of the index of a loop."""
        raise KeyError(f"{expr.word} counts for no loop here")

    def _varies(self, expr: Expr) -> bool:
        """Whether the value changes along the loop of the kernel, or in one of these statements."""
        return bool(level(expr) & self.setting.walked or indices(expr))

    def _read(self, name: str) -> str:
        self.statements.reads.add(name)
        return name

    def _read_variable(self, expr: Var) -> str:
        """By the kernel's name for it: that of the language, or of the spec, which is none of the kernel's own."""
        return self._read(self.setting.spelled.get(expr.name, expr.name))

    def _load(self, expr: Gather) -> Text:
        return self.as_computed(expr, self.setting.dialect.call("load", self.address(expr)))

    def address(self, expr: Gather) -> Text:
        """Where a load reads: the part that is the same for the whole program is one pointer, computed once."""
        base, varying = self.base_terms(expr), list[Text]()
        for axis, index in enumerate(expr.indices):
            if _differs(index):
                term = self.offset(expr, axis) if self._varies(index) else self._offset_before_loop(expr, axis)
                varying += [] if term is None else [term]
        if varying:
            base = [self._base(base, f"{expr.input}_base")]
        else:
            self._read(f"{expr.input}_ptr")
        return _total([*base, *varying])

    def base_terms(self, expr: Gather) -> list[Text]:
        """The pointer, and offsets that are the same for the whole program."""
        same = (axis for axis, index in enumerate(expr.indices) if not _differs(index))
        offsets = (self._offset_before_loop(expr, axis) for axis in same)
        return [Text(f"{expr.input}_ptr"), *(offset for offset in offsets if offset is not None)]

    def as_computed(self, expr: Gather, loaded: Text) -> Text:
        """What was loaded, in the dtype that it is computed with."""
        dtype = _LOADED_AS.get(self.setting.tensors[expr.input].dtype)
        return loaded if dtype is None else self._operators.converted(loaded, dtype)

    def offset(self, expr: Gather, axis: int) -> Text | None:
        """One index times its stride, kept inside the tensor; None where it is zero."""
        tensor = self.setting.tensors[expr.input]
        begin = tensor.begin if tensor.sizes[axis] is BATCH else None
        kept = self.setting.ranges.kept_inside(expr, axis, tensor.sizes[axis])
        index = self.setting.ranges.plain(kept if begin is None else begin)
        if index is const(0):
            return None
        # Elements of the last axis lie side by side. Along the batch a packed input is counted along its length.
        contiguous = axis == len(expr.indices) - 1 and begin is None
        if isinstance(index, Index) and contiguous:
            return Text(self._counter(index))
        text = self.text(index)
        if contiguous:
            return text
        stride = Text(self._read(f"stride_{expr.input}_{axis}"))
        return binary("*", text if isinstance(index, Const) else self._operators.wide(text), stride)


class PrologueWriter(Writer):
    """Writes what the loop does not change, in front of it; loads, reductions, reciprocals get their own lines."""

    def name(self, expr: Expr, preferred: str | None = None) -> str:
        """The name under which an expression is at hand; computes it first if need be."""
        if isinstance(expr, Var):
            return self._read_variable(expr)
        known = self.statements.names.get(expr)
        if known is not None:
            return known
        self.take_apart(expr)
        return self.assign(expr, preferred)

    def take_apart(self, expr: Expr) -> None:
        """Compute parts of a long expression first, so that its text is not."""
        names = {node for node in self.statements.names if isinstance(node, Expr)}
        if expr in names:
            return
        nodes = [node for node in walk(expr, to=names) if not self._varies(node)]
        for node in long_parts(nodes, names):
            if node is not expr:
                self.assign(node)

    def rows_of(self, expr: Gather) -> str:
        """The name of the addresses where the rows begin of which it reads an element each."""
        row = gather(expr.input, (*expr.indices[:-1], const(0)), expr.type)
        assert isinstance(row, Gather)
        self.take_apart(row)
        return self.name_of_sum([self.address(row)], f"{expr.input}_rows")

    def name_base(self, expr: Gather) -> None:
        """Compute what its address begins with, the same for the whole program."""
        self._base(self.base_terms(expr), f"{expr.input}_base")

    def name_of_sum(self, terms: Sequence[Text], preferred: str) -> str:
        """The name of a pointer, or an offset, computed once."""
        text = str(_total(terms))
        return self.statements.names.get(text) or self.statements.assign(text, preferred, text)

    def _name_at_hand(self, expr: Expr) -> str | None:
        if isinstance(expr, Gather) or is_reduction(expr) or is_reciprocal(expr):
            return self.name(expr)
        return self.statements.names.get(expr)

    def _base(self, terms: Sequence[Text], preferred: str) -> Text:
        self._read(str(terms[0]))
        return terms[0] if len(terms) == 1 else Text(self.name_of_sum(terms, preferred))

    def _offset_before_loop(self, expr: Gather, axis: int) -> Text | None:
        return self.offset(expr, axis)


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


class LoopWriter(Writer):
    """Writes what differs in each turn of a reduction's loop; the rest it takes from the writer around it."""

    def __init__(self, around: Writer, counter: Index) -> None:
        super().__init__(around.setting, around.statements.block())
        self._around, self._own = around, counter
        self.counters = around.counters | {counter}
        self.name = self._named(counter.word)

    def _name_at_hand(self, expr: Expr) -> str | None:
        if self._own in indices(expr):
            return None if isinstance(expr, Index) else self.statements.names.get(expr)
        name = self._around._name_at_hand(expr)
        if name is None and isinstance(expr, Gather | Reduction):
            # Once, in front of the loop.
            return self._around.assign(expr)
        return name

    def _named(self, word: str) -> str:
        """The name of the index: loops one after the other share that of their word, those in each other do not."""
        known, above = self._around.statements.names, self._around
        name = known.get(_INDEX + word)
        while isinstance(above, LoopWriter):
            name = None if above.name == name else name
            above = above._around
        return name or self._around.statements.new(_INDEX + word, word)

    def _counter(self, expr: Index) -> str:
        return self.name if expr is self._own else self._around._counter(expr)

    def _base(self, terms: Sequence[Text], preferred: str) -> Text:
        return self._around._base(terms, preferred)

    def _offset_before_loop(self, expr: Gather, axis: int) -> Text | None:
        return self._around._offset_before_loop(expr, axis)


# Before the word of an index: no text of a pointer begins like this.
_INDEX = "index "
_STEPS = {"any": "|=", "all": "&=", "sum": "+="}


def write_loop(around: Writer, expr: Reduction, preferred: str) -> str:
    """Statements that compute a reduction, and the name of its value."""
    length = around.text(expr.index.length)
    inner = LoopWriter(around, expr.index)
    for node in shared_by_turn(expr.term, inner.counters, expr.index):
        inner.assign(node)
    term = inner.text(expr.term)
    start = _start(around, expr)
    name = around.statements.assign(expr, preferred, str(start))
    around.statements.lines += [
        f"for {inner.name} in range({length}):",
        *(f"    {line}" for line in inner.statements.lines),
        f"    {name} {_STEPS[expr.name]} {term}",
    ]
    return name


def _start(around: Writer, expr: Reduction) -> Text:
    """What a reduction of no terms is, for each pair where terms differ from pair to pair."""
    value = around.text(nothing(expr.name, expr.type))
    if expr.type is Type.INT and not _adds_up_in_32_bits(expr, around.setting.ranges):
        value = around.setting.dialect.call("cast", value, around.setting.dialect.name("int64"))
    places = [around.text(place) for place in places_of(expr.term)]
    return call("spread_over", value, _total(places)) if places else value


def _adds_up_in_32_bits(expr: Reduction, ranges: Ranges) -> bool:
    """Whether the sum and all that its terms are made of are integers of 32 bits, as Triton has them."""
    return all(ranges.fits_int32(node) for node in walk(expr) if node.type is Type.INT and not isinstance(node, Const))


def _differs(index: Expr) -> bool:
    """Whether it is not the same for the whole program."""
    return bool(level(index) or indices(index))


def _total(terms: Sequence[Text]) -> Text:
    """The sum of addresses and offsets; without parentheses, since no order of adding them matters."""
    if len(terms) == 1:
        return terms[0]
    return Text(" + ".join(term.within(BINDING["+"]) for term in terms), BINDING["+"])
