"""What a mod does with tensors, as torch's dispatcher hands it on: each operation as an expression of the language.

What each tensor stands for is kept beside it. Numbers are tensors too, with their own values: where the mod asks for
one, as `range(n)` and `if n > 2` do, it gets it, and the trace holds for that value alone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flashgen.flex.captured_elements import CapturedElements
from flashgen.flex.decompositions import whole_of
from flashgen.flex.known import Known
from flashgen.flex.memory import Memory
from flashgen.flex.operations import GROWING, MADE, OPERATIONS, REDUCTIONS, SAME, TURNED, number_at
from flashgen.flex.results import result_of
from flashgen.flex.tape import Origin
from flashgen.flex.values import (
    AXIS,
    NARROW,
    Elements,
    NotTraced,
    Value,
    holds,
    literal,
    name,
    type_of,
    wrapped,
    wrapped_number,
)
from flashgen.lang.nodes import Type

# What takes single numbers out of a row.
_PARTS_OF_ROWS = frozenset({"index", "select", "unbind"})


class Dispatched(TorchDispatchMode):
    """Takes note of what each operation computes. `fixed` are the numbers whose values the mod asked for."""

    def __init__(self, known: Known, captured: Collection[torch.Tensor]) -> None:
        super().__init__()
        self._known, self._tape = known, known.tape
        self._memory = Memory(captured)
        self._elements = CapturedElements(known, self._memory)
        self.fixed: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        namespace, _, operation = func._schema.name.partition("::")
        if namespace == "aten" and operation == "_local_scalar_dense":
            return self._number_of(args[0])
        in_place = operation.endswith("_") and not operation.endswith("__")
        if in_place and self._memory.is_shared(args[0]):
            raise NotTraced(
                f"{func} on what other tensors share, as views do; expected clone() before it, or torch.where"
            )
        # Of a write it is asked before: it is made of what was there.
        may_be_done_again = in_place or not func._schema.is_mutable
        origin = self._tape.done(func, args, kwargs, self._known.origin) if may_be_done_again else None
        into = args[0] if in_place else None
        try:
            result = self._traced(func, operation[:-1] if in_place else operation, args, kwargs, into, origin)
        except NotTraced:
            if origin is None:
                raise
            return self._derived(func, args, kwargs, into, origin)
        if isinstance(result, torch.Tensor) and (into is not None or self._known.origin(result) is None):
            self._known.come_from(self._memory.ones(result), origin)
        return result

    def _traced(
        self, func: Any, operation: str, args: tuple, kwargs: dict[str, Any], into: torch.Tensor | None,
        origin: Origin | None,
    ) -> Any:  # fmt: skip
        """What comes out of an operation, in the language."""
        if (
            into is not None
            and torch.Tag.inplace_view in func.tags
            and result_of(self._known, func, args, kwargs).shape != into.shape
        ):
            raise NotTraced(f"{func}, in place; expected its kind that gives another tensor")
        if (operation == "detach" or not self._tape.has_gradients) and self._have_gradients(args):
            raise NotTraced("detach(), or no_grad(), of what has a gradient; expected it of captured tensors alone")
        if func.namespace == "aten" and operation in _PARTS_OF_ROWS and self._is_computed_row(args[0]):
            return self._numbers_of_row(operation, func, args, kwargs)
        if func.namespace == "aten" and operation in ("index", "select"):
            return self._elements.indexed(operation, *args)
        if func.namespace not in ("aten", "prims"):
            return self._taken_apart(func, args, kwargs, origin)
        if operation in MADE:
            return self._made(func, args, kwargs, origin)
        if operation in ("lift_fresh", "lift_fresh_copy") and args[0] not in self._known:
            return self._understood(args[0].cpu(), self._tape.constant(args[0].cpu()))
        if operation in REDUCTIONS:
            return self._reduced(operation, func, args, kwargs)
        is_view = operation in SAME or operation in TURNED
        if is_view and isinstance(self._known.meaning(args[0]), Elements):
            return self._elements.viewed(operation, func, args, kwargs)
        if operation in SAME or operation in OPERATIONS:
            return self._computed(operation, func, args, kwargs, into)
        # What goes over many elements is better done once for all pairs.
        if origin is not None and torch.Tag.pointwise not in func.tags:
            raise NotTraced(f"{func} of captured values")
        return self._taken_apart(func, args, kwargs, origin)

    def _have_gradients(self, args: tuple) -> bool:
        tensors = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor)]
        return any(each in self._known and self._known.has_gradient(each) for each in tensors)

    def _derived(
        self, func: Any, args: tuple, kwargs: dict[str, Any], into: torch.Tensor | None, origin: Origin
    ) -> Any:
        """What comes out of an operation on captured values, by torch itself at each call."""
        # What changes a shape in place does so to what stands in for the tensor too.
        is_reshaped = into is not None and torch.Tag.inplace_view in func.tags
        result: Any = func(*args, **kwargs) if is_reshaped else into
        result = result_of(self._known, func, args, kwargs) if into is None else result
        if isinstance(result, torch.Tensor):
            self._memory.share_view(func, args, result)
            for each in self._memory.ones(result):
                self._known.know(each, None, origin)
            return result
        # How many there are in a list depends on sizes.
        self._known.sized |= self._tape.captured_by(origin) if isinstance(result, list) else frozenset()
        for number, each in enumerate(result):
            self._memory.share_view(func, args, each)
            self._known.know(each, None, self._tape.part(origin, number))
        return result

    def _computed(
        self, operation: str, func: Any, args: tuple, kwargs: dict[str, Any], into: torch.Tensor | None
    ) -> torch.Tensor:
        result = result_of(self._known, func, args, kwargs)
        # A quotient is one of floats, which hold any number; but vmap makes all operands of one dtype first.
        is_of_integers = not result.dtype.is_floating_point or any(map(self._is_mapped, args))
        if is_of_integers and (narrow := self._beside_narrow(args)) is not args:
            args, result = narrow, result_of(self._known, func, narrow, kwargs)
        values = [self._operand(each) for each in (args[:1] if operation in SAME else args)]
        # A number is a row of one too.
        is_other = operation in SAME and result.shape != args[0].shape and result.numel() != 1
        if result.ndim > 1 or is_other:
            raise NotTraced(f"{func}, whose result has the shape {tuple(result.shape)}; expected a number, or a row")
        if operation in SAME:
            meaning = number_at(0, values[0]) if args[0].ndim > result.ndim else values[0]
            meaning = meaning.cast(type_of(result.dtype))
            if not holds(result.dtype, args[0].dtype):
                meaning = wrapped(meaning, result.dtype)
        else:
            named = {key: self._operand(each) for key, each in kwargs.items()}
            meaning = self._within(operation, OPERATIONS[operation](*values, **named), result)
        if into is not None:
            result = into
        elif func._schema.returns[0].alias_info is not None:
            self._memory.join(args[0], result)
        for each in self._memory.ones(result):
            self._known.know(each, meaning)
        return result

    def _is_computed_row(self, tensor: torch.Tensor) -> bool:
        """Whether it is a row that differs from pair to pair; one that captured values decide is read as they are."""
        is_computed = tensor.ndim == 1 and self._known.origin(tensor) is None
        return is_computed and isinstance(self._known.meaning(tensor), Value)

    def _numbers_of_row(self, operation: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """One number of a row, or each."""
        row, result = self._known.value(args[0]), result_of(self._known, func, args, kwargs)
        if operation == "unbind":
            numbers = dict(enumerate(result))
        else:
            numbers = {self._place_in_row(len(args[0]), args[-1] if operation == "select" else args[1][0]): result}
        for place, number in numbers.items():
            self._memory.share_view(func, args, number)
            self._known.know(number, number_at(place, row))
        return result

    def _place_in_row(self, length: int, index: Any) -> int:
        value = self._known.value(index)
        if value.numbers is None or (isinstance(index, torch.Tensor) and index.ndim):
            what = "an index of what is no captured tensor, by what is no number"
            raise NotTraced(f"{what}; expected a number, as in row[0]")
        self.fixed |= value.numbers
        place = int(index)
        if not -length <= place < length:
            raise NotTraced(f"the index {place} of a row of {length}; expected one within it")
        return place % length

    def _beside_narrow(self, args: tuple) -> tuple:
        """The operands where some are integers of few bits: numbers of Python beside them have no more, and wrap."""
        dtypes = {each.dtype for each in args if isinstance(each, torch.Tensor)} - {torch.bool, torch.int64}
        kind = next(iter(dtypes), torch.int64)
        if len(dtypes) != 1 or kind not in NARROW:
            return args
        args = tuple(self._number_of(each) if self._is_captured(each) else each for each in args)
        if any(isinstance(each, torch.Tensor) and each.dtype == torch.int64 for each in args):
            return args
        return tuple(wrapped_number(each, kind) if type(each) is int else each for each in args)

    def _is_mapped(self, given: Any) -> bool:
        """Whether it differs from pair to pair, so that torch has it for all of them at once, by vmap."""
        if not isinstance(given, torch.Tensor):
            return False
        origin = self._known.origin(given)
        return origin is None or bool(origin.at)

    def _is_captured(self, given: Any) -> bool:
        """Whether it stands for an integer that is captured, or is made of such alone."""
        if not isinstance(given, torch.Tensor) or given.dtype != torch.int64:
            return False
        meaning = self._known.meaning(given)
        return isinstance(meaning, Value) and bool(meaning.numbers)

    def _reduced(self, operation: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
        """The sum of a row and the like. A number is a row of itself."""
        row, result = args[0], result_of(self._known, func, args, kwargs)
        if result.numel() != 1 or row.ndim > 1:
            raise NotTraced(f"{func} of {row.ndim} dimensions that leaves {result.ndim}; expected a row, and a number")
        values = [self._known.value(each) for each in args if isinstance(each, torch.Tensor)]
        if (dtype := kwargs.get("dtype")) is not None:
            values = [each.cast(type_of(dtype)) for each in values]
        length = row.shape[0] if row.ndim else None
        self._known.know(result, self._within(operation, REDUCTIONS[operation](length, *values), result))
        return result

    def _operand(self, given: Any) -> Any:
        """An operand; None and words, as a rounding mode, are what they are."""
        return given if given is None or isinstance(given, str) else self._known.value(given)

    def _within(self, operation: str, value: Value, result: torch.Tensor) -> Value:
        """An integer to torch is one here too, of no more bits: of int ** number the language makes a float. And so a
        bool: of min(bool, bool) it makes an integer.
        """
        kind = type_of(result.dtype)
        if (kind is Type.INT and value.held is Type.FLOAT) or kind is Type.BOOL:
            value = value.cast(kind)
        if operation in GROWING:
            value = wrapped(value, result.dtype)
        return Value(value.syntax, kind, value.held, value.numbers)

    def _made(self, func: Any, args: tuple, kwargs: dict[str, Any], origin: Origin | None) -> torch.Tensor:
        """What follows from no tensor's values."""
        tensor = func(*args, **{**kwargs, "device": "cpu"})
        like = [each for each in args if isinstance(each, torch.Tensor)]
        if not like:
            return self._understood(tensor, self._tape.made(func, args, kwargs))
        self._known.sized |= self._known.captured_by(id(like[0]))
        return self._understood(tensor, origin or self._tape.constant(tensor))

    def _understood(self, tensor: torch.Tensor, origin: Origin) -> torch.Tensor:
        """A number, or a row of places; whatever else is an input."""
        meaning = None
        # A row of one is that one, whatever rows of other lengths it meets.
        if tensor.ndim < 2 and tensor.numel() == 1:
            meaning = literal(tensor.item())
        elif torch.equal(tensor, torch.arange(tensor.numel())):
            meaning = name(AXIS, Type.INT)
        self._known.know(tensor, meaning, origin)
        return tensor

    def _number_of(self, tensor: torch.Tensor) -> bool | int | float:
        """What `range(n)`, `if n > 2` and the like ask for."""
        value = self._known.value(tensor)
        if value.numbers is None:
            raise NotTraced(
                "a decision by the score, a position or a captured tensor; expected torch.where, or a captured number"
            )
        self.fixed |= value.numbers
        return tensor.item()

    def leave(self, tensor: torch.Tensor) -> None:
        """What `n.numpy()` and the like ask for: of numbers alone it is known here."""
        if tensor not in self._known:
            return
        if not self._known.is_of_numbers(tensor):
            raise NotTraced("values that leave torch, as by tolist() or numpy(); expected torch's own operations")
        self.fixed |= self._known.value(tensor).numbers or frozenset()

    def _taken_apart(self, func: Any, args: tuple, kwargs: dict[str, Any], origin: Origin | None) -> Any:
        """What comes out of the operations that this one is made of."""
        whole = whole_of(func)
        try:
            with self:
                result = whole(*args, **kwargs)
        except NotTraced as error:
            raise NotTraced(error.reason, within=str(func)) from None
        if isinstance(result, torch.Tensor) and origin is not None:
            # By the whole and not by its parts.
            self._known.come_from([result], origin)
        return result
