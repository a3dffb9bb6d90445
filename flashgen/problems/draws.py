"""How inputs are drawn with which a formula has no answer around 0: positive, as the logarithm of a learned rate asks
for, or 0 or 1, as a mask that is added to scores does.

A spec that gives an input's `range` decides by itself. For the others the formula is evaluated at random places, first
with values around 0.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import combinations, product

from flashgen.lang.evaluate import Value, evaluator
from flashgen.lang.traversal import inputs
from flashgen.spec.variant import Input, Variant

POSITIVE, SWITCH = "positive", "0 or 1"
# Far from 0, where a logarithm and a quotient are steep: what is drawn is LEAST + |normal| / 2.
LEAST = 0.1
# As far as any of some millions of them goes.
_FARTHEST = 6.0
# Beyond it a score is infinite.
_LARGEST = 3.4028234663852886e38
_LENGTHS = (1, 40, 1000, 8192)
# Places that the mask shows, and how many are tried to find so many.
_PLACES, _TRIES = 50, 1000
# Shares of places that are less than this apart are so by chance.
_NOISE = 0.1
_SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 64, "v_head_dim": 64}


@lru_cache(maxsize=64)
def drawn_as(variant: Variant) -> Mapping[str, str]:
    """POSITIVE or SWITCH for names of inputs; nothing where values around 0 will do, or no others are better."""
    read = inputs(variant.score)
    free = [t for t in variant.inputs if t.name in read and t.range is None and t.default is None and t.dtype != "bool"]
    if not free or _share_lost(variant, {}, _Ends.HIDDEN) is not None:
        return {}
    choices = list(_choices(free))
    # Minus infinity hides a pair, as a mask does; what never gives it is the better choice.
    for borne in (_Ends.FINITE, _Ends.HIDDEN):
        for chosen in choices:
            if _share_lost(variant, chosen, borne) is not None:
                return chosen
    # Where two masks meet, each of the least number of float32, their sum is minus infinity too.
    shares = [(_share_lost(variant, chosen, _Ends.BELOW), chosen) for chosen in ({}, *choices)]
    known = [(share, chosen) for share, chosen in shares if share is not None]
    least = min((share for share, _ in known), default=0.0)
    return next((chosen for share, chosen in known if share <= least + _NOISE), {})


def _choices(free: Sequence[Input]) -> Iterator[Mapping[str, str]]:
    """Of one input, of two, of three, of all."""
    kinds = {t.name: (POSITIVE, SWITCH) if "float" in t.dtype else (SWITCH,) for t in free}
    for count in (1, 2, 3):
        for kind in product((POSITIVE, SWITCH), repeat=count):
            for names in combinations(kinds, count):
                if all(each in kinds[name] for name, each in zip(names, kind, strict=True)):
                    yield dict(zip(names, kind, strict=True))
    yield {name: POSITIVE for name, kind in kinds.items() if POSITIVE in kind}
    yield dict.fromkeys(kinds, SWITCH)


def note_of(variant: Variant) -> str:
    """A sentence about them; empty where there is none."""
    found = drawn_as(variant)
    if not found:
        return ""
    by_kind = {kind: [name for name, each in found.items() if each == kind] for kind in (POSITIVE, SWITCH)}
    drawn = [
        f"{' and '.join(names)} {'was' if len(names) == 1 else 'were'} drawn {kind}"
        for kind, names in by_kind.items()
        if names
    ]
    others = "others" if by_kind[SWITCH] else "values around 0"
    return (
        f"{', '.join(drawn)}, since the formula is not finite with {others}; an input's key `range: [low, high]` says "
        "what to draw"
    )


class _Ends(IntEnum):
    """What a score is: finite in float32, minus infinity, less than float32 holds, something that hides nothing."""

    FINITE, HIDDEN, BELOW, WRONG = range(4)

    @classmethod
    def of(cls, value: Value) -> _Ends:
        if value == -math.inf:
            return cls.HIDDEN
        if abs(value) <= _LARGEST:
            return cls.FINITE
        return cls.BELOW if value < 0 else cls.WRONG


def _share_lost(variant: Variant, drawn: Mapping[str, str], borne: _Ends) -> float | None:
    """At which share of random places that the mask shows the score is not finite; None where one ends worse than is
    borne."""
    score, mask = evaluator(variant.score), evaluator(variant.mask)
    draw = random.Random(0)
    ends: list[_Ends] = []
    for length in _LENGTHS:
        seen = 0
        for _ in range(_TRIES):
            # Other values at each: those of a few heads may all be fine.
            tensors = {t.name: _drawn(t, drawn.get(t.name, ""), length, draw) for t in variant.inputs}
            place = _place(variant, length, draw)
            if not mask(place, tensors):
                continue
            ends.append(_Ends.of(score(place, tensors)))
            if ends[-1] > borne:
                return None
            if (seen := seen + 1) == _PLACES:
                break
    return sum(end is not _Ends.FINITE for end in ends) / max(len(ends), 1)


def _place(variant: Variant, length: int, draw: random.Random) -> Mapping[str, Value]:
    h = draw.randrange(_SIZES["heads"])
    # Where distances and positions are 0, as random ones hardly ever are, powers and logarithms have their poles.
    q = draw.choice((0, length - 1, draw.randrange(length)))
    k = draw.choice((0, q, draw.randrange(length), draw.randrange(length)))
    return {
        **_SIZES, "q_len": length, "kv_len": length,
        **dict.fromkeys(variant.dim_names, 8), **{p.name: p.value for p in variant.runtime_params},
        "score": draw.gauss(0.0, 1.0), "b": draw.randrange(_SIZES["batch"]), "h": h, "kv_h": h // 2, "q": q, "k": k,
    }  # fmt: skip


def _drawn(tensor: Input, kind: str, length: int, draw: random.Random) -> _Drawn | Value:
    return (_Drawn if tensor.dims else _value)(tensor, kind, length, draw)


class _Drawn:
    """A tensor of any size whose elements are drawn when they are read, the same at the same place."""

    def __init__(
        self, tensor: Input, kind: str, length: int, draw: random.Random, place: tuple[int, ...] = (),
        known: dict[tuple[int, ...], Value] | None = None,
    ) -> None:  # fmt: skip
        self._arguments = (tensor, kind, length, draw)
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


def _value(tensor: Input, kind: str, length: int, draw: random.Random) -> Value:
    if tensor.range is not None:
        value = draw.uniform(*tensor.range)
        return value if "float" in tensor.dtype else round(value)
    if tensor.dtype == "bool":
        return draw.random() < 0.5
    if kind == SWITCH:
        return draw.randrange(2)
    if kind == POSITIVE:
        return LEAST + draw.choice((abs(draw.gauss(0.0, 0.5)), 0.5 * _FARTHEST))
    if "float" in tensor.dtype:
        return draw.gauss(0.0, 0.5)
    return draw.randrange(draw.choice((2, 8, length + 1)))
