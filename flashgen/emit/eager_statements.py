"""Eager PyTorch as statements, one after the other: assignments to names, and loops over indices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flashgen.emit.eager_nodes import EagerWriter
from flashgen.lang.infix import Text, binary, read
from flashgen.lang.nodes import Expr, Index, Reduction
from flashgen.lang.traversal import indices, walk

_STEPS = {"any": "|", "all": "&", "sum": "+"}


class EagerStatements:
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
