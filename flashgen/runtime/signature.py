"""A variant's own part of its operator: what torch is told of it, and how many scalars travel as few arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashgen.runtime.declared import Input, Param

# An operator of torch takes 64 arguments; that of a paged cache has 18 besides the variant's.
MOST_ARGUMENTS = 46
_NO_PARAMS: Mapping[str, Any] = {}
_LISTS = {float: "_floats", int: "_ints", bool: "_bools"}
# What torch calls them: an integer may change from call to call without torch.compile's compiling again.
_TYPES = {float: "float", int: "SymInt", bool: "bool"}


@dataclass(frozen=True)
class Signature:
    """`schema` is torch's, `names` those of the arguments; the first `tensors` of them are the inputs.

    The params follow, those in `single` each by itself, those in `packed` in one list for each type.
    """

    schema: str
    names: tuple[str, ...]
    tensors: int
    single: tuple[str, ...]
    packed: tuple[tuple[str, ...], ...]
    # The params that shapes of inputs read: they are among the single ones.
    sizing: tuple[str, ...]

    def packs(self, params: Mapping[str, Any]) -> list[Any]:
        """Runtime params by name, as the operator takes them."""
        return [*(params[name] for name in self.single), *([params[name] for name in names] for names in self.packed)]

    def split(self, own: Sequence[Any]) -> tuple[Sequence[torch.Tensor | None], Mapping[str, Any]]:
        """The inputs, and the runtime params by name, from the operator's arguments for them."""
        if len(own) == self.tensors:
            return own, _NO_PARAMS
        return own[: self.tensors], self._params(own[self.tensors :])

    def _params(self, arguments: Sequence[Any]) -> dict[str, Any]:
        found = dict(zip(self.single, arguments, strict=False))
        for names, values in zip(self.packed, arguments[len(self.single) :], strict=True):
            found |= zip(names, values, strict=True)
        return found


def signature_of(inputs: Sequence[Input], params: Sequence[Param]) -> Signature:
    """Each input and runtime param by itself, or where these are too many, the params in one list for each type."""
    read = {name for each in inputs for name in each.reads}
    sizing = tuple(param.name for param in params if param.name in read)
    packed = [param for param in params if len(inputs) + len(params) > MOST_ARGUMENTS and param.name not in sizing]
    single = [param for param in params if param not in packed]
    lists = {kind: tuple(param.name for param in packed if param.type is kind) for kind in _LISTS}
    types = {each.name: "Tensor?" if each.default or each.optional else "Tensor" for each in inputs}
    types |= {param.name: _TYPES[param.type] for param in single}
    types |= {_LISTS[kind]: f"{_TYPES[kind]}[]" for kind, names in lists.items() if names}
    return Signature(
        ", ".join(f"{kind} {name}" for name, kind in types.items()),
        tuple(types),
        len(inputs),
        tuple(param.name for param in single),
        tuple(names for names in lists.values() if names),
        sizing,
    )
