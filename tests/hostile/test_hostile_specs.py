"""Specs that are wrong in every way at every place: each is refused with a message that names the place, at once."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from test_hostile_text import BASE

from flashgen.errors import SpecError
from flashgen.printable import is_printable
from flashgen.spec import load
from flashgen.spec.digest import digest

# For one spec; what was found before these tests took minutes, or never ended.
SECONDS = 2.0

Place = tuple[str | int, ...]

FULL: dict[str, Any] = copy.deepcopy(BASE) | {
    "allow_tf32": False,
    "approximate": True,
    "tune": {
        "shapes": [
            {"batch": 1, "heads": 4, "kv_heads": 2, "q_len": 64, "kv_len": 64, "head_dim": 64, "v_head_dim": 64}
        ],
        "inputs": {"doc": {"segments": 8}},
    },
}
FULL["inputs"]["rel"]["range"] = [-1, 1]


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def looped() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("asked for its repr")


WRONG: dict[str, Any] = {
    "nothing": None,
    "a bool": True,
    "a text": "no such thing",
    "an empty text": "",
    "spaces": " \t",
    "NUL": "a\0b",
    "escapes": "\x1b[2J\u202e",
    "a surrogate": "\ud800",
    "Python": "__import__('os').system('touch P')",
    "parentheses": "(" * 5000,
    "a long text": "q + " * 20_000 + "q",
    "a long name": "x" * 10_000,
    "zero": 0,
    "a negative number": -7,
    "a fraction": 2.5,
    "no number": math.nan,
    "infinity": math.inf,
    "a huge number": 10**400,
    "65 bits": 2**64,
    "an empty list": [],
    "a list": [1, "two"],
    "a long list": [0] * 100_000,
    "a deep list": nested(5000),
    "a list of itself": looped(),
    "an empty mapping": {},
    "a mapping": {"no such key": 1},
    "a mapping of numbers": {1: 2},
    "bytes": b"\xff",
    "a set": {1},
    "a complex number": 1j,
    "a function": print,
    "an object": Unprintable(),
}

PROSE = {"a text", "an empty text", "spaces", "Python", "parentheses", "a long text", "a long name"}
NUMBERS = {"zero", "a negative number", "a fraction", "infinity"}

# What is right, after all, at a place. Text is not listed: it may be a name, and then another place misses it.
RIGHT: dict[str, set[str]] = {
    "description": PROSE,
    **{key: {"a bool"} for key in ("causal", "allow_tf32", "approximate", "inputs.rel.grad", "params.shift.runtime")},
    **{key: {"zero"} for key in ("window.left", "window.right")},
    "softcap": {"a fraction"},
    "params.W": {"a bool", "zero"},
    "params.cap": {"a fraction"},
    **{key: {"a bool", *NUMBERS} for key in ("params.shift", "params.shift.value")},
    **{key: {"a list"} for key in ("inputs.doc.shape", "inputs.rel.shape", "inputs.off.shape")},
    "inputs.rel.range.0": {"zero", "a negative number"},
    "inputs.rel.range.1": {"zero", "a fraction"},
    "let.d": {"a bool", "zero", "a negative number"},
    "let.near": {"a bool"},
    **{key: {"an empty mapping"} for key in ("tune", "tune.inputs")},
}
# Where one is taken away, or is of another type, what reads it is wrong.
ELSEWHERE = {"params", "params.W", "inputs", "let", "let.near"}


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    if place:
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*place, key))


def with_value(place: Place, value: Any) -> dict[str, Any]:
    spec = copy.deepcopy(FULL)
    at: Any = spec
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    return spec


def test_the_whole_is_right() -> None:
    assert load(FULL).name == "everything"


@pytest.mark.parametrize("place", list(places(FULL)), ids=lambda place: ".".join(map(str, place)))
def test_a_wrong_value_is_refused_by_its_place_and_at_once(place: Place) -> None:
    where = ".".join(map(str, place))
    right = set()
    for name, value in WRONG.items():
        start = time.process_time()
        try:
            variant = load(with_value(place, value))
        except SpecError as error:
            text = str(error)
            assert text.startswith("<dict>") and is_printable(text) and len(text) < 1600, name
            assert where in ELSEWHERE or any(str(step) in text for step in place), name
        else:
            right.add(name)
            assert len(digest(variant)) == 12, name
        assert time.process_time() - start < SECONDS, name
    assert right == RIGHT.get(where, set())
