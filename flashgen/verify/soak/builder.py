"""A spec in the making: what is declared, what expressions may name, and the score and the masks so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from keyword import kwlist
from random import Random
from typing import Any

from flashgen.codegen.words import words
from flashgen.spec.names import name_problem
from flashgen.verify.soak.case import Number, Recipe
from flashgen.verify.soak.formula import size
from flashgen.verify.soak.pieces import Piece, Scope, Tensor

POSITIONS = ("b", "h", "kv_h", "q", "k")
SIZES = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")

# Harmless names.
NAMES = ("W", "n", "doc", "off", "table", "bias", "pad", "reach", "flag", "centre", "x", "lower", "ids", "Kept", "r2")
# What the oracle reads as constants.
_CONSTANTS = frozenset({"true", "false"})


@cache
def kernel_names() -> tuple[str, ...]:
    """The words of generated code that a spec may use as names of its own, and the oracle's parser, Python's, reads."""
    found = words() - _CONSTANTS - {*kwlist}
    return tuple(sorted(word for word in found if name_problem(word) is None))


@dataclass
class Builder:
    """Draws a spec; `sizes` are those of the call."""

    random: Random
    sizes: dict[str, int]
    align: str
    params: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Number] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    recipes: dict[str, Recipe] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    lets: dict[str, str] = field(default_factory=dict)
    scores: list[str] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    scalars: list[Piece] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        shift = 0 if self.align == "top_left" else self.sizes["kv_len"] - self.sizes["q_len"]
        most = {
            "b": self.sizes["batch"] - 1, "h": self.sizes["heads"] - 1, "kv_h": self.sizes["kv_heads"] - 1,
            "k": self.sizes["kv_len"] - 1,
        }  # fmt: skip
        self.scalars += [Piece(name, "int", 0, high, tight=True) for name, high in most.items()]
        # Positions are what expressions are about.
        self.scalars += [Piece("q", "int", shift, shift + self.sizes["q_len"] - 1, tight=True)] * 6
        self.scalars += [Piece("k", "int", 0, most["k"], tight=True)] * 5
        self.scalars += [Piece(name, "int", self.sizes[name], self.sizes[name], tight=True) for name in SIZES]

    @property
    def scope(self) -> Scope:
        """What there is to name, without score."""
        return Scope(self.scalars, self.tensors)

    def roll(self, chance: float) -> bool:
        return self.random.random() < chance

    def pick(self, *items: Any) -> Any:
        return self.random.choice(items)

    def name(self, *like: str) -> str:
        """A name that is not taken: one of these, any, or one of the kernels' own."""
        pool = list(like) if like and self.roll(0.6) else list(NAMES)
        if self.roll(0.35):
            pool = list(kernel_names())
        free = [name for name in pool if name not in self.taken] or [f"u{len(self.taken)}"]
        name = self.random.choice(free)
        self.taken.add(name)
        return name

    def param(self, value: Number, *like: str, runtime: bool | None = None) -> str:
        """A param that has this value in the call, baked or, three times out of ten, given at run time."""
        name = self.name(*like)
        runtime = self.roll(0.3) if runtime is None else runtime
        kind = "bool" if isinstance(value, bool) else type(value).__name__
        if runtime:
            # The call gives it: the spec's value is the default alone.
            default = self.pick(value, {"bool": True, "int": 3, "float": 0.5}[kind])
            self.params[name] = {"value": default, "runtime": True}
            self.values[name] = value
        else:
            self.params[name] = value
        exact = kind != "float" or (abs(value) < 2**14 and float(4 * value).is_integer())
        low, high = (0.0, 1.0) if kind == "bool" else (float(value), float(value))
        self.scalars.append(Piece(name, kind, low, high, exact, tight=True))
        return name

    def input(
        self, shape: list[str | int], dtype: str, recipe: Recipe, *like: str, grad: bool = False, exact: bool = True
    ) -> str:
        """An input; a dimension that is a name nobody knows is bound to `self.dims`."""
        name = self.name(*like)
        self.inputs[name] = {"shape": shape, "dtype": dtype} | ({"grad": True} if grad else {})
        self.recipes[name] = recipe
        known = self.sizes | self.dims | {n: int(v) for n, v in self.known().items() if isinstance(v, int)}
        extents = tuple(size(extent, known) for extent in shape)
        kind = "bool" if dtype == "bool" else "float" if "float" in dtype else "int"
        low, high = self._bounds(recipe, dtype)
        fits = exact and kind == "float" and recipe.kind in ("quarters", "either") and max(-low, high) < 2**12
        self.tensors.append(Tensor(name, kind, extents, low, high, fits or kind != "float", grad))
        return name

    def dim(self, length: int, *like: str) -> str:
        """A name for a dimension of this length."""
        name = self.name(*like)
        self.dims[name] = length
        return name

    def named(self, dim: str) -> None:
        """From here on a dimension may be read in expressions."""
        self.scalars.append(Piece(dim, "int", self.dims[dim], self.dims[dim], tight=True))

    def let(self, text: str, *like: str, piece: Piece | None = None) -> str:
        name = self.name(*like)
        self.lets[name] = text
        if piece is not None:
            self.scalars.append(Piece(name, piece.type, piece.low, piece.high, piece.exact, piece.smooth, tight=True))
        return name

    def known(self) -> dict[str, Number]:
        """The params' values in the call."""
        baked = {name: form for name, form in self.params.items() if not isinstance(form, dict)}
        return baked | self.values

    def _bounds(self, recipe: Recipe, dtype: str) -> tuple[float, float]:
        if dtype == "bool":
            return 0.0, 1.0
        low, high = recipe.low, recipe.high
        if recipe.kind == "normal":
            low, high = low - 5 * high, low + 5 * high
        if recipe.kind == "outside":
            low, high = -1e8, 1e8
        # What an unsigned or small dtype cannot hold is clamped.
        ends = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(2**15), 2**15 - 1)}.get(dtype)
        if ends:
            low, high = max(low, ends[0]), min(high, ends[1])
        return min(low, high), max(low, high)
