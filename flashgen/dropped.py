"""A generated module with dropout whose calls, the formula's too, all drop by one seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flashgen.packed import Module


@dataclass(frozen=True)
class Dropout:
    """The probability and the seed of a call."""

    p: float
    seed: int = 0

    def keywords(self, device: torch.device) -> dict[str, Any]:
        """The same as attention() takes it; without dropout no seed."""
        seed = None if self.p == 0 else torch.tensor(self.seed, dtype=torch.int64, device=device)
        return {"dropout_p": self.p, "dropout_seed": seed}


@dataclass(frozen=True)
class DroppedReference:
    """The formula of a module with dropout."""

    whole: Callable[..., Any]
    dropout: Dropout

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, **keywords: Any) -> Any:
        return self.whole(q, k, v, **keywords, **self.dropout.keywords(q.device))

    @property
    def undropped(self) -> DroppedReference:
        """The same without dropout."""
        return DroppedReference(self.whole, Dropout(0.0))


@dataclass(frozen=True)
class DroppedModule:
    """Takes calls as a module without dropout does."""

    module: Module
    dropout: Dropout

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **keywords: Any) -> Any:
        """out, and what else is asked for, by the kernels."""
        return self.module.attention(q, k, v, **keywords, **self.dropout.keywords(q.device))

    @property
    def plan(self) -> Callable[..., Any]:
        return self.module.plan

    @property
    def reference(self) -> DroppedReference:
        return DroppedReference(self.module.reference, self.dropout)
