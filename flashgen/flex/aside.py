"""What a caller is in the midst of is no part of a mod: it is traced aside from that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from flashgen.runtime.dispatch import asks_for_gradient


@contextmanager
def aside() -> Iterator[None]:
    """Outside of inference mode, of modes of torch's dispatcher, as that of fake tensors, of the transforms of
    torch.func, and of what keeps tensors for a backward pass, as a checkpoint does, which counts them.
    """
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(temporarily_clear_interpreter_stack())
        # torch.func forbids hooks of one's own, and then there are none.
        if torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is))
        yield


def unwrapped(value: Any) -> Any:
    """A captured value; in the place of a tensor that transforms of torch.func wrap, of no use outside of them, what
    they wrap, and of what vmap maps the first.
    """
    functorch = torch._C._functorch
    if not isinstance(value, torch.Tensor) or not functorch.is_functorch_wrapped_tensor(value):
        return value
    is_learned, mapped = asks_for_gradient(value), []
    while functorch.is_functorch_wrapped_tensor(value):
        mapped.append(functorch.maybe_get_bdim(value))
        value = functorch.get_unwrapped(value)
    # That of a vmap is a dimension of what the vmaps around it leave.
    for dimension in reversed(mapped):
        value = value if dimension < 0 else value.select(dimension, 0)
    return value.detach().requires_grad_(is_learned)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
