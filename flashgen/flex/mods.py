"""A score_mod and a mask_mod together as expressions, with the inputs and numbers that they read."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashgen.errors import Location, ModError
from flashgen.flex.captures import Way, called
from flashgen.flex.files import is_foreign
from flashgen.flex.hidden import conjuncts
from flashgen.flex.rebuilt import Rebuilding
from flashgen.flex.trace import Input, Number, Traced, trace
from flashgen.flex.values import AXIS, NotTraced
from flashgen.lang.syntax import Syntax
from flashgen.lang.written import written
from flashgen.spec.names import name_problem

Mod = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Mods:
    """What two mods compute. `places` says which of the captured values each name has, in the order of `capture`;
    `ways` has for each of these the mod, 0 for the score's, and the way from there.
    """

    score: Traced | None
    mask: Traced | None
    tensors: Mapping[str, torch.Tensor]
    numbers: Mapping[str, int | float]
    places: Mapping[str, int]
    ways: Sequence[tuple[int, Way]]

    @property
    def fixed(self) -> frozenset[str]:
        """The numbers whose values the mods asked for."""
        return frozenset().union(*(each.fixed for each in (self.score, self.mask) if each is not None))

    @property
    def sized(self) -> frozenset[str]:
        """The tensors whose sizes the mods asked for."""
        return frozenset().union(*(each.sized for each in (self.score, self.mask) if each is not None))


def trace_mods(score_mod: Mod | None, mask_mod: Mod | None) -> Mods:
    """Trace both. Raises ModError, which names the line of the mod, where the language does not have what they do.

    What goes wrong on a number that is a tensor, as `2 ** -n`, may go well on the number itself.
    """
    try:
        return _traced(score_mod, mask_mod, numbers_stay=False)
    except Exception:  # noqa: BLE001  (whatever the mod raises)
        return _traced(score_mod, mask_mod, numbers_stay=True)


def _traced(score_mod: Mod | None, mask_mod: Mod | None, numbers_stay: bool) -> Mods:
    standing = _Standing(numbers_stay)
    rebuilding = Rebuilding(standing)
    again: list[Any] = []
    for standing.root, mod in enumerate((score_mod, mask_mod)):
        again.append(None if mod is None else rebuilding.mod(mod))
    score, mask = again
    traced_mask = None if mask is None else _run(mask_mod, mask, False, standing, causal=False)
    causal = traced_mask is not None and any(map(is_causal, conjuncts(traced_mask.result.syntax)))
    traced_score = None if score is None else _run(score_mod, score, True, standing, causal)
    return Mods(traced_score, traced_mask, standing.tensors, standing.values, standing.places, standing.ways)


def is_causal(mask: Syntax) -> bool:
    """Whether this is the mask of keys up to the query's own position."""
    return written(mask) in ("q >= k", "k <= q")


def _run(mod: Any, again: Any, with_score: bool, standing: _Standing, causal: bool) -> Traced:
    try:
        return trace(again, with_score, standing.inputs.values(), standing.numbers.values(), causal)
    except NotTraced as error:
        raise ModError(place_of(mod, error), str(error)) from None
    except Exception as error:
        raise ModError(place_of(mod, error), f"{type(error).__name__}: {error}") from error


def place_of(mod: Any, error: BaseException | None = None) -> Location:
    """The line of the mod, or of what it calls, that an error came from; else where the mod begins."""
    for frame in reversed(traceback.extract_tb(error.__traceback__) if error is not None else []):
        if not is_foreign(frame.filename) and frame.lineno is not None:
            return Location(frame.filename, frame.lineno)
    function = called(mod)
    code = getattr(getattr(function, "func", function), "__code__", None)
    return Location(repr(mod)) if code is None else Location(code.co_filename, code.co_firstlineno)


class _Standing:
    """Stands in for what is captured: for each slot once, under a name of its own."""

    def __init__(self, numbers_stay: bool) -> None:
        self.inputs: dict[Any, Input] = {}
        self.numbers: dict[Any, Number] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.values: dict[str, int | float] = {}
        self.places: dict[str, int] = {}
        self.ways: list[tuple[int, Way]] = []
        # Which of the mods is being rebuilt.
        self.root = 0
        self._numbers_stay = numbers_stay

    def __call__(self, name: str, value: Any, slot: Any, way: Way) -> Any:
        known = self.inputs.get(slot) or self.numbers.get(slot)
        if known is not None:
            return known.stand_in if not (self._numbers_stay and slot in self.numbers) else value
        name = free_name(name, {AXIS, *self.tensors, *self.values})
        self.places[name] = len(self.places)
        self.ways.append((self.root, way))
        if isinstance(value, torch.Tensor):
            self.tensors[name] = value
            self.inputs[slot] = Input(name, torch.zeros((), dtype=value.dtype).expand(value.shape))
            return self.inputs[slot].stand_in
        self.values[name] = value
        kind = torch.int64 if isinstance(value, int) else torch.float64
        is_natural = isinstance(value, int) and value >= 0
        self.numbers[slot] = Number(name, torch.tensor(value, dtype=kind), is_natural)
        return value if self._numbers_stay else self.numbers[slot].stand_in


def free_name(wanted: str, taken: Collection[str], is_argument: bool = True) -> str:
    """A name that a spec may give, as near to the wanted one as can be."""
    base = "".join(each if each.isascii() and each.isalnum() else "_" for each in wanted).strip("_")[:48] or "value"
    base = base if base[0].isalpha() else f"value_{base}"
    if name_problem(base, is_argument) is not None:
        base += "_"
    names = [base, *(f"{base.rstrip('_')}_{number}" for number in range(2, 2 + len(taken)))]
    return next(name for name in [*names, f"{base}_more"] if name not in taken)
