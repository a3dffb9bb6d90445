"""Models of transformers with random weights, small enough for Triton's interpreter or, wider, for one GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from flashgen.errors import ModelError


@dataclass(frozen=True)
class Size:
    """How large a model is: `window` is the size of sliding windows and chunks."""

    layers: int = 2
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 16
    vocabulary: int = 128
    window: int = 8
    longest: int = 128

    @property
    def hidden(self) -> int:
        """The width of the residual stream."""
        return self.heads * self.head_dim


def model(name: str, size: Size, attention: str, device: str = "cpu", seed: int = 0) -> Any:
    """The model of this name with this attention, its weights drawn from `seed` on `device`, float32, in `eval`.

    Raises ModelError where parts of it have another attention: transformers 5.17 sets that of T5's two halves when a
    model is made, and not afterwards.
    """
    transformers.set_seed(seed)
    config, architecture = MODELS[name](size)
    with torch.device(device):
        made = architecture._from_config(config, attn_implementation=attention).eval()
        # Zeros, as of learned sinks and biases, would hide what becomes of them.
        for parameter in made.parameters():
            if not parameter.detach().any():
                parameter.data.normal_(std=0.5)
    found = {part.config._attn_implementation for part in made.modules() if hasattr(part, "config")}
    if found != {attention}:
        raise ModelError(f"parts of {name} have the attention {sorted(found)}; expected {attention!r} in all")
    return made


def _decoder(size: Size, **others: Any) -> dict[str, Any]:
    return {
        "hidden_size": size.hidden,
        "intermediate_size": 2 * size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": size.longest,
        # Larger than models have, so that attention is far from even.
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": None,
        # Tied, a small model repeats its last token for ever.
        "tie_word_embeddings": False,
        "attention_dropout": 0.0,
        **others,
    }


def _alternating(size: Size, other: str) -> list[str]:
    return [other if layer % 2 == 0 else "full_attention" for layer in range(size.layers)]


def _gemma(size: Size, **others: Any) -> dict[str, Any]:
    own = {"layer_types": _alternating(size, "sliding_attention"), "query_pre_attn_scalar": size.head_dim}
    return _decoder(size, sliding_window=size.window, **own, **others)


def _whisper(size: Size) -> tuple[Any, Any]:
    config = transformers.WhisperConfig(
        vocab_size=size.vocabulary, num_mel_bins=8, d_model=size.hidden, encoder_layers=size.layers,
        decoder_layers=size.layers, encoder_attention_heads=size.heads, decoder_attention_heads=size.heads,
        encoder_ffn_dim=2 * size.hidden, decoder_ffn_dim=2 * size.hidden, max_source_positions=size.longest // 4,
        max_target_positions=size.longest, init_std=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=None,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return config, transformers.WhisperForConditionalGeneration


def _t5(size: Size) -> tuple[Any, Any]:
    config = transformers.T5Config(  # type: ignore[call-arg]
        vocab_size=size.vocabulary, d_model=size.hidden, d_kv=size.head_dim, d_ff=2 * size.hidden,
        num_layers=size.layers, num_heads=size.heads, relative_attention_num_buckets=8,
        relative_attention_max_distance=16, dropout_rate=0.0, initializer_factor=0.5, pad_token_id=0,
        eos_token_id=None, decoder_start_token_id=0,
    )  # fmt: skip
    return config, transformers.T5ForConditionalGeneration


def _encoder(size: Size, **others: Any) -> dict[str, Any]:
    own = {key: value for key, value in _decoder(size).items() if key not in ("num_key_value_heads", "head_dim")}
    return own | others


def _bert(size: Size) -> tuple[Any, Any]:
    own = _encoder(size, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
    return transformers.BertConfig(**own), transformers.BertForMaskedLM


def _modernbert(size: Size) -> tuple[Any, Any]:
    own = _encoder(size, local_attention=size.window, global_attn_every_n_layers=2)
    return transformers.ModernBertConfig(**own, cls_token_id=1, sep_token_id=2), transformers.ModernBertForMaskedLM


def _llama4(size: Size) -> tuple[Any, Any]:
    own = _decoder(
        size, intermediate_size_mlp=2 * size.hidden, num_local_experts=2, attention_chunk_size=size.window,
        layer_types=_alternating(size, "chunked_attention"), no_rope_layers=[1, 0] * (size.layers // 2),
    )  # fmt: skip
    return transformers.Llama4TextConfig(**own), transformers.Llama4ForCausalLM


def _gpt_oss(size: Size) -> tuple[Any, Any]:
    own = _decoder(
        size, sliding_window=size.window, layer_types=_alternating(size, "sliding_attention"), num_local_experts=2,
        num_experts_per_tok=1,
    )  # fmt: skip
    return transformers.GptOssConfig(**own), transformers.GptOssForCausalLM


MODELS: dict[str, Callable[[Size], tuple[Any, Any]]] = {
    "Llama": lambda size: (transformers.LlamaConfig(**_decoder(size)), transformers.LlamaForCausalLM),
    "Mistral": lambda size: (
        transformers.MistralConfig(**_decoder(size, sliding_window=size.window)),
        transformers.MistralForCausalLM,
    ),
    "Qwen3": lambda size: (transformers.Qwen3Config(**_decoder(size)), transformers.Qwen3ForCausalLM),
    "Gemma 2": lambda size: (
        transformers.Gemma2Config(**_gemma(size, attn_logit_softcapping=5.0)),
        transformers.Gemma2ForCausalLM,
    ),
    "Gemma 3": lambda size: (transformers.Gemma3TextConfig(**_gemma(size)), transformers.Gemma3ForCausalLM),
    "GPT-OSS": _gpt_oss,
    "Phi-3": lambda size: (
        transformers.Phi3Config(**_decoder(size, sliding_window=size.window)),
        transformers.Phi3ForCausalLM,
    ),
    "Llama 4": _llama4,
    "ModernBERT": _modernbert,
    "BERT": _bert,
    "T5": _t5,
    "Whisper": _whisper,
}
ENCODERS = frozenset({"ModernBERT", "BERT"})
