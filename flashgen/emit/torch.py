"""Expressions as eager PyTorch statements, for the reference that each generated module carries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from flashgen.emit.eager_names import eager_names
from flashgen.emit.eager_nodes import EagerWriter, Guard, MayLack, Wraps
from flashgen.emit.fragments import Fragment
from flashgen.lang.infix import Text, binary, read
from flashgen.lang.nodes import Expr, Index, Reduction
from flashgen.lang.traversal import indices, walk

_STEPS = {"any": "|", "all": "&", "sum": "+"}


def emit(
    roots: Sequence[Expr],
    lets: Sequence[tuple[str, Expr]] = (),
    guard: Guard | None = None,
    taken: Collection[str] = (),
    inlined: bool = False,
    wraps: Wraps = lambda node: False,
    may_lack: MayLack | None = None,
) -> Fragment:
    """PyTorch statements that compute `roots`.

    They read `b`, `h`, `kv_h` (int64 [batch, 1, 1, 1], [1, heads, 1, 1] twice), `q` (int64 [q_len, 1]), `k` (int64
    [1, kv_len]), `score` (float [batch, heads, q_len, kv_len]), each input under its name, and sizes and runtime
    params as Python scalars. A let that the roots use is assigned under its own name, with an underscore after it
    if that is among the names in `taken`; what else is used repeatedly gets a short name of its own, unless
    `inlined`: then they read scalars alone, as sizes do, and one that divides by zero or leaves the domain of a
    function raises. Indices are clamped where `guard` says that they may leave the tensor, on both sides without it;
    `wraps` says which integers may pass 64 bits. With `may_lack`, which says whether a dimension may
    have no element, nothing is read where there is no pair, and a trace looks at no value of an index.
    """
    writer = EagerWriter(guard or (lambda node, axis: (True, True)), wraps, inlined, may_lack)
    statements = _Statements(writer, {} if inlined else eager_names(roots, lets, taken))
    used = set(walk(*roots))
    lines = statements.write(walk(*(node for _, node in lets if node in used), *roots), frozenset())
    results = [writer.texts[root] for root in roots]
    for text in results:
        statements.read(text)
    defines = tuple(dict.fromkeys(statements.defines))
    return Fragment(tuple(lines), tuple(map(str, results)), tuple(sorted(statements.reads)), defines)


class _Statements:
    """Assignments to names, and loops, in the order of the nodes; `reads` and `defines` as in a Fragment."""

    def __init__(self, writer: EagerWriter, names: Mapping[Expr, str]) -> None:
        self._writer, self._names = writer, names
        self._written: set[Expr] = set()
        self.defines: list[str] = []
        self.reads: set[str] = set()

    def read(self, text: Text) -> Text:
        """A text of the statements, or of what follows them."""
        self.reads |= text.reads - {*self.defines}
        return text

    def write(self, nodes: Iterable[Expr], counters: frozenset[Index]) -> list[str]:
        """Statements for those of the nodes that have a value inside the loops of these indices."""
        lines: list[str] = []
        for node in nodes:
            if node in self._written or not indices(node) <= counters:
                continue
            self._written.add(node)
            if isinstance(node, Reduction):
                lines += self._loop(node, counters | {node.index})
            elif not isinstance(node, Index):
                text = self._writer.write(node)
                if node in self._names:
                    lines.append(f"{self._names[node]} = {self.read(text)}")
                    self._define(node)
        return lines

    def _define(self, node: Expr) -> None:
        self.defines.append(self._names[node])
        self._writer.name(node, self._names[node])

    def _loop(self, node: Reduction, counters: frozenset[Index]) -> list[str]:
        """What another loop with this index has computed is to be computed again."""
        name, length = read(self._names[node]), self.read(self._writer.texts[node.index.length])
        start, counter = self.read(self._writer.start(node)), self._names[node.index]
        self._define(node.index)
        self._written -= {known for known in self._written if node.index in indices(known)}
        lines = self.write(walk(node.term), counters)
        self._define(node)
        whole = binary(_STEPS[node.name], name, self.read(self._writer.texts[node.term]))
        lines.append(f"{name} = {whole}")
        return [f"{name} = {start}", f"for {counter} in range({length}):", *(f"    {line}" for line in lines)]
