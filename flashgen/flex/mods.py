"""A score_mod and a mask_mod together as expressions, with the inputs and numbers that they read."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from flashgen.errors import Location, ModError
from flashgen.flex.derived import Derivation
from flashgen.flex.deriving import Deriving
from flashgen.flex.foreign import is_foreign
from flashgen.flex.hidden import conjuncts
from flashgen.flex.names import free_name
from flashgen.flex.parts import Way, begin_of
from flashgen.flex.rebuilt import Rebuilding
from flashgen.flex.trace import Traced, trace
from flashgen.flex.values import AXIS, Input, NotTraced, Number, dimension
from flashgen.flex.vocabulary import Vocabulary
from flashgen.lang.syntax import Syntax
from flashgen.lang.written import written
from flashgen.runtime.dispatch import asks_for_gradient

Mod = Callable[..., torch.Tensor]
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Mods:
    """What two mods compute. `places` says which of the captured values each name has, in the order of `capture`;
    `ways` has for each of these the mod, 0 for the score's, and the way from there; `sizes` the names of each tensor's
    dimensions. `fixed` are the numbers for whose values alone this holds; `constants` are the other values, with the
    way to each as in `ways`.
    """

    score: Traced | None
    mask: Traced | None
    tensors: Mapping[str, torch.Tensor]
    numbers: Mapping[str, int | float]
    sizes: Mapping[str, tuple[str, ...]]
    places: Mapping[str, int]
    ways: Sequence[tuple[int, Way]]
    fixed: frozenset[str]
    constants: Sequence[tuple[int, Way, Any]]
    deriving: Deriving

    @property
    def captured(self) -> dict[str, Any]:
        """The tensors and numbers by their names."""
        return {**self.tensors, **self.numbers}

    def learned_by(self, inputs: Collection[str]) -> tuple[int, ...]:
        """The places of captured tensors with gradients that these inputs are, or come from."""
        tape, origins = self.deriving.tape, self.deriving.origins
        behind = frozenset(inputs).union(*(tape.captured_by(origins[name]) for name in origins.keys() & inputs))
        return tuple(
            sorted(self.places[name] for name in behind & self.tensors.keys() if asks_for_gradient(self.tensors[name]))
        )

    @property
    def names(self) -> frozenset[str]:
        """The names that are taken."""
        derived = [(each.name, *each.sizes) for each in self.deriving.inputs.values()]
        return frozenset({*self.tensors, *self.numbers}.union(*self.sizes.values(), *derived))

    def sized(self, derived: Collection[str]) -> frozenset[str]:
        """The tensors for whose sizes alone this holds, with these derived inputs."""
        asked = frozenset().union(*(each.sized for each in (self.score, self.mask) if each is not None))
        tape, origins = self.deriving.tape, self.deriving.origins
        behind = [tape.captured_by(origins[name]) for name in asked & origins.keys()]
        found = asked.union(tape.sized_by([origins[name] for name in derived]), *behind)
        return found & self.tensors.keys()

    def derivation(self, derived: Sequence[str]) -> Derivation:
        """What makes these derived inputs of captured values."""
        return self.deriving.tape.derivation([self.deriving.origins[name] for name in derived], self.places)


def trace_mods(score_mod: Mod | None, mask_mod: Mod | None, names: Vocabulary, numbers_stay: bool) -> Mods:
    """Trace both. `names` are those that the code behind them reads. `numbers_stay`: numbers are what they are, and the
    trace holds for these; otherwise tensors stand in for them.

    Raises ModError, which names the line of the mod, where the language does not have what they do.
    """
    standing = _Standing(numbers_stay)
    rebuilding = Rebuilding(standing, standing.constant, names)
    again: list[Any] = []
    for standing.root, mod in enumerate((score_mod, mask_mod)):
        again.append(None if mod is None else _run(mod, partial(rebuilding.mod, mod)))
    score, mask = again
    sizes, numbers = standing.sizes(), standing.numbers.values()
    inputs = [replace(each, sizes=sizes[each.name]) for each in standing.inputs.values()]
    deriving = Deriving(inputs, standing.values)
    traced_mask = (
        None if mask is None else _run(mask_mod, partial(trace, mask, False, inputs, numbers, False, deriving))
    )
    causal = traced_mask is not None and any(map(is_causal, conjuncts(traced_mask.result.syntax)))
    traced_score = (
        None if score is None else _run(score_mod, partial(trace, score, True, inputs, numbers, causal, deriving))
    )
    traced = [each for each in (traced_score, traced_mask) if each is not None]
    fixed = frozenset(standing.values if numbers_stay else ()).union(*(each.fixed for each in traced))
    return Mods(
        traced_score, traced_mask, standing.tensors, standing.values, sizes, standing.places, standing.ways, fixed,
        standing.constants, deriving,
    )  # fmt: skip


def is_causal(mask: Syntax) -> bool:
    """Whether this is the mask of keys up to the query's own position."""
    return written(mask) in ("q >= k", "k <= q")


