"""Expressions as eager PyTorch statements, for the reference that each generated module carries."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flashgen.emit.eager_names import eager_names
from flashgen.emit.eager_nodes import EagerWriter, Guard, MayLack, Wraps
from flashgen.emit.eager_statements import EagerStatements
from flashgen.emit.fragments import Fragment
from flashgen.lang.nodes import Expr
from flashgen.lang.traversal import walk


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
    statements = EagerStatements(writer, {} if inlined else eager_names(roots, lets, taken))
    used = set(walk(*roots))
    lines = statements.write(walk(*(node for _, node in lets if node in used), *roots), frozenset())
    results = [writer.texts[root] for root in roots]
    for text in results:
        statements.read(text)
    defines = tuple(dict.fromkeys(statements.defines))
    return Fragment(tuple(lines), tuple(map(str, results)), tuple(sorted(statements.reads)), defines)
