"""The gradient of an input that an expression reads at several places, place by place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from flashgen.verify.rounded import Arithmetic


class Places(Arithmetic):
    """Within it each read of elements of a tensor that gets a gradient is remembered."""

    def __init__(self) -> None:
        super().__init__()
        self._reads: list[torch.Tensor] = []

    def _result(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        # Without autograd a view of a tensor says that it requires a gradient too.
        if func is torch.Tensor.__getitem__ and result.grad_fn is not None:
            self._reads.append(result)
        return result

    def gradients(self, output: torch.Tensor, upstream: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        """The sum over the places where `leaf` is read of |the gradient that comes from there|: what is added up
        where they cancel, as those of x[q] - x[k] do. It is no less than |the gradient| itself. The graph is kept.
        """
        given = torch.autograd.grad(
            output, [leaf, *self._reads], upstream, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        whole, *of_reads = given
        parts = torch.zeros_like(leaf)
        for read, gradient in zip(self._reads, of_reads, strict=True):
            part = torch.autograd.grad(read, leaf, gradient, retain_graph=True, allow_unused=True)[0]
            parts += 0 if part is None else part.abs()
        return torch.maximum(whole.abs(), parts)
