"""What the tensors of a mod stand for, and whence those come that captured values alone decide."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from flashgen.flex.bounds import may_be_negative
from flashgen.flex.deriving import Deriving
from flashgen.flex.tape import Origin
from flashgen.flex.values import (
    AXIS,
    NOWHERE,
    POSITIONS,
    Elements,
    Input,
    NotTraced,
    Number,
    Value,
    arithmetic,
    compare,
    literal,
    name,
    type_of,
    where,
)
from flashgen.lang.nodes import Type
from flashgen.lang.syntax import Index, Name, Syntax, pieces


class Known:
    """What each tensor stands for, which is asked when it is needed: what captured values alone decide becomes an
    input only where the language has no words for it.

    `local` has the names of the mod's variables, by the ids of the expressions in them; `sized` the inputs over whose
    elements it went.
    """

    def __init__(
        self, inputs: Collection[Input], numbers: Collection[Number], causal: bool, deriving: Deriving
    ) -> None:
        self.tape = deriving.tape
        self._causal, self._deriving = causal, deriving
        # The tensors are kept, lest others take their ids. None where nobody has asked what one stands for.
        self._known: dict[int, tuple[torch.Tensor, Value | Elements | None]] = {}
        # Of those that captured values alone decide.
        self._origins: dict[int, Origin] = {}
        self.local: dict[int, str] = {}
        self.sized: set[str] = set()
        self._learned = {"score"}
        self._natural = {*POSITIONS, AXIS, *(each.name for each in numbers if each.is_natural)}
        for each in inputs:
            self.know(each.stand_in, self.element(self._whole(each)), self.tape.captured(each.name, each.is_learned))
        for number in numbers:
            meaning = name(number.name, type_of(number.stand_in.dtype), frozenset([number.name]))
            self.know(number.stand_in, meaning, self.tape.number(number.name, number.stand_in.dtype))

    def know(self, tensor: torch.Tensor, meaning: Value | Elements | None, origin: Origin | None = None) -> None:
        self._known[id(tensor)] = tensor, meaning
        if origin is not None:
            self._origins[id(tensor)] = origin

    def origin(self, tensor: torch.Tensor) -> Origin | None:
        return self._origins.get(id(tensor))

    def captured_by(self, identity: int) -> frozenset[str]:
        """The captured values that alone decide the tensor of this id."""
        origin = self._origins.get(identity)
        return frozenset() if origin is None else self.tape.captured_by(origin)

    def _whole(self, given: Input) -> Elements:
        tensor = given.stand_in
        self._natural |= {given.name} if tensor.dtype in (torch.bool, torch.uint8) else set()
        self._learned |= {given.name} if given.is_learned else set()
        return Elements.whole(given.name, tensor.dtype, given.sizes)

    def learn(self, variable: str, tensor: torch.Tensor) -> None:
        """What a variable of the mod is called."""
        known = self._known.get(id(tensor))
        if known is not None and isinstance(known[1], Value):
            self.local.setdefault(id(known[1].syntax), variable)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._known

    def is_of_numbers(self, tensor: torch.Tensor) -> bool:
        """Whether it is made of numbers alone, and so known."""
        meaning = self._known.get(id(tensor), (None, None))[1]
        return isinstance(meaning, Value) and meaning.numbers is not None

    def meaning(self, given: Any) -> Value | Elements:
        if not isinstance(given, torch.Tensor):
            return literal(given)
        if id(given) not in self._known:
            what = "a tensor that is neither in its closure, its globals nor its defaults"
            raise NotTraced(f"{what}; where a module of one's own is called, expected module.forward(...)")
        return self._known[id(given)][1] or self.elements_of(given)

    def elements_of(self, tensor: torch.Tensor) -> Value | Elements:
        """A tensor that captured values alone decide as elements of an input, which torch makes at each call."""
        origin = self._origins[id(tensor)]
        whole = self._whole(self._deriving.input(origin, tensor))
        places = {axis: self.place(whole, axis, place) for axis, place in enumerate(origin.at)}
        meaning = self.element(whole.at(places))
        self.know(tensor, meaning)
        return meaning

    def value(self, given: Any) -> Value:
        """The number that a tensor stands for; of a row of numbers the one at the place AXIS."""
        meaning = self.meaning(given)
        if not isinstance(meaning, Elements):
            return meaning
        if len(meaning.free) > 1:
            left, rank = len(meaning.free), len(meaning.indices)
            raise NotTraced(f"{meaning.name} with {left} of {rank} dimensions left, where numbers are needed")
        self.sized.add(meaning.name)
        whole = self.element(meaning.at({0: name(AXIS, Type.INT).syntax}))
        assert isinstance(whole, Value)
        return whole

    def place(self, elements: Elements, number: int, index: Value) -> Syntax:
        """An index into one of the dimensions that are left, counted from the start."""
        axis = elements.free[number]
        if axis is None:
            return index.syntax
        size = name(elements.sizes[axis], Type.INT)
        if isinstance(index.constant, int):
            return arithmetic("-", size, literal(-index.constant)).syntax if index.constant < 0 else index.syntax
        if not may_be_negative(index.syntax, self._natural, self._causal):
            return index.syntax
        read = {piece.id for piece in pieces(index.syntax) if isinstance(piece, Name)}
        if not {"q", "k"} <= read:
            return arithmetic("%", index, size).syntax
        # For each pair a remainder would be slow.
        return where(compare("<", index, literal(0)), arithmetic("+", index, size), index).syntax

    def element(self, elements: Elements) -> Value | Elements:
        if elements.free:
            return elements
        kind = type_of(elements.element)
        if not elements.indices:
            return replace(name(elements.name, kind), held=elements.held)
        indices = tuple(each for each in elements.indices if each is not None)
        height = 1 + max(each.height for each in indices)
        return Value(Index(NOWHERE, elements.name, indices, height=height), kind, elements.held)

    def whence(self, tensor: torch.Tensor, indices: Sequence[Any]) -> Origin | None:
        """Whence an element or a part of a tensor comes that is at a place which a position decides."""
        origin, origins = self.origin(tensor), [self.origin(each) for each in indices if isinstance(each, torch.Tensor)]
        if origin is None or all(each is not None and not each.at for each in origins):
            return None
        places = {axis: self.value(each) for axis, each in enumerate(indices) if each is not None}
        return self.tape.within(origin, places, tensor.ndim)

    def has_gradient(self, tensor: torch.Tensor) -> bool:
        """Whether the score is in it, or a captured tensor that requires one."""
        origin = self.origin(tensor)
        if origin is not None:
            return self.tape.is_learned(origin)
        meaning = self.meaning(tensor)
        return isinstance(meaning, Value) and not self._learned.isdisjoint(_read_in(meaning.syntax))

    def come_from(self, tensors: Collection[torch.Tensor], origin: Origin | None) -> None:
        """Remember what some tensors, which are one in memory, are now made of; None where of more than is captured."""
        for each in tensors:
            if origin is None:
                self._origins.pop(id(each), None)
            else:
                self._origins[id(each)] = origin


def _read_in(syntax: Syntax) -> set[str]:
    """The names and inputs that an expression reads."""
    read = {each.id for each in pieces(syntax) if isinstance(each, Name)}
    return read | {each.input for each in pieces(syntax) if isinstance(each, Index)}
