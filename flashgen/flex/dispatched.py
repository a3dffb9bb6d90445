"""What a mod does with tensors, as torch's dispatcher hands it on: each operation as an expression of the language.

What each tensor stands for is kept beside it. Numbers are tensors too, with their own values: where the mod asks for
one, as `range(n)` and `if n > 2` do, it gets it, and the trace holds for that value alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashgen.flex.bounds import may_be_negative
from flashgen.flex.memory import Memory
from flashgen.flex.operations import GROWING, MADE, OPERATIONS, REDUCTIONS, SAME
from flashgen.flex.values import (
    AXIS,
    NARROW,
    NOWHERE,
    POSITIONS,
    Elements,
    Input,
    NotTraced,
    Number,
    Value,
    arithmetic,
    compare,
    holds,
    literal,
    name,
    type_of,
    where,
    wrapped,
    wrapped_number,
)
from flashgen.lang.nodes import Type
from flashgen.lang.syntax import Index, Name, Syntax, pieces


class Dispatched(TorchDispatchMode):
    """Takes note of what each operation computes.

    `local` has the names of the mod's variables, by the ids of the expressions in them; `fixed` are the numbers whose
    values the mod asked for, `sized` the inputs over whose elements it went.
    """

    def __init__(self, inputs: Collection[Input], numbers: Collection[Number], causal: bool) -> None:
        super().__init__()
        self._causal = causal
        # The tensors are kept, lest others take their ids.
        self._known: dict[int, tuple[torch.Tensor, Value | Elements]] = {}
        self.local: dict[int, str] = {}
        self.fixed: set[str] = set()
        self.sized: set[str] = set()
        self._memory = Memory([*(each.stand_in for each in inputs), *(each.stand_in for each in numbers)])
        self._learned = {"score", *(each.name for each in inputs if each.is_learned)}
        self._natural = {*POSITIONS, AXIS, *(each.name for each in numbers if each.is_natural)}
        for each in inputs:
            tensor, kind = each.stand_in, type_of(each.stand_in.dtype)
            self._natural |= {each.name} if tensor.dtype in (torch.bool, torch.uint8) else set()
            self.know(tensor, self._element(Elements(each.name, tensor.dtype, kind, (None,) * tensor.ndim, each.sizes)))
        for number in numbers:
            self.know(number.stand_in, name(number.name, type_of(number.stand_in.dtype), frozenset([number.name])))

    def know(self, tensor: torch.Tensor, meaning: Value | Elements) -> None:
        self._known[id(tensor)] = tensor, meaning

    def learn(self, variable: str, tensor: torch.Tensor) -> None:
        """What a variable of the mod is called."""
        known = self._known.get(id(tensor))
        if known is not None and isinstance(known[1], Value):
            self.local.setdefault(id(known[1].syntax), variable)

    def meaning(self, given: Any) -> Value | Elements:
        if not isinstance(given, torch.Tensor):
            return literal(given)
        if id(given) not in self._known:
            raise NotTraced("a tensor that is neither in its closure, its globals nor its defaults")
        return self._known[id(given)][1]

    def value(self, given: Any) -> Value:
        """The number that a tensor stands for; of a row of numbers the one at the place AXIS."""
        meaning = self.meaning(given)
        if not isinstance(meaning, Elements):
            return meaning
        if len(meaning.free) > 1:
            left, rank = len(meaning.free), len(meaning.indices)
            raise NotTraced(f"{meaning.name} with {left} of {rank} dimensions left, where numbers are needed")
        self.sized.add(meaning.name)
        whole = self._element(meaning.at({meaning.free[0]: name(AXIS, Type.INT).syntax}))
        assert isinstance(whole, Value)
        return whole

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        namespace, _, operation = func._schema.name.partition("::")
        if namespace == "aten" and operation == "_local_scalar_dense":
            return self._number_of(args[0])
        if namespace == "aten" and operation in ("index", "select"):
            return self._indexed(operation, *args)
        if namespace not in ("aten", "prims"):
            return self._taken_apart(func, args, kwargs)
        in_place = operation.endswith("_") and not operation.endswith("__")
        if in_place and self._memory.is_shared(args[0]):
            raise NotTraced(f"{func} on what other tensors share; expected clone() before it")
        operation = operation[:-1] if in_place else operation
        if operation == "detach":
            self._check_detached(args[0])
        if operation in MADE:
            return self._made(func(*args, **kwargs), func)
        if operation in ("lift_fresh", "lift_fresh_copy") and id(args[0]) not in self._known:
            return self._made(args[0].cpu(), func)
        if operation in REDUCTIONS:
            return self._reduced(operation, func, args, kwargs)
        if operation not in SAME and operation not in OPERATIONS:
            return self._taken_apart(func, args, kwargs)
        if operation in SAME and isinstance(self.meaning(args[0]), Elements):
            return self._viewed(func, args, kwargs)
        return self._computed(operation, func, args, kwargs, args[0] if in_place else None)

    def _computed(
        self, operation: str, func: Any, args: tuple, kwargs: dict[str, Any], into: torch.Tensor | None
    ) -> torch.Tensor:
        args = self._beside_narrow(args)
        values = [self._operand(each) for each in (args[:1] if operation in SAME else args)]
        result = self._run(func, args, kwargs)
        if result.ndim > 1 or (operation in SAME and result.shape != args[0].shape):
            raise NotTraced(f"{func}, whose result has the shape {tuple(result.shape)}; expected a number, or a row")
        if operation in SAME:
            meaning = values[0].cast(type_of(result.dtype))
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
            self.know(each, meaning)
        return result

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

    def _is_captured(self, given: Any) -> bool:
        """Whether it stands for an integer that is captured, or is made of such alone."""
        if not isinstance(given, torch.Tensor) or given.dtype != torch.int64:
            return False
        meaning = self.meaning(given)
        return isinstance(meaning, Value) and bool(meaning.numbers)

    def _reduced(self, operation: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
        """The sum of a row and the like. A number is a row of itself."""
        row, result = args[0], self._run(func, args, kwargs)
        if result.ndim or row.ndim > 1:
            raise NotTraced(f"{func} of {row.ndim} dimensions that leaves {result.ndim}; expected a row, and a number")
        values = [self.value(each) for each in args if isinstance(each, torch.Tensor)]
        if (dtype := kwargs.get("dtype")) is not None:
            values = [each.cast(type_of(dtype)) for each in values]
        length = row.shape[0] if row.ndim else None
        self.know(result, self._within(operation, REDUCTIONS[operation](length, *values), result))
        return result

    def _operand(self, given: Any) -> Any:
        """An operand; None and words, as a rounding mode, are what they are."""
        return given if given is None or isinstance(given, str) else self.value(given)

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

    def _run(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
        """The real result where it is made of numbers alone, else one of the right dtype and shape."""
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        meanings = [self.meaning(each) for each in tensors]
        kwargs = {key: each for key, each in kwargs.items() if key != "device"}
        if all(isinstance(each, Value) and each.numbers is not None for each in meanings):
            return func(*args, **kwargs)
        like = [torch.empty_like(each, device="meta") if isinstance(each, torch.Tensor) else each for each in args]
        result = func(*like, **kwargs)
        return torch.zeros((), dtype=result.dtype).expand(result.shape)

    def _check_detached(self, tensor: torch.Tensor) -> None:
        """What is cut off has no gradient to torch; here it would have one."""
        meaning = self.meaning(tensor)
        read = {meaning.name} if isinstance(meaning, Elements) else _read_in(meaning.syntax)
        if not self._learned.isdisjoint(read):
            raise NotTraced("detach() of what has a gradient; expected a captured tensor that was detached outside")

    def _made(self, tensor: torch.Tensor, func: Any) -> torch.Tensor:
        # A row of one is that one, whatever rows of other lengths it meets.
        if tensor.ndim < 2 and tensor.numel() == 1:
            self.know(tensor, literal(tensor.item()))
        elif torch.equal(tensor, torch.arange(tensor.numel())):
            self.know(tensor, name(AXIS, Type.INT))
        else:
            raise NotTraced(f"{func}, which makes {tensor.ndim} dimensions; expected a number, or arange from 0")
        return tensor

    def _number_of(self, tensor: torch.Tensor) -> bool | int | float:
        """What `range(n)`, `if n > 2` and the like ask for."""
        value = self.value(tensor)
        if value.numbers is None:
            raise NotTraced("a decision by the score, a position or a captured tensor; expected torch.where")
        self.fixed |= value.numbers
        return tensor.item()

    def leave(self, tensor: torch.Tensor) -> None:
        """What `n.numpy()` and the like ask for: of numbers alone it is known here."""
        _, meaning = self._known.get(id(tensor), (None, literal(0)))
        numbers = meaning.numbers if isinstance(meaning, Value) else None
        if numbers is None:
            raise NotTraced("values that leave torch, as by tolist() or numpy(); expected torch's own operations")
        self.fixed |= numbers

    def _viewed(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
        tensor = args[0]
        result = self._run(func, args, kwargs)
        elements = self.meaning(tensor)
        assert isinstance(elements, Elements)
        if result.shape != tensor.shape or not holds(result.dtype, tensor.dtype):
            raise NotTraced(f"{func} of a captured tensor; expected it as it is, indexed")
        self._memory.share(result)
        self.know(result, replace(elements, element=result.dtype))
        return result

    def _indexed(self, operation: str, tensor: torch.Tensor, *rest: Any) -> torch.Tensor:
        elements = self.meaning(tensor)
        indices = [*[None] * (rest[0] % tensor.ndim), rest[1]] if operation == "select" else rest[0]
        if not isinstance(elements, Elements):
            raise NotTraced("an index of what is no captured tensor")
        given = dict(zip(elements.free, indices, strict=False))
        values = {axis: self.value(each) for axis, each in given.items() if each is not None}
        if any(each.type is not Type.INT for each in values.values()):
            raise NotTraced("an index that is no integer")
        left = [size for axis, size in zip(elements.free, tensor.shape, strict=True) if axis not in values]
        rows = [each.shape[0] for each in indices if isinstance(each, torch.Tensor) and each.ndim]
        if rows and left:
            raise NotTraced(f"{elements.name} at a row of indices with {len(left)} dimensions left; expected none")
        self.sized |= {elements.name} if rows else set()
        result = torch.zeros((), dtype=tensor.dtype).expand(rows[:1] or left)
        taken = elements.at({axis: self._place(elements, axis, each) for axis, each in values.items()})
        if operation == "select":
            self._memory.share(result)
        self.know(result, self._element(taken))
        return result

    def _place(self, elements: Elements, axis: int, index: Value) -> Syntax:
        """An index that counts from the start."""
        size = name(elements.sizes[axis], Type.INT)
        if isinstance(index.constant, int):
            return arithmetic("-", size, literal(-index.constant)).syntax if index.constant < 0 else index.syntax
        if not may_be_negative(index.syntax, self._natural, self._causal):
            return index.syntax
        read = {piece.id for piece in pieces(index.syntax) if isinstance(piece, Name)}
        if not {"q", "k"} <= read:
            return arithmetic("%", index, size).syntax
        # For each pair a remainder would be slow.
        return where(compare("<", index, literal(0)), arithmetic("+", index, size), index).syntax

    def _element(self, elements: Elements) -> Value | Elements:
        if elements.free:
            return elements
        kind = type_of(elements.element)
        if not elements.indices:
            return replace(name(elements.name, kind), held=elements.held)
        indices = tuple(each for each in elements.indices if each is not None)
        height = 1 + max(each.height for each in indices)
        return Value(Index(NOWHERE, elements.name, indices, height=height), kind, elements.held)

    def _taken_apart(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What torch, or who registered the operation, says that it is made of."""
        whole = torch._decomp.decomposition_table.get(func) or _implementation(func)
        if whole is None:
            raise NotTraced(f"{func}, which the language of specs does not have")
        try:
            with self:
                return whole(*args, **kwargs)
        except NotTraced as error:
            raise NotTraced(error.reason, within=str(func)) from None


def _read_in(syntax: Syntax) -> set[str]:
    """The names and inputs that an expression reads."""
    read = {each.id for each in pieces(syntax) if isinstance(each, Name)}
    return read | {each.input for each in pieces(syntax) if isinstance(each, Index)}


def _implementation(func: Any) -> Callable[..., Any] | None:
    """The function behind an operation that is not torch's own."""
    if func.namespace in ("aten", "prims"):
        return None
    for key in ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CPU"):
        if func.has_kernel_for_dispatch_key(getattr(torch._C.DispatchKey, key)):
            return lambda *args, **kwargs: func._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)
    return None
