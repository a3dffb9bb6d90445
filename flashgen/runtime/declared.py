"""What a generated module declares of its variant's own arguments: inputs, runtime params, sums for gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

# A function of sizes, runtime params and dimensions of inputs, each of which it takes by its name.
OfSizes = Callable[..., Any]


def names_of(function: OfSizes) -> tuple[str, ...]:
    """The names that such a function takes."""
    code = function.__code__
    return tuple(code.co_varnames[: code.co_argcount])


@dataclass(frozen=True, eq=False)
class Input:
    """A tensor that callers pass. `name` is what kernels call it, `called` what callers do, where that differs.

    `dims` are its dimensions as the spec writes them, `shape` gives their sizes, None where this input defines one:
    `binds` has the axes of those that get a name. A dimension of `may_be_one` may have size 1, which stands for all,
    one of `may_be_empty` no element.
    `default(heads, device)` makes what stands in for None; where it is `optional` kernels get the None itself.
    `grad`: it has a gradient. `packed` is the input as it is where the queries of all sequences stand one after the
    other, if that is another shape: total_q in the place of batch and q_len. `varlen` is the input where keys stand so
    too, if that is another one: total_k in the place of batch and kv_len. `axes` has for each axis of the input as a
    dense call has it the one of this input by whose stride kernels go there.
    """

    name: str
    dtype: torch.dtype
    dims: tuple[str, ...]
    shape: OfSizes
    binds: Mapping[str, int] = field(default_factory=dict)
    may_be_one: tuple[int, ...] = ()
    may_be_empty: tuple[int, ...] = ()
    default: Callable[[int, torch.device], torch.Tensor] | None = None
    grad: bool = False
    optional: bool = False
    called: str = ""
    packed: Input | None = None
    varlen: Input | None = None
    axes: tuple[int, ...] = ()
    # The names that its shape depends on.
    reads: tuple[str, ...] = field(init=False)
    # What kernels call its address.
    pointer: str = field(init=False)
    # What callers call it.
    public: str = field(init=False)
    # Its shape for people.
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", self.axes or tuple(range(len(self.dims))))
        object.__setattr__(self, "reads", names_of(self.shape))
        object.__setattr__(self, "pointer", f"{self.name}_ptr")
        object.__setattr__(self, "public", self.called or self.name)
        object.__setattr__(self, "text", f"[{', '.join(self.dims)}]")


@dataclass(frozen=True, eq=False)
class Param:
    """A runtime param, a scalar that callers pass: bool, int or float. Names as those of an input."""

    name: str
    type: type
    called: str = ""
    # What callers call it.
    public: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "public", self.called or self.name)


@dataclass(frozen=True, eq=False)
class Sums:
    """Where a kernel adds up the gradient of an input for one place at which the scores read it.

    The kernels know it as `name`. `apart` says of sizes whether the pairs of no two programs share an element; they
    then store, and need not add. With `turns`, "heads" or "batch", programs that differ in that one do share elements,
    and none if they take turns: that is what makes their sum the same on every run.
    """

    name: str
    input: str
    apart: OfSizes | None = None
    turns: str = ""


@dataclass(frozen=True, eq=False)
class Owner:
    """By what elements of learned inputs differ, where each pair has some: by the `axis`, "b" or "h", or by groups of
    so many that follow one another; of a `strided` one it is the distance between its own."""

    axis: str
    group: OfSizes | None = None
    strided: bool = False
