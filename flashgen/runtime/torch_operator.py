"""Registration of a generated module's function as a torch operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from threading import Lock
from typing import Any

import torch

from flashgen.runtime.dispatch import (
    asks_for_rules,
    is_calm,
    is_direct,
    is_recording,
    records,
    refuse_distributed,
    refuse_tangents,
    without_tangents,
)
from flashgen.runtime.flops import register_flops
from flashgen.runtime.replay import repeated
from flashgen.runtime.vmap import AxesOf, vmap_rule
from flashgen.runtime.without_gradients import WithoutGradients, recording

_library = torch.library.Library("flashgen", "FRAGMENT")
# Of a name that is free one thread at a time.
_registering = Lock()

Function = Callable[..., Any]


@dataclass(frozen=True)
class Operator:
    """A registered operator as a callable.

    `overload` is what torch knows it by, and what a policy of selective checkpointing names. Where torch's dispatcher
    would only pass a call on, it is passed on here, in a third of the time: to `recorded` where autograd listens. The
    transforms of torch.func take `transformed`. Where the dispatcher has something to do, `dispatched` takes the call
    to it: the overload, or what makes of the arguments of `launch` those of the overload.
    """

    overload: torch._ops.OpOverload
    dispatched: Function
    launch: Function
    recorded: type[torch.autograd.Function] | None
    transformed: type[torch.autograd.Function] | None

    def __call__(self, *arguments: Any) -> Any:
        return self.run(arguments)

    def run(self, arguments: Sequence[Any]) -> Any:
        """Call it."""
        if torch.compiler.is_compiling():
            return self.dispatched(*arguments)
        alike = repeated(self.launch, arguments) if is_calm() else None
        if alike is None:
            return self._run_alone(arguments)
        if alike.asks and self.recorded is not None and is_recording():
            return self._record(*arguments, alike)
        return alike(arguments)

    def _run_alone(self, arguments: Sequence[Any]) -> Any:
        """A call of which it is not known that the dispatcher passes it on, or that is like no other."""
        if not is_direct(arguments):
            refuse_tangents(self.overload.name(), arguments)
            refuse_distributed(self.overload.name(), arguments)
            if self.transformed is not None and asks_for_rules():
                return self.transformed.apply(*arguments)
            return self.dispatched(*arguments)
        if self.recorded is not None and records(arguments):
            return self.recorded.apply(*arguments, None)
        return self.launch(*arguments)

    @cached_property
    def _record(self) -> Function:
        """What `recorded.apply` comes to for tensors with memory of their own where no transform is at work."""
        found: Function = super(torch.autograd.Function, self.recorded).apply  # type: ignore[misc]
        return found


def operator(
    name: str, signature: str, launch: Function, fake: Function, save: Function | None = None,
    backward: Function | None = None, *, shared: bool = False, completed: Function | None = None,
    axes_of: AxesOf = lambda arguments: None, dispatched: Callable[[Function], Function] = lambda overload: overload,
    mapped: bool = False, without: WithoutGradients | None = None, flops: Callable[..., int] | None = None,
) -> Operator:  # fmt: skip
    """Register `flashgen::<name><signature>`.

    `launch` runs it on any device, `fake` gives outputs of the right shape without running it. `save(ctx, inputs,
    output)` and `backward(ctx, *gradients)` make it differentiable. `completed` is `launch` with all outputs of the
    signature, where that gives others; `dispatched` makes of the overload what calls it with the arguments that
    `launch` takes, where those are others. `axes_of` says where the batch is, for torch.func.vmap; one with several
    results and no derivative is `mapped` by it too if asked. `without` has the rules of one that refuses gradients.
    `flops` says how many operations a call with these arguments counts.
    Where the name is taken, by the same module imported before, it becomes <name>_2 and so on: what was imported before
    stays in use. Unless it is `shared`: then what is registered with the same signature is the same function; with
    another it is that of a file exported by another flashgen.
    """
    with _registering:
        names = (name if number == 1 else f"{name}_{number}" for number in count(1))
        name = next(each for each in names if not _is_taken(each) or (shared and _has_signature(each, signature)))
        if not _is_taken(name):
            _library.define(f"{name}{signature}")
            _library.impl(name, completed or launch, "CompositeExplicitAutograd")
            torch.library.register_fake(f"flashgen::{name}", fake, lib=_library)
            if backward is not None:
                torch.library.register_autograd(f"flashgen::{name}", backward, setup_context=save, lib=_library)
            if mapped or backward is not None:
                rule = vmap_rule(getattr(torch.ops.flashgen, name), axes_of)
                torch.library.register_vmap(f"flashgen::{name}", rule, lib=_library)
            if flops is not None:
                register_flops(getattr(torch.ops.flashgen, name), flops)
    overload = getattr(torch.ops.flashgen, name).default
    if without is not None:
        run = dispatched(overload)
        refusing = without.transformed(run)
        return Operator(overload, recording(refusing, run), launch, without.recorded(launch), refusing)
    recorded = None if backward is None else _recorded(name, launch, save, backward)
    transformed = None if backward is None else _transformed(name, overload, save, backward, axes_of)
    return Operator(overload, dispatched(overload), launch, recorded, transformed)


def _is_taken(name: str) -> bool:
    return hasattr(torch.ops.flashgen, name)


def _has_signature(name: str, signature: str) -> bool:
    """Whether what is registered by this name takes and returns the same."""
    found: bool = getattr(torch.ops.flashgen, name).default._schema == torch._C.parse_schema(
        f"flashgen::{name}{signature}"
    )
    return found


def _recorded(name: str, launch: Function, save: Function | None, backward: Function) -> type[torch.autograd.Function]:
    """The operator's derivative for calls that do not go through the dispatcher.

    Their last argument is what repeats them, or None.
    """

    def forward(ctx: Any, *given: Any) -> Any:
        ctx.direct = True
        *arguments, alike = given
        output = launch(*arguments) if alike is None else alike(arguments)
        if save is not None:
            save(ctx, arguments, output)
        return output

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), methods)


def _transformed(
    name: str, overload: Any, save: Function | None, backward: Function, axes_of: AxesOf
) -> type[torch.autograd.Function]:
    """The operator's derivative in the form that torch.func's transforms ask for, which its own does not have."""

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        if save is not None:
            save(ctx, inputs, output)

    def refuse(*_: object) -> None:
        # Under another transform, as in a hessian, its tensors hide their tangents until here.
        raise without_tangents(overload.name())

    def run(*arguments: Any) -> Any:
        return made.apply(*arguments) if asks_for_rules() else overload(*arguments)

    methods = {
        "forward": staticmethod(lambda *arguments: overload(*arguments)),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(backward),
        "jvp": staticmethod(refuse),
        "vmap": staticmethod(vmap_rule(run, axes_of)),
    }
    made: Any = type(name, (torch.autograd.Function,), methods)
    return made
