"""Which inputs are drawn positive: those with which a formula is finite, as the logarithm of a learned rate is.

A spec that gives an input's `range` decides by itself. For the others the formula is evaluated at random places, first
with values around 0.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from functools import lru_cache

from flashgen.lang.evaluate import Value, evaluator
from flashgen.lang.nodes import inputs
from flashgen.spec.variant import Input, Variant

# Far from 0, where a logarithm and a quotient are steep: what is drawn is LEAST + |normal| / 2.
LEAST = 0.1
_LENGTHS = (1, 40, 1000, 8192)
_PLACES = 50
_SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 64, "v_head_dim": 64}


@lru_cache(maxsize=64)
def drawn_positive(variant: Variant) -> tuple[str, ...]:
    """The names of the inputs; none where values around 0 will do, or positive ones are no better."""
    read = inputs(variant.score)
    free = tuple(
        t.name
        for t in variant.inputs
        if t.name in read and "float" in t.dtype and t.range is None and t.default is None
    )
    if not free or _is_finite(variant, ()):
        return ()
    # Minus infinity hides a pair, as a mask does; what never gives it is the better choice.
    for everywhere in (True, False):
        for names in (*((name,) for name in free), free):
            if _is_finite(variant, names, everywhere):
                return names
    return ()


def note_of(variant: Variant) -> str:
    """A sentence about them; empty where there is none."""
    names = drawn_positive(variant)
    if not names:
        return ""
    these = " and ".join(names)
    return (
        f"{these} {'was' if len(names) == 1 else 'were'} drawn positive, since the formula is not finite with values "
        "around 0; an input's key `range: [low, high]` says what to draw"
    )


def _is_finite(variant: Variant, positive: tuple[str, ...], everywhere: bool = False) -> bool:
    """Whether the score is at random places that the mask shows, or unless `everywhere` minus infinity."""
    score, mask = evaluator(variant.score), evaluator(variant.mask)
    draw = random.Random(0)
    for length in _LENGTHS:
        tensors = {t.name: _drawn(t, t.name in positive, length, draw) for t in variant.inputs}
        for _ in range(_PLACES):
            place = _place(variant, length, draw)
            value = score(place, tensors)  # type: ignore[arg-type]
            if (everywhere or value != -math.inf) and not math.isfinite(value) and mask(place, tensors):  # type: ignore[arg-type]
                return False
    return True


def _place(variant: Variant, length: int, draw: random.Random) -> Mapping[str, Value]:
    h = draw.randrange(_SIZES["heads"])
    return {
        **_SIZES, "q_len": length, "kv_len": length,
        **dict.fromkeys(variant.dim_names, 8), **{p.name: p.value for p in variant.runtime_params},
        "score": draw.gauss(0.0, 1.0), "b": draw.randrange(_SIZES["batch"]), "h": h, "kv_h": h // 2,
        "q": draw.randrange(length), "k": draw.randrange(length),
    }  # fmt: skip


def _drawn(tensor: Input, positive: bool, length: int, draw: random.Random) -> _Drawn | Value:
    return (_Drawn if tensor.dims else _value)(tensor, positive, length, draw)


class _Drawn:
    """A tensor of any size whose elements are drawn when they are read, the same at the same place."""

    def __init__(
        self, tensor: Input, positive: bool, length: int, draw: random.Random, place: tuple[int, ...] = (),
        known: dict[tuple[int, ...], Value] | None = None,
    ) -> None:  # fmt: skip
        self._arguments = (tensor, positive, length, draw)
        self._place, self._known = place, {} if known is None else known

    def __len__(self) -> int:
        return 2**31

    def __getitem__(self, index: int) -> _Drawn | Value:
        place = (*self._place, index)
        tensor = self._arguments[0]
        if len(place) < len(tensor.dims):
            return _Drawn(*self._arguments, place, self._known)
        if place not in self._known:
            self._known[place] = _value(*self._arguments)
        return self._known[place]


def _value(tensor: Input, positive: bool, length: int, draw: random.Random) -> Value:
    if tensor.range is not None:
        value = draw.uniform(*tensor.range)
        return value if "float" in tensor.dtype else round(value)
    if tensor.dtype == "bool":
        return draw.random() < 0.5
    if "float" in tensor.dtype:
        return LEAST + abs(draw.gauss(0.0, 0.5)) if positive else draw.gauss(0.0, 0.5)
    return draw.randrange(draw.choice((2, 8, length + 1)))
