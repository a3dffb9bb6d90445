"""Mods that come again: where nothing that they read was assigned anew but numbers, they are not read through again."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from flashgen.flex.captures import ABSENT, Captured, TensorKind, is_number, kind_of

Answer = TypeVar("Answer")
_MOST = 256


@dataclass
class _Known(Generic[Answer]):
    """What was answered for two mods, and the variables that decided it: a tensor stands beside its kind, and a
    number's variable beside which of the values it is.
    """

    owners: tuple[Callable[[], Any], ...]
    answer: Answer
    values: list[Any]
    others: list[tuple[Any, str | None, Any]]
    tensors: list[tuple[torch.Tensor, TensorKind]]
    numbers: list[tuple[Any, str | None, Any, bool, int]]

    def values_now(self) -> list[Any] | None:
        """The captured values, None where more than numbers may have changed."""
        for holder, key, value in self.others:
            if (holder.cell_contents if key is None else holder.get(key, ABSENT)) is not value:
                return None
        for tensor, kind in self.tensors:
            # Whoever assigns to `data` makes it another.
            if kind_of(tensor) != kind:
                return None
        values = self.values
        if self.numbers:
            values = list(values)
            for holder, key, kind, is_negative, place in self.numbers:
                value = holder.cell_contents if key is None else holder.get(key, ABSENT)
                if value is not values[place]:
                    if type(value) is not kind or not is_number(value) or (value < 0) is not is_negative:
                        return None
                    values[place] = value
        return values


class Recent(Generic[Answer]):
    """The answers for pairs of mods that are still there."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Known[Answer]] = {}

    def get(self, *mods: Any) -> tuple[Answer, list[Any]] | None:
        """The answer for these very mods and their captured values, None where it is not known."""
        known = self._known.get(tuple(map(_identity, mods)))
        if known is None:
            return None
        for owner, mod in zip(known.owners, mods, strict=True):
            if owner() is not _owner(mod):
                return None
        values = known.values_now()
        return None if values is None else (known.answer, values)

    def forget(self) -> None:
        """Forget all mods."""
        self._known = {}

    def keep(self, answer: Answer, found: Captured, *mods: Any) -> None:
        """Remember an answer, as long as the mods live, unless what they read may change unseen."""
        key = tuple(map(_identity, mods))
        if not found.lasting:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        try:
            owners = tuple(_reference(_owner(mod), lambda _: self._known.pop(key, None)) for mod in mods)
        except TypeError:
            return
        numbers, others = [], []
        for holder, name, value, is_in_key in found.variables:
            if is_number(value) and not is_in_key:
                numbers.append((holder, name, type(value), value < 0, found.met[id(holder), name]))
            else:
                others.append((holder, name, value))
        tensors = [(value, kind_of(value)) for value in found.values if isinstance(value, torch.Tensor)]
        self._known[key] = _Known(owners, answer, found.values, others, tensors, numbers)


def _identity(mod: Any) -> Hashable:
    """A bound method is another object each time one asks for it."""
    return (id(mod.__func__), id(mod.__self__)) if type(mod) is types.MethodType else id(mod)


def _owner(mod: Any) -> Any:
    return mod.__self__ if type(mod) is types.MethodType else mod


def _nothing() -> None:
    return None


def _reference(owner: Any, gone: Callable[[Any], Any]) -> Callable[[], Any]:
    return _nothing if owner is None else weakref.ref(owner, gone)
