"""Whence the tensors of a mod come that captured values alone decide: what torch did to make them, step by step."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from flashgen.flex.alike import Alike
from flashgen.flex.derived import AtEach, Constant, Derivation, OfCall, Result, Step, Written, results_in, turned
from flashgen.flex.values import Value

_aten = torch.ops.aten
# Whose arguments have no sizes in them that torch worked out; and so those that go element by element.
_FREE_OF_SIZES = frozenset({
    "t", "transpose", "permute", "slice", "select", "unsqueeze", "diagonal", "flip", "roll", "alias", "detach", "clone",
    "to_copy", "softmax", "log_softmax", "logsumexp", "cumsum", "cumprod", "sum", "mean", "var", "std", "prod", "amax",
    "amin", "max", "min", "sort", "linalg_vector_norm", "tril", "triu", "cat", "stack", "index", "gather", "embedding",
    "index_select", "mm", "bmm", "mv", "dot", "scalar_tensor", "getitem",
})  # fmt: skip
# A view is one here whatever the strides are at a call, which what stands in for tensors does not have.
_WHATEVER_STRIDES: Mapping[Any, Callable[..., Any]] = {
    _aten.view.default: _aten.reshape.default,
    _aten._unsafe_view.default: _aten.reshape.default,
}
_BY_STRIDES = frozenset({"as_strided", "set_", "resize", "as_strided_scatter"})
_END = 2**63 - 1
_DEEP = 6
_LETTERS = "ijlmno"
# Which say nothing of what is computed.
_OUTWARD = ("device", "layout", "pin_memory", "memory_format", "non_blocking")


@dataclass(frozen=True, eq=False)
class Origin:
    """A tensor is what a result, that at `place`, has at these elements along its first dimensions."""

    place: int
    at: tuple[Value, ...] = ()


@dataclass(frozen=True, eq=False)
class _Made:
    """A captured value by its name, or what a step gives, with the captured values behind it, those for whose sizes
    alone the step holds, and whether it has a gradient.
    """

    step: Step | None
    name: str
    captured: frozenset[str]
    sized: frozenset[str]
    is_learned: bool


class Tape:
    """What is done to captured values, each step once. `has_gradients`: the mod has not turned them off just now."""

    def __init__(self) -> None:
        self.has_gradients = True
        self._made: list[_Made] = []
        self._places: dict[Hashable, int] = {}
        self._alike = Alike()

    def captured(self, name: str, is_learned: bool) -> Origin:
        return Origin(self._kept(name, lambda: _Made(None, name, frozenset([name]), frozenset(), is_learned)))

    def number(self, name: str, dtype: torch.dtype) -> Origin:
        """A captured number, as a tensor."""
        place = self.captured(name, is_learned=False).place
        return self._step(_aten.scalar_tensor.default, (Result(place),), {"dtype": dtype, "device": OfCall()})

    def turn(self, has_gradients: bool) -> None:
        self.has_gradients = has_gradients

    def constant(self, tensor: torch.Tensor) -> Origin:
        return self._step(Constant(tensor), (OfCall(),), {})

    def made(self, func: Any, args: tuple, kwargs: Mapping[str, Any]) -> Origin:
        """What is made of no tensor, on the device of the call."""
        return self._step(func, args, {**kwargs, "device": OfCall()})

    def done(
        self, func: Any, args: tuple, kwargs: Mapping[str, Any], origin: Callable[[torch.Tensor], Origin | None]
    ) -> Origin | None:
        """What an operation gives; None where it is made of more than captured values, or differs from call to call."""
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        known = [each for each in map(origin, tensors) if each is not None]
        function = _repeatable(func)
        if function is None or not known or len(known) < len(tensors):
            return None
        at = max((each.at for each in known), key=len)
        names, all_names = {*self._names(at)}, [self._names(each.at) for each in known]
        # At one place twice there is a diagonal.
        if any(len({*own}) < len(own) or not names.issuperset(own) for own in all_names):
            return None
        # Where the tensors are is no part of what a mod computes.
        kwargs = {key: each for key, each in kwargs.items() if key != "device"}
        places = {id(tensor): each for tensor, each in zip(tensors, known, strict=True)}
        found = (self._at_each if at else self._alone)(function, args, kwargs, places, at)
        if not self.has_gradients and self.is_learned(found):
            found = self._step(_aten.detach.default, (Result(found.place),), {}, at)
        return found

    def part(self, origin: Origin, number: int) -> Origin:
        """One of the tensors that an operation gave."""
        return self._step(operator.getitem, (Result(origin.place), number), {}, origin.at)

    def within(self, origin: Origin, places: Mapping[int, Value], rank: int) -> Origin:
        """What is left of a tensor of so many dimensions at these places along its axes."""
        # From the last, so that the others stay where they are.
        for axis in sorted((axis for axis, place in places.items() if type(place.constant) is int), reverse=True):
            select = Result(origin.place), len(origin.at) + axis, places[axis].constant
            origin, rank = self._step(_aten.select.int, select, {}, origin.at), rank - 1
            places = {other - (other > axis): place for other, place in places.items() if other != axis}
        first = len(origin.at)
        order = [*range(first), *(first + axis for axis in places)]
        order += [each for each in range(first + rank) if each not in order]
        at = (*origin.at, *places.values())
        if order == sorted(order):
            return Origin(origin.place, at)
        return self._step(_aten.permute.default, (Result(origin.place), order), {}, at)

    def is_learned(self, origin: Origin) -> bool:
        return self._made[origin.place].is_learned

    def text(self, origin: Origin) -> str:
        """How it is made, as one would write it."""
        step, said = self._made[origin.place].step, self._said(origin.place, _DEEP)
        if step is None or not isinstance(step.function, AtEach):
            return said
        return f"{said} for each {', '.join(_LETTERS[: len(step.function.names)])}"

    def wanted_name(self, origin: Origin) -> str:
        """What it is best called: by what it is made of first, and what was done last."""
        made, place = self._made[origin.place], origin.place
        while (step := self._made[place].step) is not None and (earlier := next(results_in(step.args), None)):
            place = earlier.place
        if self._made[place].step is not None:
            return "constant"
        last = "" if made.step is None else _name(_inner(made.step).function)
        return f"{self._made[place].name}_{last}" if last else self._made[place].name

    def captured_by(self, origin: Origin) -> frozenset[str]:
        """The names of the captured values behind it."""
        return self._made[origin.place].captured

    def sized_by(self, origins: Collection[Origin]) -> frozenset[str]:
        """The names of the captured values for whose sizes alone the steps hold."""
        return frozenset().union(*(self._made[place].sized for place in self._behind(origins)))

    def derivation(self, origins: Sequence[Origin], places: Mapping[str, int]) -> Derivation:
        """The steps to these tensors; `places` are those of captured values by their names."""
        behind = sorted(self._behind(origins), key=lambda place: (self._made[place].step is not None, place))
        new = {place: Result(number) for number, place in enumerate(behind)}
        steps = tuple(
            Step(made.step.function, _renumbered(made.step.args, new), _renumbered(made.step.kwargs, new))
            for made in (self._made[place] for place in behind)
            if made.step is not None
        )
        captured = tuple(places[self._made[place].name] for place in behind if self._made[place].step is None)
        return Derivation(captured, steps, tuple(new[each.place].place for each in origins))

    def _behind(self, origins: Collection[Origin]) -> set[int]:
        found: set[int] = set()
        stack = [each.place for each in origins]
        while stack:
            place = stack.pop()
            step = self._made[place].step
            if place not in found and step is not None:
                stack += [each.place for each in results_in([*step.args, *step.kwargs.values()])]
            found.add(place)
        return found

    def _alone(
        self, func: Any, args: tuple, kwargs: Mapping[str, Any], places: Mapping[int, Origin], at: tuple[Value, ...]
    ) -> Origin:
        given, named = tree_map_only(torch.Tensor, lambda each: Result(places[id(each)].place), (args, kwargs))
        return self._step(func, given, named)

    def _at_each(
        self, func: Any, args: tuple, kwargs: Mapping[str, Any], places: Mapping[int, Origin], at: tuple[Value, ...]
    ) -> Origin:
        """An operation on elements at places: on the elements at all places, of which there are these."""
        numbers = {tensor: number for number, tensor in enumerate(places)}
        given, named = tree_map_only(torch.Tensor, lambda each: Result(numbers[id(each)]), (args, kwargs))
        wholes = [self._in_order(each, at) for each in places.values()]
        each = AtEach(Step(func, given, named), self._names(at), tuple(self._names(each.at) for each in wholes))
        return self._step(each, tuple(Result(whole.place) for whole in wholes), {}, at)

    def _in_order(self, origin: Origin, at: tuple[Value, ...]) -> Origin:
        """The first dimensions in the order of these places."""
        mine, wanted = self._names(origin.at), self._names(at)
        order = sorted(range(len(mine)), key=lambda number: wanted.index(mine[number]))
        if order == sorted(order):
            return origin
        return self._step(turned, (Result(origin.place), order), {}, tuple(origin.at[number] for number in order))

    def _step(self, function: Any, args: tuple, kwargs: Mapping[str, Any], at: tuple[Value, ...] = ()) -> Origin:
        step = Step(function, args, kwargs)
        return Origin(self._kept(repr(step), lambda: self._noted(step)), at)

    def _noted(self, step: Step) -> _Made:
        earlier = [self._made[each.place] for each in results_in([*step.args, *step.kwargs.values()])]
        # Sizes that torch worked out, of whatever is captured, may be in what is made of nothing too.
        behind = earlier or [each for each in self._made if each.step is None]
        captured = frozenset().union(*(each.captured for each in behind))
        is_learned = any(each.is_learned for each in earlier) and step.function is not _aten.detach.default
        return _Made(step, "", captured, frozenset() if _is_free_of_sizes(step) else captured, is_learned)

    def _said(self, place: int, depth: int) -> str:
        step = self._made[place].step
        if step is None or not depth:
            return self._made[place].name or "..."
        texts = {each.place: self._said(each.place, depth - 1) for each in results_in(step.args)}
        if not isinstance(step.function, AtEach):
            return _said(step, texts)
        letters = dict(zip(step.function.names, _LETTERS, strict=False))
        parts = []
        for each, names in zip(step.args, step.function.along, strict=True):
            made = self._made[each.place].step
            # What is at each already says so.
            is_plain = names and not (made is not None and isinstance(made.function, AtEach))
            parts.append(texts[each.place] + f"[{', '.join(letters[name] for name in names)}]" * bool(is_plain))
        return _said(step.function.step, dict(enumerate(parts)))

    def _names(self, at: Sequence[Value]) -> tuple[int, ...]:
        """Numbers for places, the same for the same places."""
        return tuple(id(self._alike.of(each.syntax)) for each in at)

    def _kept(self, key: Hashable, make: Callable[[], _Made]) -> int:
        if key not in self._places:
            made = make()
            self._places[key] = len(self._made)
            self._made.append(made)
        return self._places[key]


def _repeatable(func: Any) -> Callable[..., Any] | None:
    """An operation that gives the same again, whatever the strides of tensors; None where there is none."""
    if _name(func) in _BY_STRIDES or torch.Tag.nondeterministic_seeded in func.tags:
        return None
    if not func._schema.is_mutable:
        return _WHATEVER_STRIDES.get(func, func)
    kind = getattr(getattr(torch.ops, func.namespace), func._opname.removesuffix("_"), None)
    function = getattr(kind, func._overloadname, None)
    return None if function is None else Written(function)


def _inner(step: Step) -> Step:
    return step.function.step if isinstance(step.function, AtEach) else step


def _is_free_of_sizes(step: Step) -> bool:
    inner: Any = _inner(step).function
    inner = inner.function if isinstance(inner, Written) else inner
    if inner is turned or isinstance(inner, Constant):
        return True
    return _name(inner) in _FREE_OF_SIZES or torch.Tag.pointwise in getattr(inner, "tags", ())


def _name(function: Any) -> str:
    function = function.function if isinstance(function, Written) else function
    if hasattr(function, "_schema"):
        return function._schema.name.partition("::")[2].strip("_")
    return "tensor" if isinstance(function, Constant) else function.__name__


def _said(step: Step, texts: Mapping[int, str]) -> str:
    """A step as one would write it, on results that are written so."""
    first, *rest = [_text(each, texts) for each in step.args]
    said = {name: each for name, each in step.kwargs.items() if name not in _OUTWARD and each is not None}
    rest += [f"{name}={_text(each, texts)}" for name, each in said.items()]
    if step.function is operator.getitem:
        return f"{first}[{rest[0]}]"
    if not isinstance(step.args[0], Result):
        return f"{_name(step.function)}({', '.join([first, *rest])})"
    return f"{first}.{_name(step.function)}({', '.join(rest)})"


def _text(given: Any, texts: Mapping[int, str]) -> str:
    """An argument as one would write it."""
    if isinstance(given, Result):
        return texts[given.place]
    if isinstance(given, list | tuple):
        return f"[{', '.join(_text(each, texts) for each in given)}]"
    return "end" if given == _END else "" if isinstance(given, OfCall) else str(given)


def _renumbered(given: Any, new: Mapping[int, Result]) -> Any:
    if isinstance(given, Result):
        return new[given.place]
    if isinstance(given, dict):
        return {name: _renumbered(each, new) for name, each in given.items()}
    return tuple(_renumbered(each, new) for each in given) if isinstance(given, list | tuple) else given