def _run(mod: Any, step: Callable[[], _Result]) -> _Result:
    """A step of tracing a mod, whose errors name the line in it."""
    try:
        return step()
    except NotTraced as error:
        raise ModError(place_of(mod, error), str(error)) from None
    except Exception as error:
        raise ModError(place_of(mod, error), f"{type(error).__name__}: {error}") from error


def place_of(mod: Any, error: BaseException | None = None) -> Location:
    """The line of the mod, or of what it calls, that an error came from; else where the mod begins."""
    for frame in reversed(traceback.extract_tb(error.__traceback__) if error is not None else []):
        if not is_foreign(frame.filename) and frame.lineno is not None:
            return Location(frame.filename, frame.lineno)
    return begin_of(mod)


class _Standing:
    """Stands in for what is captured: for each slot once, under a name of its own."""

    def __init__(self, numbers_stay: bool) -> None:
        self.inputs: dict[Any, Input] = {}
        self.numbers: dict[Any, Number] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.values: dict[str, int | float] = {}
        self.places: dict[str, int] = {}
        self.ways: list[tuple[int, Way]] = []
        self.constants: list[tuple[int, Way, Any]] = []
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
            stand_in = torch.zeros((), dtype=value.dtype).expand(value.shape)
            self.inputs[slot] = Input(name, stand_in, asks_for_gradient(value))
            return self.inputs[slot].stand_in
        self.values[name] = value
        kind = torch.int64 if isinstance(value, int) else torch.float64
        is_natural = isinstance(value, int) and value >= 0
        self.numbers[slot] = Number(name, _NumberTensor(torch.tensor(value, dtype=kind)), is_natural)
        return value if self._numbers_stay else self.numbers[slot].stand_in

    def sizes(self) -> dict[str, tuple[str, ...]]:
        """The names of the dimensions of each tensor, which are those of nothing else."""
        taken, found = {AXIS, *self.tensors, *self.values}, {}
        for name, tensor in self.tensors.items():
            wanted = (dimension(name, axis, tensor.ndim) for axis in range(tensor.ndim))
            found[name] = tuple(free_name(each, taken, is_argument=False) for each in wanted)
            taken |= {*found[name]}
        return found

    def constant(self, value: Any, way: Way) -> None:
        """Remember what the trace holds for."""
        self.constants.append((self.root, way, value))


def _left_to_tensors(name: str) -> Callable[..., Any]:
    """A comparison that the other tensor makes: `q < 3` and `3 > q` are both `q < 3` to torch."""
    compare = getattr(torch.Tensor, name)
    return lambda number, other: NotImplemented if type(other) is torch.Tensor else compare(number, other)


# Stands in for a number, which it says that it is. As a key it would be another one than the number, so it is none.
_NumberTensor: Any = type(
    "_NumberTensor",
    (torch.Tensor,),
    {
        "__torch_function__": torch._C._disabled_torch_function_impl,
        "__class__": property(lambda self: float if self.dtype.is_floating_point else int),
        "__hash__": None,
        **{f"__{name}__": _left_to_tensors(f"__{name}__") for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    },
)
