"""Requests as the engine served them beside the same model run alone, with dense attention over the whole sequence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention import dense
from engine.model import Attend, Model
from engine.scheduler import Sequence

WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}

# The logits of a request may be this much further from the exact ones than the furthest of those run alone.
NOISE = 2.0


@dataclass(frozen=True)
class Comparison:
    """Distances of logits from exact ones, root mean squares, of the request where each is furthest; and tokens.

    `served` is the engine's, `alone` that of dense attention in the same dtype, `same` the share of tokens that both
    find likeliest.
    """

    requests: int
    dtype: torch.dtype
    served: float
    alone: float
    same: float

    @property
    def agree(self) -> bool:
        near = self.served <= NOISE * self.alone
        return near and (self.same == 1.0 or self.dtype != torch.float32)

    def __str__(self) -> str:
        return (
            f"{self.requests} requests {'agree' if self.agree else 'DO NOT AGREE'} with dense attention: "
            f"{self.same:.2%} of tokens the same, logits {self.served:.1e} from exact ones, alone {self.alone:.1e}"
        )


@torch.inference_mode()
def compare(model: Model, sequences: Iterable[Sequence], cache: torch.dtype) -> Comparison:
    """Hold what an engine with `keep_logits` found, with caches of this dtype, against the model run alone.

    Each new token is looked at behind those that the engine found before it: where all are the likeliest, they are
    those of greedy decoding.
    """
    wide = model.in_dtype(WIDER[model.dtype])
    served, alone, same = [], [], []
    for sequence in sequences:
        if sequence.new_tokens:
            logits = torch.stack(sequence.logits).to(model.device)
            dense_logits = logits_alone(model, sequence, dense(cache))
            exact = logits_alone(wide, sequence, dense(cache, exact=True))
            served.append(distance(logits, exact))
            alone.append(distance(dense_logits, exact))
            same.append(dense_logits.argmax(-1).cpu() == torch.tensor(sequence.new_tokens))
    return Comparison(len(served), model.dtype, max(served), max(alone), torch.cat(same).double().mean().item())


def logits_alone(model: Model, sequence: Sequence, attend: Attend) -> Tensor:
    """Those of which each new token of the sequence was to be the likeliest, [new tokens, vocabulary]."""
    tokens = torch.tensor(sequence.tokens[:-1], device=model.device)
    hidden = model(tokens, torch.arange(len(tokens), device=model.device), attend)
    return model.head(hidden[len(sequence.request.prompt) - 1 :])


def distance(logits: Tensor, exact: Tensor) -> float:
    """The root mean square of the differences."""
    return (logits.to(exact.dtype) - exact).square().mean().sqrt().item()
