"""What mods read by other ways than closures and globals of numbers: it is what it is now, as torch has it."""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextvars import ContextVar
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flex_beside_torch import by_torch
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import and_masks, create_block_mask

from flashgen.flex import flex_attention, kernels

LENGTH = 24
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, LENGTH, 16, generator=generator).to(DEVICE) for _ in range(3)]


def is_right(score: Any, mask: Any = None) -> None:
    q, k, v = inputs()
    blocks = None if mask is None else create_block_mask(mask, 1, 2, LENGTH, LENGTH, device=DEVICE, BLOCK_SIZE=16)
    expected = by_torch(score, mask)(q.double(), k.double(), v.double())
    found = flex_attention(q, k, v, score, blocks)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


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


# What Python does with these numbers no tensor does.
SCALES, count, shift = {1: 0.5, 2: 3.0}, 2, 0.3
BY_NUMBERS: dict[str, Callable[..., torch.Tensor]] = {
    "key": lambda score, b, h, q, k: score * SCALES[count],
    "key with a default": lambda score, b, h, q, k: score * SCALES.get(count, 9.0),
    "member": lambda score, b, h, q, k: score * (0.5 if count in {1, 7} else 2.0),
    "type": lambda score, b, h, q, k: score * (0.5 if isinstance(count, int) else 2.0),
    "power": lambda score, b, h, q, k: score * 2**-count,
    "numpy": lambda score, b, h, q, k: score * float(np.sqrt(count)) + float(np.asarray(shift)),
    "tests": lambda score, b, h, q, k: score * ((count > 0) + (count > 1)) + round(shift, 1),
}


@pytest.mark.parametrize("name", BY_NUMBERS)
def test_numbers_are_those_of_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_right(BY_NUMBERS[name])
    monkeypatch.setitem(globals(), "count", 1)
    monkeypatch.setitem(globals(), "shift", 0.71)
    is_right(BY_NUMBERS[name])


def test_another_number_in_an_object_that_a_mask_calls_builds_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    is_right(None, Both(Window(2), Documents(7)))
    monkeypatch.setattr(kernels, "meaning", None)
    is_right(None, Both(Window(9), Documents(5)))


def test_another_number_by_a_name_in_the_code_builds_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    held = SimpleNamespace(width=2, least=[0])
    mask = lambda b, h, q, k: (q - k).abs() < getattr(held, "width", min(held.least))  # noqa: E731
    is_right(None, mask)
    monkeypatch.setattr(kernels, "meaning", None)
    held.width = 9
    is_right(None, mask)


def test_defaults_may_be_assigned_to() -> None:
    def mod(score, b, h, q, k, weight=2.0, *, above=True):
        return score + weight * k if above else score - weight * k

    for _ in range(2):
        is_right(mod)
    mod.__defaults__ = (3.0,)
    is_right(mod)
    mod.__kwdefaults__ = {"above": False}
    is_right(mod)


def test_what_mods_capture_goes_with_them() -> None:
    def made(table: torch.Tensor) -> Any:
        return lambda score, b, h, q, k, above=1: score + table[h] * above

    table = torch.zeros(2, device=DEVICE)
    mod, gone = made(table), weakref.ref(table)
    for _ in range(2):
        flex_attention(*inputs(), mod)
    del table, mod
    gc.collect()
    assert gone() is None


def test_a_tensor_whose_data_is_of_another_kind_is_read_anew() -> None:
    table = torch.randint(0, 5, (LENGTH,), device=DEVICE)

    def mask(b, h, q, k):
        return table[q] == table[k]

    is_right(None, mask)
    for dtype in (torch.float32, torch.int8):
        table.data = table.data.to(dtype)
        is_right(None, mask)


def test_mods_over_pages_of_torchs_own_read_its_tables() -> None:
    page, pages, lengths = 16, 8, torch.tensor([37, 5, 20], device=DEVICE)
    batch, room = len(lengths), 48
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(batch, 4, 1, 16, generator=generator).to(DEVICE)
    k, v = (torch.randn(batch, 2, room, 16, generator=generator).to(DEVICE) for _ in "kv")

    def score(score, b, h, q, k):
        return score + 0.1 * k * (h + 1)

    def seen(b, h, q, k):
        return k < lengths[b]

    blocks = create_block_mask(seen, batch, 1, 1, room, device=DEVICE, BLOCK_SIZE=page)
    expected = by_torch(score, seen)(q.double(), *(each.double().repeat_interleave(2, 1) for each in (k, v)))
    for order in ((2, 0, 1), (1, 2, 0)):
        table = PagedAttention(pages, page, batch, device=DEVICE)
        caches = [torch.zeros(1, 2, pages * page, 16, device=DEVICE) for _ in "kv"]
        for b in order:
            sequence, length = torch.tensor([b], device=DEVICE), int(lengths[b])
            table.reserve(sequence[0], lengths[b])
            places = torch.arange(length, device=DEVICE)[None]
            table.assign(sequence, places, *(each[b : b + 1, :, :length] for each in (k, v)), *caches)
        found = flex_attention(
            q, *caches, table.get_score_mod(score), table.convert_logical_block_mask(blocks), enable_gqa=True
        )
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
