"""Attention as a differentiable torch operator, with a second operator for its backward pass.

The forward operator takes (q, k, v, *extra, scale, return_max, config, *plan, *key_plan, deterministic,
backward_config) and returns out, lse and the largest logits, which are empty unless `return_max` asks for them. The
backward operator takes (d_out, d_lse, q, k, v, *extra, out, lse, scale, backward_config, deterministic, *key_plan,
needs) and returns the gradients of q, k, v and the learned inputs. `extra` are the variant's inputs and runtime params,
`plan` the parts of a schedule for the tiles of the forward pass and `key_plan` those for the backward pass, of
operators that have plans; `needs` says of each gradient whether it is asked for.

Where scores may be huge, float32 does not hold the log-sum-exp of a row to the digits that its weights need. Then the
forward operator also returns what it has lost, the residue, which both operators have after lse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from flashgen.runtime.arguments import sizes_of
from flashgen.runtime.backward import is_deterministic
from flashgen.runtime.backward_pass import attention_backward
from flashgen.runtime.flops import backward_flops, forward_flops, pairs_of
from flashgen.runtime.forward_pass import attention_forward
from flashgen.runtime.own_arguments import check_inputs
from flashgen.runtime.packed_form import as_batch_of_one, by_head, by_token, given_by_head
from flashgen.runtime.packed_sizes import packed_sizes
from flashgen.runtime.planning import register_plans
from flashgen.runtime.schedule import check_parts
from flashgen.runtime.sizes import Sizes
from flashgen.runtime.strides import say_once
from flashgen.runtime.torch_operator import Operator, operator
from flashgen.runtime.variant import Variant
from flashgen.runtime.vmap import BatchAxes, own_axes

_PLAN = ("counts", "tiles")
_KEY_PLAN = ("key_counts", "key_tiles")
# What the operators call their own arguments: no input or param of a variant may be called so.
OPERATOR_WORDS = (
    "d_out", "d_lse", "q", "k", "v", "out", "lse", "residue", "scale", "return_max", "config", *_PLAN, *_KEY_PLAN,
    "deterministic", "backward_config", "needs",
)  # fmt: skip


def attention_operator(variant: Variant, shared: bool = False) -> Operator:
    """Register flashgen::<variant>_<digests> and flashgen::<variant>_<digests>_backward; returns the former.

    `shared`, for a module that was exported: operators of this name that exist already are the same, and are used.
    """
    name, schema = f"{'exported_' * shared}{variant.full_name}", variant.signature.schema
    common = f"Tensor q, Tensor k, Tensor v, {schema}{', ' if schema else ''}"
    residue = variant.natural
    plan, key_plan = (_optional(names if variant.planned else ()) for names in (_PLAN, _KEY_PLAN))
    if variant.planned:
        register_plans(variant, f"{name}_plan", common, shared=shared)
    forward, gradients = _Forward(variant), _Gradients(name, variant)
    backward = operator(
        f"{name}_backward",
        f"(Tensor d_out, Tensor? d_lse, {common}Tensor out, Tensor lse, {'Tensor residue, ' * residue}"
        "float? scale, str? config, "
        f"bool? deterministic{key_plan}, bool[] needs) -> ({', '.join(['Tensor'] * len(gradients.places))})",
        gradients.launch,
        gradients.fake,
        backward=gradients.differentiated_again,
        shared=shared,
        axes_of=gradients.axes_of,
        flops=gradients.flops,
    )
    return operator(
        name,
        f"({common}float? scale, bool return_max, str? config{plan}{key_plan}, bool? deterministic, "
        f"str? backward_config) -> (Tensor, Tensor{', Tensor' * residue}, Tensor)",
        forward.launch,
        forward.fake,
        gradients.save,
        lambda ctx, d_out, d_lse, *_: gradients.backward(backward, ctx, d_out, d_lse),
        shared=shared,
        completed=forward.completed,
        axes_of=forward.axes_of,
        flops=forward.flops,
    )


@dataclass(frozen=True)
class _Forward:
    """How out, lse and what else the forward operator returns come about."""

    variant: Variant

    @cached_property
    def own(self) -> int:
        """How many arguments behind q, k and v are the variant's."""
        return len(self.variant.signature.names)

    def launch(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
        """The forward operator; the largest logits are left out unless they are asked for."""
        variant, own = self.variant, self.own
        inputs, params = variant.signature.split(rest[:own])
        last = rest[own : own + (5 if variant.planned else 3)]
        if variant.packed:
            q, k, v = as_batch_of_one(q, k, v, *inputs[:2])
        return attention_forward(variant, q, k, v, inputs, params, *last)

    def completed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
        """All that the operator's signature returns."""
        found = self.launch(q, k, v, *rest)
        return found if rest[self.own + 1] else (*found, found[1].new_empty(0))

    def fake(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
        """Results of the right shape for tracing."""
        variant, own = self.variant, self.own
        inputs, params = variant.signature.split(rest[:own])
        if variant.packed:
            tensors = as_batch_of_one(q, k, v, *inputs[:2])
            sizes: Sizes = packed_sizes(sizes_of(*tensors), inputs, params)
        else:
            sizes = sizes_of(q, k, v)
        check_inputs(variant.inputs, q, sizes, inputs, params)
        check_parts(rest[own + 3 : own + 7] if variant.planned else (), q)
        rows = (q.shape[1], q.shape[0]) if variant.packed else q.shape[:3]
        shapes = [rows] * (2 if variant.natural else 1) + [rows if rest[own + 1] else (0,)]
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        return out, *(q.new_empty(shape, dtype=torch.float32) for shape in shapes)

    def axes_of(self, arguments: Sequence[Any]) -> BatchAxes | None:
        """Where the batch is in arguments and results; None where elements of a batch are not each for itself."""
        variant, last = self.variant, arguments[3 + self.own :]
        planned = any(isinstance(each, torch.Tensor) for each in last)
        if variant.packed or variant.counts_batch or planned or _drops(variant, arguments[3:]):
            return None
        rows = (0,) * (3 if variant.natural else 2)
        return BatchAxes((*own_axes(variant), *[None] * len(last)), (*rows, 0 if last[1] else None))

    def flops(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> int:
        """The operations of a call."""
        pairs = pairs_of(self.variant, q, k, rest[: self.own])
        return forward_flops(q.shape[1], pairs, q.shape[-1], v.shape[-1])


def _drops(variant: Variant, own: Sequence[Any]) -> bool:
    """Whether weights are dropped, by a batch element's number; `own` begins with the variant's own arguments."""
    return any(each.optional and tensor is not None for each, tensor in zip(variant.inputs, own, strict=False))


def _optional(names: Sequence[str]) -> str:
    return "".join(f", Tensor? {name}" for name in names)


@dataclass(frozen=True)
class _Gradients:
    """How the gradients of a variant come about."""

    operator_name: str
    variant: Variant

    @cached_property
    def tensors(self) -> int:
        """How many of the first arguments are tensors: q, k, v and the inputs."""
        return 3 + len(self.variant.inputs)

    @cached_property
    def own(self) -> int:
        """How many of the first arguments are q, k, v and what is the variant's."""
        return 3 + len(self.variant.signature.names)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Which of these have a gradient."""
        return (0, 1, 2, *(place for place, each in enumerate(self.variant.inputs, start=3) if each.grad))

    @cached_property
    def results(self) -> int:
        """How many outputs it reads: out, lse and its residue."""
        return 3 if self.variant.natural else 2

    def save(self, ctx: Any, inputs: Sequence[Any], output: tuple[torch.Tensor, ...]) -> None:
        """Keep what the backward pass reads: the arguments, out and lse, with its residue."""
        tensors = inputs[: self.tensors]
        for place in range(3, self.tensors):
            if place not in self.places and tensors[place] is not None and tensors[place].requires_grad:
                name = self.variant.inputs[place - 3].public
                say_once(name, f"{name} requires a gradient and gets none; `grad: true` in the spec gives it one")
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*tensors, *(inputs[-4:-2] if self.variant.planned else ()), *output[: self.results])
        ctx.params = inputs[self.tensors : self.own]
        ctx.scale, ctx.deterministic, ctx.config = inputs[self.own], *inputs[-2:]

    def backward(
        self, backward: Operator, ctx: Any, d_out: torch.Tensor | None, d_lse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradient of each argument of the forward operator, None where it has none."""
        asked = ctx.needs_input_grad
        gradients: list[torch.Tensor | None] = [None] * len(asked)
        if d_out is None and d_lse is None:
            return tuple(gradients)
        saved = ctx.saved_tensors
        results = self.results
        tensors, key_plan, output = saved[: self.tensors], saved[self.tensors : -results], saved[-results:]
        needs = [asked[place] for place in self.places]
        d_out = torch.zeros_like(output[0]) if d_out is None else d_out
        if d_lse is not None:
            # A loss that leaves out the rows that see no key still has no finite slope where lse is minus infinity.
            d_lse = torch.where(output[1] == -math.inf, 0.0, d_lse)
        # What torch says of this now is among what a call that is repeated is known by.
        exact = is_deterministic(ctx.deterministic) if getattr(ctx, "direct", False) else ctx.deterministic
        arguments = (d_out, d_lse, *tensors, *ctx.params, *output, ctx.scale, ctx.config, exact, *key_plan, needs)
        found = backward.run(arguments)
        for place, needed, gradient in zip(self.places, needs, found, strict=True):
            if needed:
                gradients[place] = gradient
        return tuple(gradients)

    def launch(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        """The backward operator. A gradient that is not asked for is an empty tensor: an operator cannot give None."""
        d_out, d_lse, q, k, v = arguments[:5]
        inputs, params = self.variant.signature.split(arguments[5 : 2 + self.own])
        first = 2 + self.own
        last = first + self.results
        scale, config, deterministic, *plan, needs = arguments[last:]
        # Hooks on saved tensors may bring back what kernels wrote in another layout.
        output = tuple(each.contiguous() for each in arguments[first:last])
        if self.variant.packed:
            q, k, v, d_out = map(by_head, (q, k, v, d_out))
            output, d_lse = given_by_head(output), d_lse if d_lse is None else d_lse.unsqueeze(0)
        found: Any = attention_backward(
            self.variant, d_out, d_lse, q, k, v, inputs, params, output, scale, config, deterministic,
            (plan[0], plan[1]) if plan else (None, None), needs,
        )  # fmt: skip
        if self.variant.packed:
            found = (*(each if each is None else by_token(each) for each in found[:3]), *found[3:])
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

    def axes_of(self, arguments: Sequence[Any]) -> BatchAxes | None:
        """Where the batch is in the arguments and gradients, unless one without a batch is asked for: it is a sum."""
        own, needs = own_axes(self.variant), arguments[-1]
        last = arguments[2 + self.own + self.results :]
        results = [own[place] if needed else None for place, needed in zip(self.places, needs, strict=True)]
        summed = any(needed and axis is None for needed, axis in zip(needs, results, strict=True))
        planned = any(isinstance(each, torch.Tensor) for each in last)
        by_number = self.variant.counts_batch or _drops(self.variant, arguments[5:])
        if self.variant.packed or by_number or summed or planned:
            return None
        return BatchAxes((0, 0, *own, *(0,) * self.results, *[None] * len(last)), tuple(results))

    def flops(self, *arguments: Any) -> int:
        """The operations of a call."""
        q, k, v, *own = arguments[2 : 2 + self.own]
        pairs = pairs_of(self.variant, q, k, own)
        return backward_flops(q.shape[1], pairs, q.shape[-1], v.shape[-1], arguments[-1])

    def differentiated_again(self, ctx: Any, *_: object) -> None:
        """The backward pass has no derivative of its own."""
        raise NotImplementedError(
            f"{self.operator_name} has no second derivative; expected one backward pass, or the variant's reference(), "
            "which has derivatives of any order"
        )
