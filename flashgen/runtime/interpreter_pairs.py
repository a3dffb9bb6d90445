"""What follows, in Triton's interpreter, from the types of two operands: what they are computed in, and what comes out.

Types are known by their names, which say all that counts here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, NamedTuple

from triton.language import core

from flashgen.runtime.interpreter_numbers import as_integers
from flashgen.runtime.interpreter_types import FLOATS, INTEGERS, NUMBERS, RANGE, facts_of, tile_sizes

# What a pair may be beside numbers: two tests, a pointer beside an integer, a test beside what it chooses.
TEST, POINTER, CHOICE = "int1", "pointer", "choice"

Change = Callable[[Any], Any]


def _nothing(data: Any) -> Any:
    raise AssertionError("Triton was to say")


class Pair(NamedTuple):
    """The type of a tensor and of what stands right of it, another tensor or a number.

    `kind` is what they are computed in, or nothing if Triton is to say; `type` is that of the outcome, and `make` makes
    a tensor of an array of it, `test` one of an array of tests. `left` and `right` make the operands what numpy is to
    have, where they are not; a number that does not fit becomes None.
    """

    kind: str = ""
    type: Any = None
    make: Change = _nothing
    test: Change = _nothing
    left: Change | None = None
    right: Change | None = None


UNKNOWN = Pair()


class Pairs:
    """Each pair is made once; `handle` is Triton's class of what tensors hold."""

    def __init__(self, handle: Any) -> None:
        import numpy as np

        self._handle, self._address = handle, np.uint64
        self._dtypes = {name: np.dtype(name.replace("fp", "float")) for name in NUMBERS}
        # By the left type's name, and the right one's or Python's type.
        self._known: dict[str, dict[Any, Pair]] = {}
        self._makers: dict[tuple[str, tuple[int, ...]], Change] = {}
        self._casts: dict[tuple[str, str], Change | None] = {}

    def ready(self, left: Any, right: Any) -> tuple[Pair, Any, Any]:
        """Two operands, of which the left one is a tensor: their pair, and what numpy is to have."""
        if isinstance(right, core.tensor):
            beside, b = right.type, right.handle.data
            key = beside.name
        else:
            b = right.value if type(right) is core.constexpr else right
            key = beside = type(b)
        try:
            pair = self._known[left.type.name][key]
        except KeyError:
            pair = self.of(left.type, beside)
        a = left.handle.data
        if pair.left is not None:
            a = pair.left(a)
        if pair.right is not None:
            b = pair.right(b)
        return (UNKNOWN if b is None else pair), a, b

    def of(self, left: Any, beside: Any) -> Pair:
        """`left` is the type of a tensor, `beside` that of another or Python's of what is none."""
        number = isinstance(beside, type)
        known, key = self._known.setdefault(left.name, {}), beside if number else beside.name
        if key not in known:
            known[key] = self._with_number(left, beside) if number else self._with_tensor(left, beside)
        return known[key]

    def _with_number(self, left: Any, kind: type) -> Pair:
        """A number becomes one of the tensor's type, where that has it; beside a pointer it is of elements."""
        scalar = left.scalar
        if kind is bool and scalar.name == TEST:
            return self._pair(TEST, scalar, tile_sizes(left), right=bool)
        if kind is int and scalar.is_ptr():
            return self._pair(POINTER, scalar, tile_sizes(left), right=self._bytes_of_number(scalar.element_ty))
        if kind not in (int, float) or scalar.name not in NUMBERS or (kind is float and scalar.is_int()):
            return UNKNOWN
        make = self._dtypes[scalar.name].type
        least, most = (scalar.get_int_min_value(), scalar.get_int_max_value()) if scalar.is_int() else RANGE
        fitting = (lambda n: make(n) if least <= n <= most else None) if kind is int else make
        return self._pair(scalar.name, scalar, tile_sizes(left), right=fitting)

    def _with_tensor(self, left: Any, right: Any) -> Pair:
        ours, theirs, sizes = left.scalar, right.scalar, _common(tile_sizes(left), tile_sizes(right))
        if sizes is None:
            return UNKNOWN
        if ours.is_ptr() and theirs.name in INTEGERS:
            return self._pair(POINTER, ours, sizes, right=self._bytes(ours.element_ty))
        if ours.name == TEST:
            return self._pair(TEST if theirs.name == TEST else CHOICE, theirs, sizes)
        if ours.name not in NUMBERS or theirs.name not in NUMBERS:
            return UNKNOWN
        # They are computed in the later of the types.
        scalar = max(ours, theirs, key=lambda each: NUMBERS.index(each.name))
        cast = methodcaller("astype", self._dtypes[scalar.name])
        left_cast, right_cast = (None if each.name == scalar.name else cast for each in (ours, theirs))
        return self._pair(scalar.name, scalar, sizes, left_cast, right_cast)

    def _pair(
        self, kind: str, scalar: Any, sizes: Sequence[int], left: Change | None = None, right: Change | None = None
    ) -> Pair:
        return Pair(
            kind, _tile_type(scalar, sizes), self.maker(scalar, sizes), self.maker(core.int1, sizes), left, right
        )

    def _bytes(self, element: Any) -> Change:
        """Of so many elements."""
        width, address = _width(element), self._address
        return lambda offsets: width * offsets.astype(address)

    def _bytes_of_number(self, element: Any) -> Change:
        width, address, (least, most) = _width(element), self._address, RANGE
        return lambda n: address(width * n % 2**64) if least <= n <= most else None

    def cast(self, source: Any, target: Any) -> Change | None:
        """From an array of a type to a tensor of the same sizes; None where it is not between numbers, or of tests."""
        key = (source.name, target.name)
        if key not in self._casts:
            known = target.name in NUMBERS and source.scalar.name in (*NUMBERS, TEST)
            self._casts[key] = self._cast(source, target) if known else None
        return self._casts[key]

    def _cast(self, source: Any, target: Any) -> Change:
        make, dtype = self.maker(target, tile_sizes(source)), self._dtypes[target.name]
        if source.scalar.name in FLOATS and target.name in INTEGERS:
            return lambda data: make(as_integers(data, dtype))
        return lambda data: make(data.astype(dtype))

    def tests(self, mask: Any, beside: Any) -> Any:
        """The array of a mask of tests that has the sizes of a tensor; None if it is none."""
        is_mask = isinstance(mask, core.tensor) and mask.dtype.name == TEST
        fits = is_mask and tile_sizes(mask.type) == tile_sizes(beside.type)
        return mask.handle.data if fits else None

    def maker(self, scalar: Any, sizes: Sequence[int]) -> Change:
        """What makes a tensor of an array that has these elements and sizes; a number has none."""
        key = (scalar.name, (*sizes,))
        if key not in self._makers:
            self._makers[key] = self._maker(_tile_type(scalar, sizes))
        return self._makers[key]

    def _maker(self, type: Any) -> Change:
        """As the classes of both do it, but for what they look at again."""
        tensor, handle, new = core.tensor, self._handle, object.__new__
        shape, numel, scalar = facts_of(type)

        def make(data: Any) -> Any:
            made, held = new(tensor), new(handle)
            held.data, held.dtype, held.attr = data, scalar, {}
            made.handle, made.type, made.shape, made.numel, made.dtype = held, type, shape, numel, scalar
            return made

        return make


def _common(left: list[int], right: list[int]) -> list[int] | None:
    """The sizes that both are spread to; None where they do not fit, or Triton is to add dimensions."""
    if not left or not right:
        return left or right
    pairs = [*zip(left, right, strict=False)]
    if len(left) != len(right) or any(a != b and 1 not in (a, b) for a, b in pairs):
        return None
    return [b if a == 1 else a for a, b in pairs]


def _width(element: Any) -> int:
    return max(1, int(element.primitive_bitwidth) // 8)


def _tile_type(scalar: Any, sizes: Sequence[int]) -> Any:
    return core.block_type(scalar, [*sizes]) if sizes else scalar
