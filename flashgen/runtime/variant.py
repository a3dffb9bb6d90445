"""What a generated module says of its variant: all that the runtime needs to launch its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from flashgen.runtime.declared import Input, Owner, Param, Sums
from flashgen.runtime.identity import Identity
from flashgen.runtime.signature import Signature, signature_of


@dataclass(frozen=True, eq=False)
class Variant:
    """A variant as its generated module declares it.

    `kernels` are its kernels by the names of their records, `configs` what finds the configs of each family of them, a
    `Lookup`. `inputs` and `params` are the caller's; `sums` where gradients of inputs are added up, by a kernel of
    their own that `loads` so many values for each pair. `owners` tell by what elements differ else where each pair has
    some of its own, which is for another kernel; None where none has. `sink` names the input that has one more logit
    for each row.
    `span` is how many keys a query sees at most, None where no constant says. `by_batch` and `by_head` tell whether a
    mask that needs a schedule differs from one batch element, or head, to the next. `counts_batch`: what a batch
    element gets depends on its number, or on how many there are. `packed`: sequences are packed, and cu_seqlens and
    max_seqlen its arguments too. `without_dropout` is what finds the configs of families that have others in calls
    without dropout.
    """

    identity: Identity
    kernels: Mapping[str, Any]
    configs: Mapping[str, Any]
    inputs: tuple[Input, ...] = ()
    params: tuple[Param, ...] = ()
    sums: tuple[Sums, ...] = ()
    loads: int = 1
    owners: tuple[Owner, ...] | None = None
    sink: str = ""
    span: int | None = None
    by_batch: bool = False
    by_head: bool = False
    counts_batch: bool = False
    packed: bool = False
    without_dropout: Mapping[str, Any] = field(default_factory=dict)

    # What follows from these: the parameters of each kernel.
    takes_of: Mapping[str, frozenset[str]] = field(init=False, repr=False)
    # Whether scores may be huge: log-sum-exps are in natural units then, with a residue.
    natural: bool = field(init=False)
    # Whether attention() takes a plan.
    planned: bool = field(init=False)
    # The variant's own arguments as its operator takes them.
    signature: Signature = field(init=False, repr=False)
    dtypes: tuple[torch.dtype, ...] = field(init=False, repr=False)
    # The inputs as they are where queries are packed.
    packed_inputs: tuple[Input, ...] = field(init=False, repr=False)
    # Its name with the digests of its spec and kernels, which no other variant has, nor this one before a change.
    full_name: str = field(init=False, repr=False)
    # What callers call the inputs.
    called: tuple[str, ...] = field(init=False, repr=False)
    # The inputs that have gradients.
    learned: tuple[str, ...] = field(init=False, repr=False)
    # Those of them that have sums.
    summed: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        digests = [self.identity.spec, *self.identity.templates.values()]
        taken = {name: frozenset(kernel.arg_names) for name, kernel in self.kernels.items()}
        known = {
            "takes_of": taken,
            "natural": "residue_ptr" in taken["forward"],
            "planned": "tiles_ptr" in taken["forward"],
            "signature": signature_of(self.inputs, self.params),
            "dtypes": tuple(each.dtype for each in self.inputs),
            "packed_inputs": tuple(each.packed or each for each in self.inputs),
            "full_name": "_".join([self.identity.variant, *digests, *["packed"] * self.packed]),
            "called": tuple(each.public for each in self.inputs),
            "summed": frozenset(each.input for each in self.sums),
            "learned": tuple(each.name for each in self.inputs if each.grad),
        }
        for name, value in known.items():
            object.__setattr__(self, name, value)

    def takes(self, kernel: str, name: str) -> bool:
        """Whether a kernel has a parameter of this name."""
        return name in self.takes_of[kernel]

    def configs_of(self, family: str, params: Mapping[str, Any]) -> Any:
        """What finds a family's configs for a call with these params, a `Lookup`."""
        own = self.configs[family]
        return own if params.get("dropout_p") else self.without_dropout.get(family, own)

    def refuse_plan_of(self, other: str) -> None:
        """ValueError where the variant of this full name, which made a plan, is another one."""
        if other != self.full_name:
            raise ValueError(f"plan was made by {other}; expected one that {self.full_name} has made")

    def is_scheduled(self, kernel: str) -> bool:
        """Whether a kernel walks a schedule."""
        return self.takes(kernel, "tiles_ptr")
