"""The names by which the code that may run reads attributes, all together and of single objects."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping

from flashgen.flex.codes import names_of_self, read_names, reads_any_name


class Vocabulary:
    """Of an object attributes of all these names are read: which code meets it cannot be told. What is met as the first
    argument of its methods alone, as the owner of a mod that is a bound method, is read by the names that these have
    for it, so that nothing else that it can do is taken for a part of the mod.

    It learns while a mod is read. `has_grown`: what was read before may have more to it. `has_any`: attributes of other
    names may be read too.
    """

    def __init__(self, names: Collection[str] = (), before: Vocabulary | None = None) -> None:
        self.names: Mapping[str, None] = dict.fromkeys(names)
        self.has_grown = False
        self.has_any: bool = before is not None and before.has_any
        # By the class of objects: what its methods read, and whether others may read it.
        self._of_selves: dict[type, dict[str, None]] = {} if before is None else dict(before._of_selves)
        self._met: set[type] = set() if before is None else set(before._met)

    def with_codes(self, codes: Collection[types.CodeType]) -> Vocabulary:
        """With the names in these codes too."""
        found = Vocabulary([*self.names, *(name for each in codes for name in read_names(each))], self)
        found.has_any = found.has_any or any(map(reads_any_name, codes))
        return found

    def of(self, owner: object) -> Collection[str]:
        """The names of the attributes of an object that may be read."""
        return self._of_selves.get(type(owner), self.names)

    def is_self_alone(self, owner: object) -> bool:
        """Whether the object is only the first argument of its methods."""
        return type(owner) in self._of_selves

    def meet(self, value: object) -> None:
        """Code that is not told may read a value."""
        kind = type(value)
        self._met.add(kind)
        if self._of_selves.pop(kind, None) is not None:
            self.has_grown = True

    def meet_as_self(self, owner: object, code: types.CodeType) -> None:
        """A method reads an object."""
        kind, names = type(owner), names_of_self(code)
        if kind in self._met:
            return
        if names is None:
            self.meet(owner)
            return
        known = self._of_selves.get(kind)
        if known is None:
            self._of_selves[kind] = dict.fromkeys(names)
        elif not known.keys() >= {*names}:
            self._of_selves[kind] = {**known, **dict.fromkeys(names)}
            self.has_grown = True
