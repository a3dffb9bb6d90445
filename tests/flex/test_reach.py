"""A mod is told from others by what it can reach, all of that and nothing else."""

from __future__ import annotations

import argparse
import functools
import logging
import os
import re
from collections import ChainMap, UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flashgen.errors import ModError
from flashgen.flex import flex_attention, kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
calls, log = 0, logging.getLogger(__name__)


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 20, 16, generator=generator).to(DEVICE) for _ in range(3)]


def is_right(mod: Any, expected: Callable[..., Any]) -> None:
    """`expected` captures nothing that changes."""
    torch.testing.assert_close(flex_attention(*inputs(), mod), flex_attention(*inputs(), expected))


def inf(qkv: list[torch.Tensor]) -> Any:
    """Attention under a name that a mod has as a text."""
    return flex_attention(*qkv, hides)


def hides(score, b, h, q, k):
    return torch.where(q >= k, score, -float("inf"))


class Processor:
    """An object whose own call asks for attention by a method, and changes what no mod reads."""

    def __init__(self) -> None:
        self.steep, self.calls = 0.5, 0

    def score_mod(self, score, b, h, q, k):
        return score - self.steep * (q - k)

    def __call__(self, qkv: list[torch.Tensor]) -> Any:
        global calls
        calls += 1
        self.calls += 1
        return flex_attention(*qkv, self.score_mod)


class Distance(torch.nn.Module):
    def forward(self, distance: torch.Tensor) -> torch.Tensor:
        return distance * 0.25


