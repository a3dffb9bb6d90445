"""Attention as a differentiable torch operator, with a second operator for its backward pass.

The forward operator takes (q, k, v, *extra, scale, config, *plan, *key_plan, deterministic, backward_config) and
returns out and lse. The backward operator takes (d_out, d_lse, q, k, v, *extra, out, lse, scale, backward_config,
deterministic, *key_plan, needs) and returns the gradients of q, k, v and the learned inputs. `extra` are the variant's
inputs and runtime params, `plan` the parts of a schedule for the tiles of the forward pass and `key_plan` those for the
backward pass, of operators that have plans; `needs` says of each gradient whether it is asked for.

Where scores may be huge, float32 does not hold the log-sum-exp of a row to the digits that its weights need. Then the
forward operator also returns what it has lost, the residue, and the backward operator takes it after lse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashgen.runtime.arguments import say_once, sizes_of
from flashgen.runtime.identity import Identity
from flashgen.runtime.operator import Function, Operator, operator

_PLAN = ", Tensor? counts, Tensor? tiles"
_KEY_PLAN = ", Tensor? key_counts, Tensor? key_tiles"


def attention_operator(
    identity: Identity, extra: str, launch: Function, launch_backward: Function, *,
    inputs: Function | None = None, sized_by: Sequence[str] = (), learned: Sequence[str] = (), planned: bool = False,
    residue: bool = False, shared: bool = False,
) -> Operator:  # fmt: skip
    """Register flashgen::<variant>_<digests> and flashgen::<variant>_<digests>_backward; returns the former.

    `extra` is the part of the signature that is the variant's own, such as "Tensor? slopes, float cap"; `inputs(q,
    sizes, *tensors, *params)` checks those of it that are tensors, their shapes by the params named in `sized_by`;
    `learned` names those that have gradients. `launch` and `launch_backward` are the generated functions; the latter
    may return None for a gradient that is not asked for. `residue`: there is one. `shared`: operators of this name that
    exist already are the same, and are used.
    """
    name = "_".join([identity.variant, identity.spec, *identity.templates.values()])
    parts = [part.split() for part in extra.split(", ")] if extra else []
    names = ["q", "k", "v", *(part[1] for part in parts)]
    places = tuple(names.index(each) for each in ("q", "k", "v", *learned))
    sizing = tuple(names.index(each) for each in sized_by)
    tensors = sum(part[0].startswith("Tensor") for part in parts)
    common = f"Tensor q, Tensor k, Tensor v, {extra}{', ' if extra else ''}"
    plan, key_plan = (_PLAN, _KEY_PLAN) if planned else ("", "")

    def forward(*arguments: Any) -> Any:
        return launch(*arguments[: -4 if planned else -2])

    def fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
        sizes = sizes_of(q, k, v)
        if inputs is not None:
            inputs(q, sizes, *rest[:tensors], *(rest[place - 3] for place in sizing))
        of_rows = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2 if residue else 1))
        return q.new_empty((*q.shape[:3], v.shape[3])), *of_rows

    called = ("q", "k", "v", *identity.arguments)
    gradients = _Gradients(name, tuple(names), called, 3 + tensors, places, planned, residue, launch_backward)
    backward = operator(
        f"{name}_backward",
        f"(Tensor d_out, Tensor? d_lse, {common}Tensor out, Tensor lse, {'Tensor residue, ' * residue}"
        "float? scale, str? config, "
        f"bool? deterministic{key_plan}, bool[] needs) -> ({', '.join(['Tensor'] * len(places))})",
        gradients.launch,
        gradients.fake,
        backward=gradients.differentiated_again,
        shared=shared,
    )
    return operator(
        name,
        f"({common}float? scale, str? config{plan}{key_plan}, bool? deterministic, str? backward_config)"
        f" -> (Tensor, Tensor{', Tensor' * residue})",
        forward,
        fake,
        gradients.save,
        lambda ctx, d_out, d_lse, *_: gradients.backward(backward, ctx, d_out, d_lse),
        shared=shared,
    )


@dataclass(frozen=True)
class _Gradients:
    """How gradients come about: `names` of q, k, v and extra, of which the first are `tensors`, and what callers call
    them; `places` of those among them that have a gradient. `planned`: there may be a schedule for the backward pass.
    `residue`: lse has one.
    """

    operator_name: str
    names: tuple[str, ...]
    called: tuple[str, ...]
    tensors: int
    places: tuple[int, ...]
    planned: bool
    residue: bool
    launch_backward: Function

    def save(self, ctx: Any, inputs: Sequence[Any], output: tuple[torch.Tensor, ...]) -> None:
        """Keep what the backward pass reads: the arguments, out and lse, with its residue."""
        tensors = inputs[: self.tensors]
        for place in range(3, self.tensors):
            if place not in self.places and tensors[place] is not None and tensors[place].requires_grad:
                name = self.called[place]
                say_once(name, f"{name} requires a gradient and gets none; `grad: true` in the spec gives it one")
        ctx.set_materialize_grads(False)
        if self.residue:
            ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*tensors, *(inputs[-4:-2] if self.planned else ()), *output)
        ctx.params = inputs[self.tensors : len(self.names)]
        ctx.scale, ctx.deterministic, ctx.config = inputs[len(self.names)], *inputs[-2:]

    def backward(
        self, backward: Operator, ctx: Any, d_out: torch.Tensor | None, d_lse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradient of each argument of the forward operator, None where it has none."""
        asked = ctx.needs_input_grad
        gradients: list[torch.Tensor | None] = [None] * len(asked)
        if d_out is None and d_lse is None:
            return tuple(gradients)
        saved = ctx.saved_tensors
        results = 3 if self.residue else 2
        tensors, key_plan, output = saved[: self.tensors], saved[self.tensors : -results], saved[-results:]
        needs = [asked[place] for place in self.places]
        d_out = torch.zeros_like(output[0]) if d_out is None else d_out
        arguments = (
            d_out, d_lse, *tensors, *ctx.params, *output, ctx.scale, ctx.config, ctx.deterministic, *key_plan, needs,
        )  # fmt: skip
        # The forward pass went the same way with the others.
        found = backward.run(arguments, (d_out, d_lse) if getattr(ctx, "direct", False) else arguments)
        for place, needed, gradient in zip(self.places, needs, found, strict=True):
            if needed:
                gradients[place] = gradient
        return tuple(gradients)

    def launch(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        """The backward operator. A gradient that is not asked for is an empty tensor: an operator cannot give None."""
        q, needs = arguments[2], arguments[-1]
        found = self.launch_backward(*arguments)
        if all(needs):
            return found
        return tuple(gradient if needed else q.new_empty(0) for gradient, needed in zip(found, needs, strict=True))

    def fake(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        """Gradients of the right shape for tracing."""
        own, needs = arguments[2:], arguments[-1]
        return tuple(
            own[place].new_empty(own[place].shape) if needed else own[0].new_empty(0)
            for place, needed in zip(self.places, needs, strict=True)
        )

    def differentiated_again(self, ctx: Any, *_: object) -> None:
        """The backward pass has no derivative of its own."""
        raise NotImplementedError(f"{self.operator_name} has no second derivative; expected one backward pass")
