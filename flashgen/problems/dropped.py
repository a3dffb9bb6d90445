"""A generated module with dropout whose calls, the formula's too, all drop by one seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flashgen.problems.packed import Module


@dataclass(frozen=True)
class Dropout:
    """The probability and the seed of a call."""

    p: float
    seed: int = 0

    def keywords(self, device: torch.device) -> dict[str, Any]:
        """dropout_p and dropout_seed as attention() takes them; without dropout no seed."""
        seed = None if self.p == 0 else torch.tensor(self.seed, dtype=torch.int64, device=device)
        return {"dropout_p": self.p, "dropout_seed": seed}


@dataclass(frozen=True)
class Dropping:
    """A formula with dropout, and the same without.

    `rescaled`: scores may be huge, so that kernels multiply each row of d_out by what its log-sum-exp has lost.
    """

    dropped: Callable[..., Any]
    undropped: Callable[..., Any]
    rescaled: bool = False

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, **keywords: Any) -> Any:
        return self.dropped(q, k, v, **keywords)


def formula_of(module: Module, dropout: Dropout) -> Dropping:
    """The formula of a generated module with dropout."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, **keywords: Any) -> Any:
        return module.reference(q, k, v, **keywords, **dropout.keywords(q.device))

    def undropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, **keywords: Any) -> Any:
        return module.reference(q, k, v, **keywords, dropout_p=0.0)

    return Dropping(reference, undropped)


@dataclass(frozen=True)
class DroppedModule:
    """Takes calls as a module without dropout does."""

    module: Module
    dropout: Dropout

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, **keywords: Any) -> Any:
        """out, and what else is asked for, by the kernels."""
        return self.module.attention(q, k, v, **keywords, **self.dropout.keywords(q.device))

    @property
    def plan(self) -> Callable[..., Any]:
        return self.module.plan

    @property
    def reference(self) -> Dropping:
        return formula_of(self.module, self.dropout)
