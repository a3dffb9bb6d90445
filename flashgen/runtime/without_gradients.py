"""What autograd and torch.func are told of attention over a paged cache, which has no derivatives.

A call with tensors that require gradients runs, as serving code without torch.no_grad() needs it. Its results require
them too, so that whoever then asks for a gradient is told, where otherwise it would be missing without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from flashgen.runtime.dispatch import records, without_tangents
from flashgen.runtime.vmap import each_alone


@dataclass(frozen=True)
class WithoutGradients:
    """The rules of an operator of this name, which takes the caller's out, or None, at a place among its arguments.

    That out stays without a history, which would grow from step to step. What is returned has one, and its memory.
    """

    name: str
    out_at: int

    def recorded(self, launch: Callable[..., Any]) -> type[torch.autograd.Function]:
        """What autograd records of a launch; the last argument is what repeats one, or None."""

        def forward(ctx: Any, *given: Any) -> Any:
            *arguments, alike = given
            self._refuse_out(arguments)
            return self._whole(arguments, launch(*arguments) if alike is None else alike(arguments))

        methods = {"forward": staticmethod(forward), "backward": staticmethod(_refuse_gradients)}
        return type(self.name, (torch.autograd.Function,), methods)

    def transformed(self, run: Callable[..., Any]) -> type[torch.autograd.Function]:
        """What torch.func's transforms are given, for calls that go through the dispatcher."""

        def forward(*arguments: Any) -> Any:
            self._refuse_out(arguments)
            return self._whole(arguments, run(*arguments))

        def refuse_tangents(*_: object) -> NoReturn:
            raise without_tangents("attention_paged")

        def mapped(info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
            if arguments[self.out_at] is not None:
                raise ValueError("out is given to attention_paged under torch.func.vmap; expected None")
            dims = [dim if isinstance(dim, int) else None for dim in in_dims]
            return each_alone(made.apply, info.batch_size, dims, arguments)

        methods = {
            "forward": staticmethod(forward),
            "setup_context": staticmethod(lambda ctx, inputs, output: None),
            "backward": staticmethod(_refuse_gradients),
            "jvp": staticmethod(refuse_tangents),
            "vmap": staticmethod(mapped),
        }
        made: Any = type(self.name, (torch.autograd.Function,), methods)
        return made

    def _refuse_out(self, arguments: Sequence[Any]) -> None:
        out = arguments[self.out_at]
        if out is not None and out.requires_grad:
            raise ValueError(
                "out requires a gradient, and attention_paged has none; expected one that does not, or torch.no_grad()"
            )

    def _whole(self, arguments: Sequence[Any], found: tuple[Any, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """out and lse, where the caller's out is a tensor of its own that is no view: those may be written to."""
        out, lse = found
        return arguments[self.out_at].data if out is None else out, lse


def recording(transformed: type[torch.autograd.Function], run: Callable[..., Any]) -> Callable[..., Any]:
    """What goes through the dispatcher, recorded where autograd listens: the operator itself has no rule for it."""

    def through(*arguments: Any) -> Any:
        if not torch.compiler.is_compiling() and records(arguments):
            return transformed.apply(*arguments)
        return run(*arguments)

    return through


def _refuse_gradients(*_: object) -> NoReturn:
    raise NotImplementedError(
        "attention_paged has no gradients; expected attention or attention_varlen, or torch.no_grad()"
    )
