"""What mods read of objects, by whatever way Python has: it is what it is now, as torch has it."""

from __future__ import annotations

import dataclasses
import enum
import functools
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextvars import ContextVar
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_calls import DEVICE, LENGTH, is_right
from torch.nn.attention.flex_attention import and_masks

from flashgen.flex import kernels


class Config:
    width = 2


class Slots:
    __slots__ = ("width",)

    def __init__(self, width: int) -> None:
        self.width = width


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    width: int


class Width(enum.IntEnum):
    narrow = 2
    wide = 9


class Side(enum.Enum):
    left = "left"
    right = "right"


class Twice:
    def __get__(self, owner: Any, _: Any) -> int:
        return 2 * owner.half


class Described:
    """Its width is worked out from another attribute, in each way that a class has for it."""

    by_descriptor = Twice()

    def __init__(self, half: int) -> None:
        self.half, self.others = half, {"listed": half}

    @property
    def width(self) -> int:
        return self.half + 1

    def __getattr__(self, name: str) -> int:
        try:
            return self.__dict__["others"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, _: int) -> int:
        return self.half

    def __call__(self, b, h, q, k):
        return (q - k).abs() < self.half


class Window:
    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self, b, h, q, k):
        return q - k < self.width


class Inherits(Described):
    def __call__(self, b, h, q, k):
        return super().__call__(b, h, q, k) | (k == 0)


class Shared:
    reach = 2

    @staticmethod
    def near(q, k):
        return (q - k).abs() < Config.width

    @classmethod
    def reached(cls, q, k):
        return k - q < cls.reach

    def __call__(self, b, h, q, k):
        return self.near(q, k) | self.reached(q, k)


class Documents:
    def __init__(self, length: int) -> None:
        self.doc = torch.arange(LENGTH, device=DEVICE) // length

    def __call__(self, b, h, q, k):
        return self.of(q) == self.of(k)

    def of(self, position):
        return self.doc[position]


class Both:
    def __init__(self, *masks: Any) -> None:
        self.masks = masks

    def __call__(self, b, h, q, k):
        return functools.reduce(torch.logical_and, [mask(b, h, q, k) for mask in self.masks])


class Bare:
    def wide(self) -> int:
        return 3


class Plain:
    """Nothing yet, its objects neither."""


class Numbered:
    w2 = 7


class Lazy(torch.nn.Module):
    def forward(self, b, h, q, k):
        widths = getattr(self, "widths", None)
        return k <= q if widths is None else (q - k).abs() < widths[h]


class Replaced:
    def __call__(self, b, h, q, k):
        return q >= k


def width_of(config: Any) -> int:
    return config.width


def widened(x: Any) -> Any:
    return x + 1


def by_attribute_if_any(config: Any) -> Callable[..., torch.Tensor]:
    return lambda b, h, q, k: (q - k).abs() < getattr(config, "width", 4)


def by_own_attribute(b, h, q, k):
    return (q - k).abs() < by_own_attribute.width


def by_attribute(config: Any) -> Callable[..., torch.Tensor]:
    return lambda b, h, q, k: (q - k).abs() < config.width


def by_item(held: Any, key: Any) -> Callable[..., torch.Tensor]:
    return lambda b, h, q, k: (q - k).abs() < held[key]


def by_value(held: Any) -> Callable[..., torch.Tensor]:
    return lambda b, h, q, k: (q - k).abs() < float(held)


def by_all(held: Any) -> Callable[..., torch.Tensor]:
    return lambda b, h, q, k: functools.reduce(torch.logical_or, [k == each for each in held], q >= k)


