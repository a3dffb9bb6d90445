"""Which parts of an expression eager PyTorch assigns to names, and what these are."""

from __future__ import annotations

import keyword as keyword_of_python
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import count

from flashgen.emit.eager_operations import reads_second_again
from flashgen.emit.eager_signs import is_nonzero
from flashgen.lang.long import long_parts
from flashgen.lang.magnitudes import may_pass_64_bits
from flashgen.lang.nodes import Expr, Gather, Index, Op, Reduction, Type, Var
from flashgen.lang.partials import is_tensor
from flashgen.lang.traversal import walk

_OWN_NAMES = frozenset({"torch", "math", "min", "max", "abs", "int", "float", "range"})


def eager_names(roots: Sequence[Expr], lets: Sequence[tuple[str, Expr]], taken: Collection[str]) -> dict[Expr, str]:
    """Names for the nodes that are assigned: lets, shared work, and divisors that a zero test reads again."""
    nodes = list(walk(*roots))
    present = set(nodes)
    occupied = _OWN_NAMES | {*taken} | {n.name for n in nodes if isinstance(n, Var)}
    occupied |= {n.input for n in nodes if isinstance(n, Gather)}
    named = [(name, node) for name, node in lets if node in present and isinstance(node, Op | Gather | Reduction)]
    counters = [node for node in nodes if isinstance(node, Index)]
    names: dict[Expr, str] = {}
    for name, let in named:
        if let not in names:
            names[let] = _unlike(occupied, name)
            occupied = occupied | {names[let]}
    # Loops in each other have indices of different words.
    of_words = {word: _unlike(occupied, word) for word in dict.fromkeys(node.word for node in counters)}
    names |= {node: of_words[node.word] for node in counters}
    occupied = occupied | {*of_words.values()}
    fresh = (name for name in map("t{}".format, count()) if name not in occupied)
    uses = Counter(child for node in nodes for child in node.children)
    uses.update(child for node in nodes for child in _read_again(node))
    uses.update(roots)
    for node in nodes:
        if node not in names and (uses[node] > 1 or isinstance(node, Reduction)) and not _is_trivial(node):
            names[node] = next(fresh)
    for node in long_parts(nodes, names):
        if node not in names:
            names[node] = next(fresh)
    return names


def _unlike(occupied: Collection[str], name: str) -> str:
    """The name, with underscores after it while it is taken, or a word of Python's."""
    while name in occupied or keyword_of_python.iskeyword(name):
        name += "_"
    return name


def _read_again(node: Expr) -> Iterator[Expr]:
    if not isinstance(node, Op):
        return
    if node.name in ("floordiv", "mod") and node.type is Type.INT and not is_nonzero(node.args[1]):
        yield node.args[1]
    if node.name == "floor" and may_pass_64_bits(node.args[0]):
        yield node.args[0]
    if node.name in ("min", "max") and reads_second_again(node) and not is_tensor(node):
        yield node.args[1]


def _is_trivial(node: Expr) -> bool:
    """Shorter to write again than to name: leaves, and a sign or cast on one."""
    return not node.children or (isinstance(node, Op) and len(node.args) == 1 and not node.args[0].children)
