"""Continuous batching with windows, sinks, shared prefixes and chunked prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.17")

from flashgen.errors import ModelError  # noqa: E402
from flashgen.integrations import comparing, tiny  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("registered"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU suite has models of its own"),
]
SIZE = tiny.Size()
KINDS = ["sliding_attention", "full_attention"]
EXPERTS = {"num_experts_per_tok": 1, "intermediate_size": 32}


def prompts() -> list[list[int]]:
    """Longer than windows and than what one step takes; two share more than a page of tokens."""
    generator = torch.Generator().manual_seed(5)
    words = torch.randint(3, SIZE.vocabulary, (80,), generator=generator).tolist()
    return [words[:5], words[5:45], [*words[45:65], 7], [*words[45:65], 9, 3], words[70:71]]


def decoder(**others: Any) -> dict[str, Any]:
    return tiny._decoder(SIZE, sliding_window=SIZE.window, **others)


def told_to_masks_by_layer() -> Any:
    config = transformers.Qwen2MoeConfig(
        **decoder(use_sliding_window=True, layer_types=KINDS, num_experts=2, moe_intermediate_size=32, **EXPERTS),
        shared_expert_intermediate_size=32,
    )
    return transformers.Qwen2MoeForCausalLM, config


def told_to_masks() -> Any:
    return transformers.PhimoeForCausalLM, transformers.PhimoeConfig(**decoder(num_local_experts=2, **EXPERTS))


def reads_masks() -> Any:
    return transformers.DogeForCausalLM, transformers.DogeConfig(**decoder(keep_window_size=6))


def part_of_a_whole() -> Any:
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=decoder(layer_types=KINDS), vision_config=vision | {"image_size": 32, "patch_size": 8},
        mm_tokens_per_image=4, image_token_index=126, boi_token_index=124, eoi_token_index=125,
    )  # fmt: skip
    return transformers.Gemma3ForConditionalGeneration, config


def shares_keys() -> Any:
    config = transformers.Gemma4TextConfig(
        **decoder(num_hidden_layers=4, layer_types=KINDS * 2, global_head_dim=SIZE.head_dim, num_kv_shared_layers=2),
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=SIZE.vocabulary,
    )  # fmt: skip
    return transformers.Gemma4ForCausalLM, config


def eager(made_of: Any) -> Any:
    if isinstance(made_of, str):
        return tiny.model(made_of, SIZE, "eager")
    transformers.set_seed(0)
    architecture, config = made_of()
    return architecture._from_config(config, attn_implementation="eager").eval()


def alone(made: Any, tokens: int) -> list[list[int]]:
    """The greedy continuation of each prompt by itself."""
    rows = [torch.tensor([prompt]) for prompt in prompts()]
    found = [comparing.greedy(made, {"input_ids": row}, tokens, eos_token_id=None, pad_token_id=0) for row in rows]
    return [each[0, row.shape[1] :].tolist() for each, row in zip(found, rows, strict=True)]


def together(made: Any, tokens: int) -> list[list[int]]:
    return comparing.batched(made, prompts(), tokens, num_blocks=32, max_batch_tokens=12, use_cuda_graph=False)


@pytest.mark.parametrize(
    "made_of", ["Llama", "Gemma 2", "Gemma 3", "GPT-OSS", told_to_masks_by_layer, told_to_masks, shares_keys]
)
def test_requests_are_answered_as_each_alone(made_of: Any) -> None:
    made = eager(made_of)
    expected = alone(made, 4)
    made.set_attn_implementation("generated")
    assert sorted(together(made, 4)) == sorted(expected)
    assert made.config._attn_implementation == "generated"


def test_the_part_that_generates_says_the_attention() -> None:
    made = eager(part_of_a_whole)
    expected = alone(made, 3)
    made.set_attn_implementation({"text_config": "generated", "vision_config": "eager"})
    assert sorted(together(made, 3)) == sorted(expected)
    assert made.config.text_config._attn_implementation == "generated"
    made.set_attn_implementation({"": "generated", "text_config": "eager"})
    with pytest.raises(ValueError, match="not supported"):
        together(made, 3)


def test_models_that_read_their_masks_are_refused() -> None:
    made = eager(reads_masks)
    made.set_attn_implementation("generated")
    with pytest.raises(ModelError, match=r"models of DogeConfig read their masks.*'sdpa' and 'eager'"):
        together(made, 3)