slots, namespace, described, shared = Slots(3), SimpleNamespace(width=2), Described(3), Shared()
inherits, items, queue, words = Inherits(2), defaultdict(int, width=3), deque([3, 4]), {1, 5}
of_thread, of_context, behind = threading.local(), ContextVar("width", default=3), weakref.ref(described)
of_thread.width = 3
plain = Plain()
bare, empty, full, bare_slots = Bare(), SimpleNamespace(), SimpleNamespace(width=2), Slots.__new__(Slots)
sided, layers = SimpleNamespace(side=Side.left), torch.nn.Sequential(torch.nn.ReLU())
lazy, numbered = Lazy(), SimpleNamespace(w0=2, w1=3)
by_own_attribute.width = 3
by_layer = torch.nn.ParameterList([torch.nn.Parameter(torch.full((2,), 0.5, device=DEVICE)) for _ in range(2)])
CHANGES: dict[str, tuple[Any, Callable[[], Any]]] = {
    "class": (by_attribute(Config), lambda: setattr(Config, "width", 7)),
    "slots": (by_attribute(slots), lambda: setattr(slots, "width", 9)),
    "namespace": (by_attribute(namespace), lambda: setattr(namespace, "width", 8)),
    "property": (by_attribute(described), lambda: setattr(described, "half", 5)),
    "descriptor": (lambda b, h, q, k: q - k < described.by_descriptor, lambda: setattr(described, "half", 1)),
    "getattr": (lambda b, h, q, k: q - k < described.listed, lambda: described.others.update(listed=9)),
    "getitem": (by_item(described, 0), lambda: setattr(described, "half", 9)),
    "super": (inherits, lambda: setattr(inherits, "half", 6)),
    "static": (shared, lambda: setattr(Config, "width", 1)),
    "classmethod": (shared, lambda: setattr(Shared, "reach", -5)),
    "helper": (lambda b, h, q, k: (q - k).abs() < width_of(slots), lambda: setattr(slots, "width", 5)),
    "default dict": (by_item(items, "width"), lambda: items.update(width=8)),
    "deque": (by_item(queue, 0), lambda: queue.appendleft(11)),
    "set": (by_all(words), lambda: words.add(20)),
    "thread": (by_attribute(of_thread), lambda: setattr(of_thread, "width", 6)),
    "context": (lambda b, h, q, k: (q - k).abs() < of_context.get(), lambda: of_context.set(6)),
    "weak reference": (lambda b, h, q, k: q - k < behind().half, lambda: setattr(described, "half", 7)),
    "name that is made": (
        lambda b, h, q, k: (q - k).abs() < sum(getattr(numbered, f"w{i}") for i in range(2)),
        lambda: setattr(numbered, "w1", 9),
    ),
    "attributes of any name": (
        lambda b, h, q, k: (q - k).abs() < max(vars(numbered).values()),
        lambda: setattr(numbered, "w2", 12),
    ),
    "constant of a class by a name that is made": (
        lambda b, h, q, k: (q - k).abs() < getattr(Numbered, "w" + str(2)),
        lambda: setattr(Numbered, "w2", 3),
    ),
    "member of an enumeration": (
        lambda b, h, q, k: k <= q if sided.side is Side.left else q <= k,
        lambda: setattr(sided, "side", Side.right),
    ),
    "new module in one of torch's": (
        lambda b, h, q, k: layers(1.0 * (q - k)) > 0.5,
        lambda: layers.append(torch.nn.Hardtanh(-1.0, 0.25)),
    ),
    "new attribute": (by_attribute_if_any(empty), lambda: setattr(empty, "width", 9)),
    "new attribute of an object": (by_attribute_if_any(bare), lambda: setattr(bare, "width", 9)),
    "new attribute of an object's class": (by_attribute_if_any(plain), lambda: setattr(Plain, "width", 2)),
    "new attribute of a class": (by_attribute_if_any(Bare), lambda: setattr(Bare, "width", 2)),
    "attribute that is gone": (by_attribute_if_any(full), lambda: delattr(full, "width")),
    "slot that is filled": (by_attribute_if_any(bare_slots), lambda: setattr(bare_slots, "width", 9)),
    "new buffer": (
        lambda b, h, q, k: lazy.forward(b, h, q, k),
        lambda: lazy.register_buffer("widths", torch.tensor([2, 7], device=DEVICE)),
    ),
    "method of an object's own": (lambda b, h, q, k: q - k < bare.wide(), lambda: setattr(bare, "wide", lambda: 8)),
    "other method of a class": (
        Replaced(),
        lambda: setattr(Replaced, "__call__", lambda self, b, h, q, k: (q - k).abs() < 5),
    ),
    "attribute of a function": (by_own_attribute, lambda: setattr(by_own_attribute, "width", 8)),
    "new attribute of a function": (by_attribute_if_any(widened), lambda: setattr(widened, "width", 8)),
    "called object": (Both(described, shared), lambda: setattr(described, "half", 12)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_is_read_anew(name: str) -> None:
    mask, change = CHANGES[name]
    is_right(None, mask)
    change()
    is_right(None, mask)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (by_attribute(Config), by_attribute(type("Other", (), {"width": 11}))),
        (by_attribute(SimpleNamespace(width=Width.narrow)), by_attribute(SimpleNamespace(width=Width.wide))),
        (by_attribute(Frozen(2)), by_attribute(Frozen(9))),
        (by_item(OrderedDict(a=2), "a"), by_item(OrderedDict(a=9), "a")),
        (Described(2), Described(9)),
        (by_value(Decimal("2.5")), by_value(Decimal("9.5"))),
    ],
    ids=["class", "enum", "frozen", "mapping", "object", "object of C"],
)
def test_mods_of_one_code_are_told_apart(first: Any, second: Any) -> None:
    is_right(None, first)
    is_right(None, second)


def test_lists_of_parameters_are_read_by_place() -> None:
    is_right(lambda score, b, h, q, k: score + by_layer[1][h] * (q - k), None)


def test_masks_that_are_objects_may_be_joined() -> None:
    is_right(None, and_masks(Documents(7), Described(5)))
    is_right(None, Both(Documents(7), functools.partial(lambda width, b, h, q, k: q - k < width, 3)))


def test_another_number_in_an_object_that_a_mask_calls_builds_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    is_right(None, Both(Window(2), Documents(7)))
    monkeypatch.setattr(kernels, "meaning", None)
    is_right(None, Both(Window(9), Documents(5)))
