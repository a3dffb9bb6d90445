"""From the expression graph to a kernel.

Inside a kernel `q` is a [BM, 1] and `k` a [1, BN] tile of int32 positions, or [1, BM] and [BN, 1], so that broadcasting
does the rest and an expression reads as in the spec. Values are computed at the lowest level that they need: one number
per program, one per row, one per column, one per pair; what the loop does not change is hoisted in front of it by the
`Prologue`: all that is free of k where the kernel walks along keys, all that is free of q where it walks along queries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from flashgen.analysis.arithmetic import as_computed
from flashgen.analysis.levels import floats_at_leaves, shared
from flashgen.emit.dialects import TRITON, Dialect
from flashgen.emit.fragments import Fragment, Load
from flashgen.emit.names import EMITTED, SPELLED, Statements, suggest
from flashgen.emit.setting import Setting
from flashgen.emit.writer import PairWriter, PrologueWriter
from flashgen.lang.infix import Text
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Expr, Gather
from flashgen.lang.traversal import variables

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Prologue:
    """What is computed once a program, in front of the loop, and shared by all that is emitted after it."""

    def __init__(self, setting: Setting, statements: Statements) -> None:
        self._setting, self._statements = setting, statements
        self._writer = PrologueWriter(setting, statements)

    @classmethod
    def begin(cls, setting: Setting, reserved: Collection[str] = ()) -> Prologue:
        """One without statements, for a kernel in this setting.

        New values take none of the `reserved` names, which are the kernel's arguments from the spec, and of the
        setting's words those alone that are names of such values.
        """
        setting = replace(
            setting,
            lets=tuple((name, as_computed(expr, setting.ranges)) for name, expr in setting.lets),
            words=setting.words - EMITTED,
            spelled={**SPELLED, **setting.spelled},
        )
        return cls(setting, Statements(taken={*setting.words, *reserved}))

    @property
    def dialect(self) -> Dialect:
        return self._setting.dialect

    @property
    def ranges(self) -> Ranges:
        return self._setting.ranges

    @property
    def lines(self) -> tuple[str, ...]:
        """The statements so far."""
        return tuple(self._statements.lines)

    @property
    def defines(self) -> tuple[str, ...]:
        """The names that the statements so far made, one each."""
        return tuple(self._statements.defines)

    @property
    def reads(self) -> set[str]:
        """The names that the statements read from outside."""
        return self._statements.reads

    def name(self, expr: Expr, preferred: str | None = None) -> str:
        """The name under which an expression that the loop does not change is at hand; computes it first if need be."""
        return self._writer.name(as_computed(expr, self.ranges), preferred)

    def inline(self, expr: Expr, spelled: Mapping[str, str] = _NOTHING) -> str:
        """An expression that the loop does not change as text of its own, its loads and reductions computed before."""
        expr, writer = as_computed(expr, self.ranges), self._writer
        if spelled:
            writer = PrologueWriter(self._spelling(spelled), self._statements)
        writer.take_apart(expr)
        return self._statements.names.get(expr) or str(writer.spelled_out(expr))

    def body(
        self,
        *roots: Expr,
        inlined: bool = False,
        given: Mapping[Expr, str] = MappingProxyType({}),
        hidden: Collection[str] = (),
    ) -> Fragment:
        """Statements that compute the roots from q, k, qk, what the prologue holds, and what is `given` by name.

        They are for a function of their own, which is one of Triton's in either dialect, or `inlined` for the kernel
        itself, where they must hide nothing, nor take a name that is `hidden` from the prologue: one that other inlined
        statements made.
        """
        setting = self._setting if inlined else _of_functions(self._setting)
        roots = tuple(floats_at_leaves(as_computed(root, self.ranges), self.ranges) for root in roots)
        given = {as_computed(expr, self.ranges): name for expr, name in given.items()}
        known = len(self.defines)
        body = self._written(setting, roots, given)
        # Written again once all that it takes from the prologue has a name, which none of its own may hide.
        avoid = {*body.reads, *hidden}
        avoid |= self.reads | self._statements.taken if inlined else set()
        is_final = len(self.defines) == known and avoid.isdisjoint(body.defines)
        return body if is_final else self._written(setting, roots, given, avoid)

    def name_base(self, read: Gather) -> None:
        """Compute what all addresses of a load begin with, for forks to find."""
        self._writer.name_base(read)

    def load_of_rows(self, read: Gather, layout: str) -> Load:
        """A load for the kernel to make of what each pair reads at its key, whose value is wanted in this `layout`.

        Statements for the addresses of the rows are among those here.
        """
        rows = self._writer.rows_of(read)
        name = self._statements.new(read, suggest(read, self._setting.lets))
        value = self._writer.as_computed(read, self.dialect.call("convert_layout", Text(name), layout))
        return Load(name, rows, str(value))

    def fork(self, spelled: Mapping[str, str] = _NOTHING) -> Prologue:
        """A further place for statements, such as the epilogue, where everything computed here is at hand.

        `spelled`: variables that it has under other names, so that what follows from them is not at hand.
        """
        here = self._statements
        names = {known: name for known, name in here.names.items() if not _follows_from(known, spelled)}
        # What is under other names stands beside what is not.
        statements = Statements(here.taken if spelled else {*here.taken}, here.reads, names=names)
        return Prologue(self._spelling(spelled), statements)

    def _spelling(self, spelled: Mapping[str, str]) -> Setting:
        return replace(self._setting, spelled={**self._setting.spelled, **spelled})

    def _written(
        self, setting: Setting, roots: Sequence[Expr], given: Mapping[Expr, str], avoid: Collection[str] = ()
    ) -> Fragment:
        statements = Statements(taken={*setting.words, *avoid})
        writer = PairWriter(setting, statements, self._writer, given)
        for node in shared(roots, setting.lets, setting.walked, given):
            writer.assign(node)
        results = tuple(str(writer.text(root)) for root in roots)
        return Fragment(
            tuple(statements.lines),
            results,
            tuple(sorted(statements.reads)),
            tuple(statements.defines),
        )


def _follows_from(known: Expr | str, names: Collection[str]) -> bool:
    """Whether an expression depends on variables of these names. A text, of an address, has other names if it does."""
    return bool(names) and isinstance(known, Expr) and not variables(known).isdisjoint(names)


def _of_functions(setting: Setting) -> Setting:
    """The setting of functions: no letter alone is a function that they call."""
    return replace(setting, dialect=TRITON, words=_longer(setting.words))


@lru_cache(maxsize=4)
def _longer(words: frozenset[str]) -> frozenset[str]:
    """Those of more than one letter; kernels have the same hundreds of words."""
    return frozenset(word for word in words if len(word) > 1)
