"""The attention of traced mods: rendered and imported once for each code and kind of captured values, kept on disk."""

from __future__ import annotations

import enum
import gc
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import SimpleNamespace
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_scalar

from flashgen.flex.apart import Shape, put_together, taken_apart
from flashgen.flex.captures import Captured, capture
from flashgen.flex.derived import Derivation
from flashgen.flex.kept import kept_module
from flashgen.flex.mods import Mod
from flashgen.flex.parts import Way, name_of
from flashgen.flex.reading import MADE_INSIDE, follow, is_made_inside
from flashgen.flex.recent import Recent
from flashgen.flex.spec import meaning
from flashgen.spec.names import module_problem

# Where each length of a call stands among its sizes.
_SIZES = {"batch": 0, "heads": 1, "q_len": 2, "kv_len": 3}
_COMPARED = (bool, int, float, str, type(None), enum.Enum)


@dataclass(frozen=True)
class TensorArgument:
    """A tensor: its name, its place among the captured values and what is made of them, and the dimensions of a known
    length, as pairs of axis and place among the sizes of a call.
    """

    name: str
    place: int
    sized: tuple[tuple[int, int], ...]

    def of(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """The tensor as the variant takes it: no longer than the call."""
        for axis, size in self.sized:
            if tensor.shape[axis] > sizes[size]:
                tensor = tensor.narrow(axis, 0, sizes[size])
        return tensor


@dataclass(frozen=True)
class Kernels:
    """A variant's `attention`, and where its arguments are among the captured values.

    It holds for the values of `fixed` numbers and the shapes of `sized` tensors alone, both by their places. `ways` are
    those from the mods to the values, `constants` those to values that are the same in all mods that it serves.
    `derivation` makes other tensors of the values; of those that are `unread` the gradients are zeros.
    """

    attention: Callable[..., Any]
    tensors: tuple[TensorArgument, ...]
    numbers: tuple[tuple[str, int], ...]
    fixed: tuple[tuple[int, int | float], ...]
    sized: tuple[tuple[int, torch.Size], ...]
    ways: tuple[tuple[int, Way], ...]
    constants: tuple[tuple[int, Way, Any], ...]
    derivation: Derivation
    unread: tuple[int, ...]

    def serves(self, values: Sequence[Any]) -> bool:
        """Whether it holds for these captured values."""
        if not self.fixed and not self.sized:
            return True
        is_same = all(values[place] == value for place, value in self.fixed)
        return is_same and all(values[place].shape == shape for place, shape in self.sized)

    def arguments(self, values: Sequence[Any], sizes: Sequence[int], device: torch.device) -> dict[str, Any]:
        """The keyword arguments of a call."""
        if self.derivation.results:
            values = [*values, *self.derivation.of(values, device)]
        found = {name: values[place] for name, place in self.numbers}
        for tensor in self.tensors:
            found[tensor.name] = tensor.of(values[tensor.place], sizes)
        return found

    def beside(self, query: torch.Tensor, values: Sequence[Any]) -> torch.Tensor:
        """The queries, behind which autograd finds what is unread."""
        for place in self.unread:
            # The sum of nothing.
            query = query + values[place].expand(0, *values[place].shape).sum().to(query.dtype)
        return query


@dataclass
class _Family:
    """The kernels of one code and kind of captured values; `kept` keeps what the key names."""

    kept: list[Any]
    members: list[Kernels]


_families: dict[tuple[Any, ...], _Family] = {}
_recent: dict[bool, Recent[Kernels]] = {False: Recent(), True: Recent()}
_building = Lock()
# Kernels that torch.compile has asked for, by name.
_compiled_in = SimpleNamespace()


def _begin_anew() -> None:
    """In a process that was forked while another thread was building, which is not there to end it."""
    global _building
    _building = Lock()


os.register_at_fork(after_in_child=_begin_anew)


def _let_go(phase: str, info: Mapping[str, int]) -> None:
    """A mod that reads a module which has it would never go with it: what is remembered of the mod has the module.
    A full collection finds those that nobody else has; of the others it is read again what they capture.
    """
    if phase == "start" and info["generation"] == 2:
        for recent in _recent.values():
            recent.forget()


gc.callbacks.append(_let_go)


def kernels_for(
    score_mod: Mod | None, mask_mod: Mod | None, many_queries: bool, like: Mod | None = None
) -> tuple[Kernels, list[Any]]:
    """The kernels of two mods, and the values that these capture now.

    torch.compile finds them by `like` in the place of a mask mod that has what is made in its graph.
    """
    if torch.compiler.is_compiling():
        shape, leaves = taken_apart((score_mod, mask_mod if like is None else like))
        made_inside = [each for each in leaves if is_made_inside(each)]
        if any(each.__code__.co_freevars for each in made_inside):
            torch._dynamo.graph_break(msg=MADE_INSIDE)
        kernels = getattr(_compiled_in, _name_of(many_queries, shape, *map(_as_constant, leaves)))
        if made_inside and kernels.ways:
            torch._dynamo.graph_break(msg=MADE_INSIDE)
        mods = score_mod, mask_mod
        values = [follow(mods[root], way) for root, way in kernels.ways]
        # So that it compiles again for others.
        assert kernels.serves(values)
        assert all(follow(mods[root], way) == value for root, way, value in kernels.constants)
        return kernels, values
    return _found(score_mod, mask_mod, many_queries)


def _as_constant(leaf: Any) -> Any:
    """A number that torch.compile takes for any, with dynamic shapes, as the one that it is now."""
    return guard_scalar(leaf) if isinstance(leaf, int | float) else leaf


@torch.compiler.assume_constant_result
def _name_of(many_queries: bool, shape: Shape, *leaves: Any) -> str:
    """What torch.compile finds kernels by. It asks again where a captured value that it reads is of another kind."""
    score_mod, mask_mod = put_together(shape, iter(leaves))
    kernels, _ = _found(score_mod, mask_mod, many_queries)
    name = f"kernels_{id(kernels)}"
    setattr(_compiled_in, name, kernels)
    return name


def _found(score_mod: Mod | None, mask_mod: Mod | None, many_queries: bool) -> tuple[Kernels, list[Any]]:
    recent = _recent[many_queries]
    known = recent.get(score_mod, mask_mod)
    if known is not None and known[0].serves(known[1]):
        return known
    found = capture(score_mod, mask_mod)
    key = (many_queries, *found.key)
    kernels = _served(key, found.values)
    if kernels is None:
        with _building:
            kernels = _served(key, found.values)
            if kernels is None:
                kernels = _built(score_mod, mask_mod, many_queries, found)
                _families.setdefault(key, _Family(found.kept, [])).members.append(kernels)
    recent.keep(kernels, found, score_mod, mask_mod)
    return kernels, found.values


def forget() -> None:
    """Forget all kernels; those on disk stay."""
    _families.clear()
    _recent.update({many_queries: Recent() for many_queries in _recent})


def _served(key: tuple[Any, ...], values: Sequence[Any]) -> Kernels | None:
    """What was built for these captured values."""
    family = _families.get(key)
    return None if family is None else next((each for each in family.members if each.serves(values)), None)


def _built(score_mod: Mod | None, mask_mod: Mod | None, many_queries: bool, found: Captured) -> Kernels:
    name = variant_name(score_mod if score_mod is not None else mask_mod)
    traced = meaning(score_mod, mask_mod, name, many_queries, found.names)
    module = kept_module(_for_any(traced.spec, traced.numbers), "flex")
    tensors = tuple(
        TensorArgument(
            each,
            traced.places[each],
            tuple(
                (axis, _SIZES[size]) for axis, size in enumerate(traced.spec["inputs"][each]["shape"]) if size in _SIZES
            ),
        )
        for each in traced.tensors
    )
    numbers = tuple((each, traced.places[each]) for each in traced.numbers)
    fixed = tuple((place, found.values[place]) for place in traced.fixed)
    sized = tuple((place, found.values[place].shape) for place in traced.sized)
    # What torch.compile can compare; a NaN is equal to nothing.
    constants = tuple(each for each in traced.constants if isinstance(each[2], _COMPARED) and each[2] == each[2])
    return Kernels(
        module.attention,
        tensors,
        numbers,
        fixed,
        sized,
        tuple(traced.ways),
        constants,
        traced.derivation,
        traced.unread,
    )


def _for_any(spec: Mapping[str, Any], numbers: Collection[str]) -> dict[str, Any]:
    """The spec for all numbers of the kind of these params, which each call passes: a process that captures others
    finds it on disk. The sign of an integer is of its kind.
    """
    params = {name: dict(param) if name in numbers else param for name, param in spec.get("params", {}).items()}
    for name in numbers:
        value = params[name]["value"]
        params[name]["value"] = 1.0 if isinstance(value, float) else type(value)((value > 0) - (value < 0))
    return {**spec, **({"params": params} if params else {})}


def variant_name(mod: Any) -> str:
    """A variant's name by that of a mod."""
    own = "attention" if mod is None else name_of(mod)
    letters = "".join(each if each.isascii() and each.isalnum() else "_" for each in own.lower()).strip("_")
    name = "mod" if own == "<lambda>" or not letters[:1].isalpha() else letters[:48]
    return name if module_problem(name) is None else f"{name}_mod"
