"""Parts of expressions that get names: what is read more than once, and what is nested too deep to read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from flashgen.flex.alike import Alike, each_once, with_parts
from flashgen.flex.names import free_name
from flashgen.flex.values import AXIS, NOWHERE
from flashgen.lang.syntax import Call, Chain, Index, Literal, Name, Operation, Syntax, parts, pieces

# A part of so many names and numbers, read again, is shorter by a name even if its author gave it none.
_LONG = 4
# From here on an expression is easier to read with the names that its author gave to its parts.
_VERY_LONG = 20
_DEEP = 24


def named(
    roots: Sequence[Syntax], local: Mapping[int, str], taken: Collection[str]
) -> tuple[dict[str, Syntax], list[Syntax]]:
    """The lets, in order, and the roots that read them. `local` has the mod's own names by the ids of expressions."""
    alike = Alike()
    roots = [alike.of(root) for root in roots]
    named_by_mod: dict[int, str] = {}
    for key, name in local.items():
        if (same := alike.known(key)) is not None:
            named_by_mod.setdefault(id(same), name)
    naming = _Naming(roots, named_by_mod, taken)
    found = [naming.within(root) for root in roots]
    return naming.lets, found


class _Naming:
    def __init__(self, roots: Sequence[Syntax], local: Mapping[int, str], taken: Collection[str]) -> None:
        self.lets: dict[str, Syntax] = {}
        self._local, self._taken = local, set(taken)
        self._readers: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._new: dict[int, Syntax] = {}
        self._own = {id(root) for root in roots}
        # What reads the index of a sum means nothing outside of it.
        self._is_open: dict[int, bool] = {}
        self._sums: dict[int, bool] = {}
        self._apart: set[int] = set()
        for each in each_once(roots):
            # As written out, with what is shared in each place.
            self._sizes[id(each)] = sum(self._sizes[id(part)] for part in parts(each)) or 1
            self._is_open[id(each)] = _is_axis(each) or any(self._is_open[id(part)] for part in parts(each))
            if _is_sum(each):
                self._is_open[id(each)] = False
            # A sum inside a sum, whose index has the same name, is apart from it.
            self._sums[id(each)] = _is_sum(each) or any(self._sums[id(part)] for part in parts(each))
            if self._is_open[id(each)]:
                inner = (id(part) for part in parts(each) if not self._is_open[id(part)])
                self._apart |= {part for part in inner if self._sums[part]}
            for part in parts(each):
                self._readers[id(part)] = self._readers.get(id(part), 0) + 1
        self._names_help = sum(self._sizes[id(root)] for root in roots) > _VERY_LONG

    def within(self, root: Syntax) -> Syntax:
        for each in each_once([root]):
            if id(each) not in self._new:
                self._new[id(each)] = self._named(each)
        return self._new[id(root)]

    def _named(self, syntax: Syntax) -> Syntax:
        new = with_parts(syntax, [self._new[id(part)] for part in parts(syntax)])
        if self._is_open[id(syntax)]:
            return new
        readers = self._readers.get(id(syntax), 0) + (id(syntax) in self._own)
        has_name, is_long = id(syntax) in self._local, self._sizes[id(syntax)] >= _LONG
        shared = readers > 1 and not _is_short(syntax) and (has_name or is_long)
        helps = self._names_help and has_name and is_long and id(syntax) not in self._own
        if not shared and not helps and new.height <= _DEEP and id(syntax) not in self._apart:
            return new
        name = free_name(self._local.get(id(syntax)) or _kind(syntax), self._taken, is_argument=False)
        self._taken.add(name)
        self.lets[name] = new
        return Name(NOWHERE, name)


def _is_axis(syntax: Syntax) -> bool:
    return isinstance(syntax, Name) and syntax.id == AXIS


def _is_sum(syntax: Syntax) -> bool:
    return isinstance(syntax, Call) and _is_axis(syntax.arguments[0])


def _kind(syntax: Syntax) -> str:
    """What a part without a name is called: an element at a query's position as `doc_q`, a test, else a term."""
    if isinstance(syntax, Index):
        read = dict.fromkeys(each.id for each in pieces(syntax) if isinstance(each, Name) and each.id in ("q", "k"))
        return "_".join([syntax.input, *read]) if len(read) == 1 else f"{syntax.input}_at"
    is_test = isinstance(syntax, Chain) or (isinstance(syntax, Operation) and syntax.symbol in ("&", "|", "~"))
    return "test" if is_test else "term"


def _is_short(syntax: Syntax) -> bool:
    """A name, a number, an element at plain indices, or one of these with a sign."""
    if isinstance(syntax, Name | Literal):
        return True
    one = isinstance(syntax, Index) or (isinstance(syntax, Operation) and len(syntax.operands) == 1)
    return one and all(isinstance(part, Name | Literal) for part in parts(syntax))