class Layer(torch.nn.Module):
    """A module whose mod has its own `forward` among the names that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Distance()

    def score_mod(self, score, b, h, q, k):
        return score + self.net.forward(q - k)

    def forward(self, qkv: list[torch.Tensor]) -> Any:
        global calls
        calls += 1
        return flex_attention(*qkv, self.score_mod)


@pytest.mark.parametrize("attend", [Processor(), Layer(), inf], ids=["call", "forward", "global"])
def test_what_a_mod_does_not_reach_builds_nothing_anew(attend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = attend(inputs())
    monkeypatch.setattr(kernels, "meaning", None)
    for _ in range(2):
        assert torch.equal(attend(inputs()), first)


def by_wrapper(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Doubled:
    def __get__(self, owner: Any, _: Any) -> float:
        return 2 * owner.steep


class Above:
    def inherited(self, score, b, h, q, k):
        return score * self.steep


class Reaching(Above):
    """Methods that come to an attribute in as many ways as there are."""

    doubled = Doubled()

    def __init__(self, steep: float) -> None:
        self.steep = steep
        self.others, self.name = [self], "steep"

    @property
    def halved(self) -> float:
        return self.steep / 2

    def __call__(self, score: torch.Tensor) -> torch.Tensor:
        return score * self.steep

    def __getitem__(self, _: int) -> float:
        return self.steep

    def by_call(self, score, b, h, q, k):
        return self(score)

    def by_index(self, score, b, h, q, k):
        return score * self[0]

    def by_text(self, score, b, h, q, k):
        return score * getattr(self, self.name)

    def by_dict(self, score, b, h, q, k):
        return score * self.__dict__["steep"]

    def by_function_inside(self, score, b, h, q, k):
        return (lambda: score * self.steep)()

    def by_sum(self, score, b, h, q, k):
        return score * sum(self.steep for _ in range(2))

    def by_property(self, score, b, h, q, k):
        return score * self.halved

    def by_descriptor(self, score, b, h, q, k):
        return score * self.doubled

    def by_method(self, score, b, h, q, k):
        return self.by_property(score, b, h, q, k)

    def by_another_of_it(self, score, b, h, q, k):
        return score * self.others[0].steep

    def by_call_of_another_of_it(self, score, b, h, q, k):
        return self.others[0](score)

    def inherited(self, score, b, h, q, k):
        return super().inherited(score, b, h, q, k)

    @by_wrapper
    def wrapped(self, score, b, h, q, k):
        return score * self.steep


def times(factor: float) -> Callable[..., torch.Tensor]:
    return lambda score, b, h, q, k: score * factor


FACTORS = {"by_property": 0.5, "by_method": 0.5, "by_descriptor": 2.0, "by_sum": 2.0}
WAYS = [name for name in vars(Reaching) if name.startswith("by_") or name in ("inherited", "wrapped")]


@pytest.mark.parametrize("way", WAYS)
def test_all_that_a_method_reaches_is_read_anew(way: str) -> None:
    owner, factor = Reaching(3.0), FACTORS.get(way, 1.0)
    mod = getattr(owner, way)
    is_right(mod, times(3.0 * factor))
    owner.steep = -0.5
    is_right(mod, times(-0.5 * factor))
    is_right(getattr(Reaching(0.25), way), times(0.25 * factor))


def by_logger(score, b, h, q, k):
    log.debug("a score")
    return score * 2


def by_pattern(score, b, h, q, k):
    return score * 2 if re.match("a", "ab") else score


@pytest.mark.timeout(30)
@pytest.mark.parametrize("mod", [by_logger, by_pattern])
def test_the_code_of_pythons_library_is_not_gone_through(mod: Any) -> None:
    is_right(mod, times(2.0))


class Settings(UserDict):
    pass


def by_item(held: Any) -> Any:
    return lambda score, b, h, q, k: score * float(held["weight"])


def by_attribute(held: Any) -> Any:
    return lambda score, b, h, q, k: score * held.weight


def by_environment(score, b, h, q, k):
    return score * float(os.environ["FLASHGEN_TEST_WEIGHT"])


HOLDERS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "UserDict": (UserDict(weight=2.0), by_item, lambda held: held.update(weight=5.0)),
    "of one's own": (Settings(weight=2.0), by_item, lambda held: held.update(weight=5.0)),
    "ChainMap": (ChainMap({"weight": 2.0}), by_item, lambda held: held.update(weight=5.0)),
    "Namespace": (argparse.Namespace(weight=2.0), by_attribute, lambda held: setattr(held, "weight", 5.0)),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_objects_of_pythons_library_hold_is_read_anew(name: str) -> None:
    held, reading, change = HOLDERS[name]
    mod = reading(held)
    is_right(mod, times(2.0))
    change(held)
    is_right(mod, times(5.0))


def test_variables_of_pythons_library_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for weight in ("2", "5"):
        monkeypatch.setenv("FLASHGEN_TEST_WEIGHT", weight)
        is_right(by_environment, times(float(weight)))


def test_paths_are_told_apart() -> None:
    for path in (Path("a/b"), Path("a/b/c/d")):
        is_right(lambda score, b, h, q, k, path=path: score * len(path.parts), times(len(path.parts)))


def test_what_is_too_large_to_tell_apart_is_refused() -> None:
    table = [{"weight": number} for number in range(40_000)]
    with pytest.raises(ModError, match=r"captures more than 100000 values, .* by way of table; expected"):
        flex_attention(*inputs(), lambda score, b, h, q, k: score * table[3]["weight"])


def doubles(score):
    return score * 2


def quarters(score):
    return score * 0.25


def by_helper(score, b, h, q, k):
    return doubles(score)


def test_code_that_is_replaced_in_place_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    is_right(by_helper, times(2.0))
    monkeypatch.setattr(doubles, "__code__", quarters.__code__)
    is_right(by_helper, times(0.25))
    monkeypatch.setattr(by_helper, "__code__", (lambda score, b, h, q, k: score * 3).__code__)
    is_right(by_helper, times(3.0))


def by_builtin(score, b, h, q, k):
    return score * round(2.4)


def test_a_global_that_comes_to_hide_a_builtin_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    is_right(by_builtin, times(2.0))
    monkeypatch.setitem(globals(), "round", lambda number: number * 10)
    is_right(by_builtin, times(24.0))
    monkeypatch.delitem(globals(), "round")
    is_right(by_builtin, times(2.0))
