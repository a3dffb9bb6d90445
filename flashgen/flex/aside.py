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
    """A captured value; in the place of one that a transform of torch.func wraps, which outside of that is of no use,
    zeros with its shape, that require a gradient where it does.
    """
    if not isinstance(value, torch.Tensor) or not torch._C._functorch.is_functorch_wrapped_tensor(value):
        return value
    return torch.zeros(value.shape, dtype=value.dtype, device=value.device).requires_grad_(asks_for_gradient(value))


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
