"""What of training is measured: the forward pass, the backward pass, or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flashgen.problems.calls import Call
from flashgen.problems.problem import Problem
from flashgen.problems.work import useful_flops
from flashgen.spec.variant import Variant

if TYPE_CHECKING:
    from torch import Tensor

Forward = Callable[[], "Tensor"]
Run = Callable[[], tuple["Tensor", ...]]

FORWARD, BACKWARD, BOTH = "forward", "backward", "forward+backward"
PASSES = (FORWARD, BACKWARD, BOTH)


def flops(step: str, problem: Problem, density: float) -> float:
    """Floating-point operations of a pass over the visible pairs alone.

    The backward pass has five matrix products: q k^T and d_out v^T to have the scores and their gradients again, and
    those that make dQ, dK and dV. Where head_dim is v_head_dim that is 2.5 times the forward pass.
    """
    forward = useful_flops(problem, density)
    backward = forward * (3 * problem.head_dim + 2 * problem.v_head_dim) / (problem.head_dim + problem.v_head_dim)
    return {FORWARD: forward, BACKWARD: backward, BOTH: forward + backward}[step]


def digests(step: str, templates: Mapping[str, str]) -> str:
    """The digests of the kernels that a pass runs."""
    chosen = (digest for kernel, digest in templates.items() if step == BOTH or kernel.startswith(step))
    return "+".join(chosen)


def leaves(variant: Variant, call: Call) -> tuple[str, ...]:
    """The arguments that get gradients: q, k, v and the learned inputs.

    An input with a default, such as ALiBi's slopes, is taken as given: few learn it.
    """
    learned = (tensor.name for tensor in variant.inputs if tensor.grad and tensor.default is None)
    return "q", "k", "v", *(name for name in learned if name in call.inputs)


def trainable(variant: Variant, call: Call) -> Call:
    """The call with arguments that ask for gradients."""
    learned = leaves(variant, call)[3:]
    inputs = {name: t.detach().requires_grad_() if name in learned else t for name, t in call.inputs.items()}
    q, k, v = (tensor.detach().requires_grad_() for tensor in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v, inputs=inputs)


def run_of(step: str, forward: Forward, variant: Variant, call: Call) -> Run:
    """A pass as a call without arguments: it returns the output, or the gradients of `leaves`.

    What the backward pass alone needs of the forward pass is computed here, once.
    """
    named = {"q": call.q, "k": call.k, "v": call.v, **call.inputs}
    wanted = [named[name] for name in leaves(variant, call)]
    return gradients_run(step, forward, wanted, (*call.q.shape[:-1], call.v.shape[-1]))


def gradients_run(step: str, forward: Forward, wanted: Sequence[Tensor], shape: Sequence[int]) -> Run:
    """A pass as a call: it returns the output, or the gradients of `wanted`, q the first. `shape` is the output's."""
    import torch
    from torch._functorch import config as compilation

    if step == FORWARD:
        return lambda: (forward(),)
    q = wanted[0]
    generator = torch.Generator(q.device).manual_seed(0)
    d_out = torch.randn(shape, generator=generator, device=q.device).to(q.dtype)
    if step == BOTH:
        return lambda: torch.autograd.grad(forward(), wanted, d_out)
    # Compiled code would else reuse what the forward pass kept for the backward pass, which here runs many times. Both
    # ask: code from torch's cache may have been compiled for one backward pass.
    kept = compilation.patch(donated_buffer=False)
    with torch.enable_grad(), kept:
        out = forward()
    return kept(lambda: torch.autograd.grad(out, wanted, d_out, retain_graph=True))
