"""A model with generated attention beside the same with transformers' eager attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.masking_utils import create_chunked_causal_mask

from flashgen.integrations.tiny import ENCODERS, Size, model

_CONTEXT = 15


@dataclass(frozen=True)
class Agreement:
    """Differences from eager attention in the same dtype, relative, in norm, and whether greedy tokens are the same.

    `rounding` is the dtype's; `tokens` is None for an encoder, which generates none.
    """

    logits: float
    gradients: float
    tokens: bool | None
    rounding: float

    @property
    def agrees(self) -> bool:
        """Whether both are as near as sums of a few hundred terms in another order are, through a few layers."""
        return max(self.logits, self.gradients) <= 64 * self.rounding and self.tokens is not False


def sample(name: str, size: Size, seed: int = 1) -> dict[str, torch.Tensor]:
    """A batch of two for a model, the second padded on the left where the model reads text alone."""
    generator = torch.Generator().manual_seed(seed)

    def words(length: int) -> torch.Tensor:
        return torch.randint(3, size.vocabulary, (2, length), generator=generator)

    if name == "Whisper":
        # Two frames make one place of the encoder.
        frames = torch.randn(2, 8, size.longest // 2, generator=generator)
        return {"input_features": frames, "decoder_input_ids": words(_CONTEXT - 3)}
    seen = torch.ones(2, _CONTEXT, dtype=torch.int64)
    seen[1, :4] = 0
    decoder = {"decoder_input_ids": words(_CONTEXT - 3)} if name == "T5" else {}
    return {"input_ids": words(_CONTEXT), "attention_mask": seen, **decoder}


def results(made: Any, inputs: Mapping[str, torch.Tensor], call: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of what is no padding and the gradient of all weights, each flat, in float64."""
    made.zero_grad()
    logits = (made if call is None else call)(**inputs).logits
    if "attention_mask" in inputs and "decoder_input_ids" not in inputs:
        logits = logits[inputs["attention_mask"].bool()]
    weight = torch.linspace(-1, 1, logits.shape[-1], device=logits.device, dtype=logits.dtype)
    (logits * weight).sum().backward()
    gradients = [each.grad.double().flatten() for each in made.parameters() if each.grad is not None]
    return logits.detach().double().flatten(), torch.cat(gradients)


def greedy(made: Any, inputs: Mapping[str, torch.Tensor], tokens: int = 32, **options: Any) -> torch.Tensor:
    """The greedy continuation, int64 [2, length]."""
    given = {key: value for key, value in inputs.items() if key != "decoder_input_ids"}
    found: torch.Tensor = made.generate(**given, max_new_tokens=tokens, max_length=None, do_sample=False, **options)
    return found


def has_static_chunks() -> bool:
    """Whether this transformers takes a static cache of chunks: its 5.17 raises there, whatever the attention."""
    return "block_sequence_ids" in signature(create_chunked_causal_mask).parameters


def batched(made: Any, prompts: Sequence[Sequence[int]], tokens: int, **options: Any) -> list[list[int]]:
    """The greedy continuations of requests that are batched continuously, over pages of 16 tokens."""
    named = (each.name for each in fields(ContinuousBatchingConfig))
    # Releases of transformers differ in its name.
    page_size = next(name for name in named if name in ("page_size", "block_size"))
    pages = ContinuousBatchingConfig(**{page_size: 16, **options})
    pages.auto_switch_to_flash = False
    settings = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    found = made.generate_batch(
        inputs=prompts, generation_config=settings, continuous_batching_config=pages, progress_bar=False
    )
    return [each.generated_tokens for each in found.values()]


def compare(
    name: str, size: Size, attention: str, device: str = "cpu", dtype: torch.dtype = torch.float32, tokens: int = 32
) -> Agreement:
    """How a model of `MODELS` with this attention agrees with its eager self, in `dtype` on `device`."""
    inputs = _cast({key: value.to(device) for key, value in sample(name, size).items()}, dtype)
    eager, made = (model(name, size, each).to(device, dtype) for each in ("eager", attention))
    logits, gradients = (
        float((own - true).norm() / true.norm())
        for own, true in zip(results(made, inputs), results(eager, inputs), strict=True)
    )
    same = None
    if name not in ENCODERS:
        same = torch.equal(greedy(made, inputs, tokens), greedy(eager, inputs, tokens))
    return Agreement(logits, gradients, same, torch.finfo(dtype).eps)


def _cast(inputs: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs.items()}
