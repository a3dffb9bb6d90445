"""Models that read their masks as matrices, choose keys by themselves, or do not know their own is_causal."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

transformers = pytest.importorskip("transformers", minversion="5.17")

from flashgen.integrations import comparing, reading, tiny  # noqa: E402
from flashgen.integrations.masks import interface_mask  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("registered"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU suite has models of its own"),
]
SIZE = tiny.Size()
WORDS = torch.randint(3, SIZE.vocabulary, (2, 13), generator=torch.Generator().manual_seed(1))


def decoder(**others: Any) -> dict[str, Any]:
    return tiny._decoder(SIZE, **others)


def chosen_keys() -> Any:
    own = decoder(
        num_key_value_heads=2, q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12,
        n_routed_experts=2, num_experts_per_tok=1, n_group=1, topk_group=1, moe_intermediate_size=16,
        first_k_dense_replace=2, index_topk=4, index_head_dim=8, index_n_heads=2,
    )  # fmt: skip
    return transformers.DeepseekV32ForCausalLM, transformers.DeepseekV32Config(**own)


def more_keys() -> Any:
    """Layers that add keys of their own and extend the mask, and have no mask without padding but for eager."""
    own = decoder(
        q_lora_rank=16, o_lora_rank=8, o_groups=2, sliding_window=SIZE.longest, qk_rope_head_dim=8,
        partial_rotary_factor=0.5, n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, index_topk=4,
        index_head_dim=16, index_n_heads=2,
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 4},
        layer_types=["compressed_sparse_attention", "heavily_compressed_attention"],
    )  # fmt: skip
    return transformers.DeepseekV4ForCausalLM, transformers.DeepseekV4Config(**own)


def added_masks() -> Any:
    """Attention of its own for text, the interface for images alone."""
    own = tiny._encoder(SIZE, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, vision_config=vision())
    return transformers.GitForCausalLM, transformers.GitConfig(**own)


def sinks_of_queries() -> Any:
    own = decoder(
        swa_num_attention_heads=2, swa_num_key_value_heads=1, swa_head_dim=16, sliding_window_size=6, d_rel=4,
        rel_extent=8, n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
        n_layers_per_attn_res_block=1, layer_types=["hybrid_sliding", "hybrid"], unpadded_vocab_size=SIZE.vocabulary,
    )  # fmt: skip
    return transformers.Inkling2ForCausalLM, transformers.Inkling2TextConfig(**own)


def filled_masks() -> Any:
    return transformers.DogeForCausalLM, transformers.DogeConfig(**decoder(keep_window_size=6))


def filled_windows() -> Any:
    return transformers.DogeForCausalLM, transformers.DogeConfig(**decoder(keep_window_size=6, sliding_window=4))


def sliced_masks() -> Any:
    own = decoder(
        global_head_dim=32, sliding_window=4, num_hidden_layers=4, num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2, vocab_size_per_layer_input=SIZE.vocabulary,
        hidden_size_per_layer_input=8,
    )  # fmt: skip
    return transformers.Gemma4ForCausalLM, transformers.Gemma4TextConfig(**own)


def vision() -> dict[str, Any]:
    return {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32,
        "patch_size": 8,
    }  # fmt: skip


def joined_masks() -> Any:
    own = decoder(sliding_window=4, layer_types=["sliding_attention", "full_attention"])
    config = transformers.T5Gemma2Config(
        encoder={"text_config": own, "vision_config": vision(), "mm_tokens_per_image": 4}, decoder=own,
        image_token_index=126, eoi_token_index=125, vocab_size=SIZE.vocabulary, pad_token_id=0, bos_token_id=1,
        eos_token_id=None,
    )  # fmt: skip
    return transformers.T5Gemma2ForConditionalGeneration, config


def not_causal_by_its_own_account() -> Any:
    config = transformers.PegasusXConfig(
        vocab_size=SIZE.vocabulary, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64, init_std=0.2,
        dropout=0.0, num_global_tokens=4, block_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=None,
        decoder_start_token_id=1, forced_eos_token_id=None,
    )  # fmt: skip
    return transformers.PegasusXForConditionalGeneration, config


DECODERS = [chosen_keys, more_keys, added_masks, filled_masks, filled_windows, sliced_masks]
if "allow_is_causal_skip" not in inspect.getsource(inspect.getmodule(transformers.DogeForCausalLM)):
    # Then it forgets causality where no mask is made, with torch's attention too.
    DECODERS.remove(filled_masks)
    DECODERS.remove(filled_windows)
if hasattr(transformers, "Inkling2TextConfig"):
    DECODERS.append(sinks_of_queries)
PAIRS = [joined_masks, not_causal_by_its_own_account]


def eager(made_of: Callable[[], Any]) -> Any:
    transformers.set_seed(0)
    architecture, config = made_of()
    return architecture._from_config(config, attn_implementation="eager").eval()


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return float((found - expected).norm()) <= 2e-4 * float(expected.norm())


@pytest.mark.parametrize("padding", ["none", "left", "inside"])
@pytest.mark.parametrize("made_of", [*DECODERS, *PAIRS], ids=lambda each: each.__name__)
def test_a_model_that_reads_its_mask_agrees_with_its_eager_self(made_of: Callable[[], Any], padding: str) -> None:
    made, seen = eager(made_of), torch.ones_like(WORDS)
    seen[1, {"none": slice(0), "left": slice(4), "inside": slice(5, 7)}[padding]] = 0
    inputs = {"input_ids": WORDS, "attention_mask": seen}
    inputs |= {"decoder_input_ids": WORDS[:, :9]} if made_of in PAIRS else {}
    expected = comparing.results(made, inputs)
    made.set_attn_implementation("generated")
    assert all(map(near, comparing.results(made, inputs), expected))


@pytest.mark.parametrize("made_of", [*DECODERS, *PAIRS], ids=lambda each: each.__name__)
def test_it_gives_the_same_tokens(made_of: Callable[[], Any]) -> None:
    made, seen = eager(made_of), torch.ones_like(WORDS)
    seen[1, :4] = 0
    inputs = {"input_ids": WORDS, "attention_mask": seen}
    expected = comparing.greedy(made, inputs, 8)
    made.set_attn_implementation("generated")
    assert torch.equal(comparing.greedy(made, inputs, 8), expected)


@pytest.mark.parametrize("kept", [1, 3])
def test_layers_that_take_some_of_the_queries_take_their_masks(kept: int) -> None:
    made, seen = eager(sliced_masks), torch.ones_like(WORDS)
    # Between tokens, where keys say which are padding.
    seen[0, 5:9] = 0
    inputs = {"input_ids": WORDS, "attention_mask": seen, "logits_to_keep": kept}
    expected = made(**inputs).logits
    made.set_attn_implementation("generated")
    assert near(made(**inputs).logits, expected)


@pytest.mark.skipif(filled_masks not in DECODERS, reason="this transformers forgets causality where no mask is made")
def test_a_model_that_reads_its_mask_does_so_in_a_static_cache() -> None:
    made, inputs = eager(filled_masks), {"input_ids": WORDS, "attention_mask": torch.ones_like(WORDS)}
    static = {"cache_implementation": "static", "disable_compile": True}
    expected = comparing.greedy(made, inputs, 4, **static)
    made.set_attn_implementation("generated")
    assert torch.equal(comparing.greedy(made, inputs, 4, **static), expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("LlamaConfig", reading.HANDS_ON),
        # It says nothing of flex_attention.
        ("GPT2Config", reading.HANDS_ON),
        ("GptOssConfig", reading.ASKS_FOR_ALL),
        ("DeepseekV32Config", reading.READS_BOOLS),
        # It has flex_attention, by a function of its own.
        ("DogeConfig", reading.READS_BOOLS),
        ("GitConfig", reading.READS_FLOATS),
    ],
)
def test_models_say_how_they_read_masks(name: str, expected: str) -> None:
    config = getattr(transformers, name)()
    model = getattr(transformers, name.replace("Config", "Model"))
    assert model.config_class is type(config)
    assert reading.reading_of(config) == expected
    assert reading.reading_of(type("Own", (type(config),), {})()) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("LlamaModel", True), ("LlavaModel", True), ("CLIPVisionModel", False), ("Qwen2AudioEncoder", False)],
)
def test_models_say_whether_they_read_text(name: str, expected: bool) -> None:
    assert reading.reads_text(getattr(transformers, name).config_class()) is expected


def test_a_model_that_is_loaded_later_is_not_compiled_for_again() -> None:
    config, counter = transformers.LlamaConfig(), CompileCounter()

    def made(seen: torch.Tensor) -> torch.Tensor | None:
        return interface_mask(2, 15, 15, attention_mask=seen, config=config)

    compiled, seen = torch.compile(made, fullgraph=True, backend=counter), torch.ones(2, 15, dtype=torch.bool)
    compiled(seen)
    later = type("Later", (transformers.PreTrainedModel,), {})
    compiled(seen)
    assert later in transformers.PreTrainedModel.__subclasses__()
    assert counter.frame_count == 1
