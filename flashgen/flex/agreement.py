"""Whether two specs of the same mods compute the same, looked at in some places."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from flashgen.lang.evaluate import Value, evaluator
from flashgen.spec.variant import Input, Variant

_PLACES = 24
_LENGTH = 997


def agree(one: Variant, other: Variant) -> bool:
    """Whether they see the same pairs and give them the same scores, whatever is in the tensors."""
    return all(_alike(x, y) for x, y in zip(_answers(one), _answers(other), strict=True))


def _answers(variant: Variant) -> Iterator[Value | None]:
    """The score at each place, None where a pair is hidden."""
    score, mask = evaluator(variant.score), evaluator(variant.mask)
    tensors: Any = {each.name: _drawn(each, len(each.dims), each.name) for each in variant.inputs}
    for place in range(_PLACES):
        variables = _Variables(place, {each.name: each.value for each in variant.params})
        yield score(variables, tensors) if mask(variables, tensors) else None


def _alike(x: Value | None, y: Value | None) -> bool:
    if x is None or y is None:
        return x is y
    return (x != x and y != y) or math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-9)


class _Variables(dict):
    """The positions, sizes and whatever else a spec has a name for, at one place."""

    def __init__(self, place: int, params: Mapping[str, Value]) -> None:
        super().__init__(params)
        drawn = random.Random(place)
        self.update(score=drawn.gauss(0, 2), b=drawn.randrange(3), h=drawn.randrange(8))
        self.update(q=drawn.randrange(99), k=drawn.randrange(99))

    def __missing__(self, name: str) -> int:
        return 100 + zlib.crc32(name.encode()) % 100


class _Row:
    """What is left of a tensor whose elements follow from their places."""

    def __init__(self, tensor: Input, rank: int, place: str) -> None:
        self._tensor, self._rank, self._place = tensor, rank, place

    def __len__(self) -> int:
        return _LENGTH

    def __getitem__(self, index: int) -> Any:
        return _drawn(self._tensor, self._rank - 1, f"{self._place} {index}")


def _drawn(tensor: Input, rank: int, place: str) -> Any:
    if rank:
        return _Row(tensor, rank, place)
    drawn = random.Random(place)
    if "float" in tensor.dtype:
        return drawn.gauss(0, 1)
    return drawn.randrange(2) == 1 if tensor.dtype == "bool" else drawn.randrange(9)
