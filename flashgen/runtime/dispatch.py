"""Whether torch's dispatcher would do anything for a call but pass it on.

It does for modes (FakeTensorMode, torch.compile's tracers, selective checkpointing, the profiler), for functorch's
transforms, for subclasses of tensors and for lazily negated ones. Otherwise a call of an operator may go to its
function directly, which saves a quarter of the host's time.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._C._functorch import TransformType
from torch.autograd import forward_ad

PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_BACKEND_SELECT = DispatchKeySet(DispatchKey.BackendSelect)
# What a thread adds to the keys of every call where no mode is active: within torch.inference_mode, and elsewhere.
_NO_MODE = {
    _BACKEND_SELECT.raw_repr(),
    (_BACKEND_SELECT | DispatchKeySet(DispatchKey.ADInplaceOrView)).raw_repr(),
}


def is_calm() -> bool:
    """Whether nothing but autograd listens to the calls of this thread."""
    return not (
        torch._C._dispatch_tls_local_include_set().raw_repr() not in _NO_MODE
        or torch._C._len_torch_function_stack()
        or torch._C._autograd._profiler_enabled()
        or forward_ad._current_level >= 0
    )


def is_direct(arguments: Iterable[object]) -> bool:
    """Whether these arguments would go straight through the dispatcher, to autograd or to the kernel."""
    return is_calm() and all(_is_plain(value) for value in arguments if isinstance(value, torch.Tensor))


def is_real(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of torch's own classes and has values, as meta and fake ones have none."""
    return type(tensor) in PLAIN_TYPES and not tensor.is_meta


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of torch's own classes, and the memory that it says is what it holds."""
    return (
        type(tensor) in PLAIN_TYPES
        and (tensor.is_cuda or tensor.is_cpu)
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
        and not torch._is_functional_tensor(tensor)
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def is_transformed() -> bool:
    """Whether a transform of torch.func is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def asks_for_gradient(tensor: torch.Tensor) -> bool:
    """Whether a tensor requires a gradient; what torch.func.vmap maps says that it does not."""
    functorch = torch._C._functorch
    while not tensor.requires_grad and functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def asks_for_rules() -> bool:
    """Whether the innermost transform of torch.func has to know derivatives, or how to map."""
    interpreter = torch._C._functorch.peek_interpreter_stack()
    return interpreter is not None and interpreter.key() != TransformType.Functionalize


def refuse_tangents(name: str, arguments: Iterable[object]) -> None:
    """Forward-mode differentiation would lose the tangents of these arguments without a word."""
    if forward_ad._current_level >= 0:
        for value in arguments:
            if isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None:
                raise without_tangents(name)


def refuse_distributed(name: str, arguments: Iterable[object]) -> None:
    """torch has no rule for how an operator of ours is sharded, and says no more than that."""
    # Of torch's tensors only DTensor has this; to import its module takes longer than all of ours.
    if any(isinstance(value, torch.Tensor) and hasattr(value, "to_local") for value in arguments):
        raise NotImplementedError(
            f"{name} takes no DTensor; expected each process's own tensors, which "
            "torch.distributed.tensor.experimental.local_map hands over"
        )


def without_tangents(name: str) -> NotImplementedError:
    """What is raised where a forward-mode derivative is asked for."""
    return NotImplementedError(
        f"{name} has no forward-mode derivative; expected tensors without tangents, or the variant's reference(), "
        "which has one"
    )


def records(arguments: Iterable[object]) -> bool:
    """Whether autograd records a call with these arguments."""
    return is_recording() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in arguments)


def is_recording() -> bool:
    """Whether autograd records calls at all."""
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
    return torch.is_grad_enabled() and not excluded(DispatchKey.AutogradFunctionality)
