"""Tracing a mod with torch's own dispatcher: each operation that it does is written as an expression of the language.

The mod is run once, on tensors without dimensions that stand for the score, the positions and what it captures. Each
operation on them comes to `Dispatched`, which keeps what its result stands for.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Number as Scalar
from typing import Any

import numpy as np
import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

from flashgen.flex.asking import Asking
from flashgen.flex.deriving import Deriving
from flashgen.flex.dispatched import Dispatched
from flashgen.flex.known import Known
from flashgen.flex.local_names import named_locals
from flashgen.flex.values import POSITIONS, Input, NotTraced, Number, Value, name
from flashgen.lang.nodes import Type


@dataclass(frozen=True)
class Traced:
    """What a mod computes. `local` has the names of the mod's variables, by the ids of the expressions in them;
    `fixed` are the numbers whose values the mod asked for, `sized` the inputs whose sizes it did.
    """

    result: Value
    local: Mapping[int, str]
    fixed: frozenset[str]
    sized: frozenset[str]


def trace(
    mod: Callable[..., Any], with_score: bool, inputs: Collection[Input], numbers: Collection[Number], causal: bool,
    deriving: Deriving,
) -> Traced:  # fmt: skip
    """Run a mod on what stands for its arguments. `causal`: only keys up to the query's own position count.

    Raises NotTraced from the place in the mod, or what the mod raises.
    """
    known = Known(inputs, numbers, causal, deriving)
    dispatched = Dispatched(known, [*(each.stand_in for each in inputs), *(each.stand_in for each in numbers)])
    given = [torch.zeros((), dtype=torch.int32) for _ in POSITIONS]
    for position, tensor in zip(POSITIONS, given, strict=True):
        known.know(tensor, name(position, Type.INT))
    if with_score:
        given.insert(0, torch.zeros((), dtype=torch.float32))
        known.know(given[0], name("score", Type.FLOAT))
    asking = Asking(dispatched.leave, known.tape.turn)
    with (
        # What a mod itself turns off or on is part of it, and what its caller does is not.
        torch.enable_grad(),
        torch._C._DisableAutocast(),
        named_locals(known.learn),
        TransformGetItemToIndex(),
        asking,
        dispatched,
        _nothing_drawn(),
    ):
        returned = mod(*given)
        if not isinstance(returned, torch.Tensor | Scalar):
            what = "None" if returned is None else f"a {type(returned).__name__}"
            raise NotTraced(f"its result is {what}; expected a number for each pair, as a tensor")
        if isinstance(returned, torch.Tensor) and returned.ndim:
            raise NotTraced(f"its result has {returned.ndim} dimensions; expected a number for each pair")
        result = known.value(returned)
    sized = known.sized.union(*map(known.captured_by, asking.sized))
    return Traced(result, known.local, frozenset(dispatched.fixed), frozenset(sized))


@contextmanager
def _nothing_drawn() -> Iterator[None]:
    """What Python and NumPy draw would be the same at all later calls. What torch draws comes to `Dispatched`."""
    before = _drawn_so_far()
    yield
    if before != _drawn_so_far():
        raise NotTraced("a random number of Python or NumPy; expected a captured tensor of them, drawn outside")


def _drawn_so_far() -> tuple[Any, ...]:
    """What their generators go on from, to be compared: arrays and numbers, which as a text take most of a trace."""
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))
