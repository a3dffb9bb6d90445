"""Documents that follow each other in one row are as each alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.17")

from flashgen.errors import ModelError  # noqa: E402
from flashgen.integrations import tiny  # noqa: E402
from flashgen.integrations.transformers import generated_attention  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("registered"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU suite has models of its own"),
]
SIZE = tiny.Size()
LENGTHS = (13, 4, 9)
TOTAL = sum(LENGTHS)
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS])[None]


def packed(**others: Any) -> dict[str, Any]:
    """Documents side by side, with what DataCollatorWithFlattening says of them."""
    words = torch.randint(3, SIZE.vocabulary, (1, TOTAL), generator=torch.Generator().manual_seed(5))
    ends = torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    lengths = {f"max_length_{side}": max(LENGTHS) for side in "qk"}
    return {"input_ids": words, "cu_seq_lens_q": ends, "cu_seq_lens_k": ends, **lengths, **others}


def padded(kind: str) -> torch.Tensor:
    seen = torch.ones(1, TOTAL, dtype=torch.int64)
    hidden = {"none": [], "right": [24, 25], "inside": [6, 7, 20]}[kind]
    seen[0, hidden] = 0
    return seen


def alone(made: Any, seen: torch.Tensor) -> torch.Tensor:
    """The logits of each document by itself."""
    each = zip(packed()["input_ids"].split(LENGTHS, 1), seen.split(LENGTHS, 1), strict=True)
    return torch.cat([made(input_ids=words, attention_mask=own).logits for words, own in each], 1)


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


def eager(made_of: Callable[[], Any]) -> Any:
    transformers.set_seed(0)
    architecture, config = made_of()
    return architecture._from_config(config, attn_implementation="eager").eval()


@pytest.mark.parametrize("by_position", [False, True], ids=["", "positions too"])
@pytest.mark.parametrize("name", ["Llama", "Gemma 3", "GPT-OSS"])
def test_documents_whose_ends_are_given_are_as_each_alone(name: str, by_position: bool) -> None:
    # Of GPT-OSS transformers asks for masks without position_ids, of the others where nothing is cached.
    made, inputs = tiny.model(name, SIZE, "eager"), packed()
    if by_position:
        inputs |= {"position_ids": POSITIONS, "use_cache": False}
    expected = alone(made, padded("none"))
    made.set_attn_implementation("generated")
    assert near(made(**inputs).logits, expected)


@pytest.mark.parametrize("compiles", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("padding", ["none", "right", "inside"])
@pytest.mark.parametrize("name", ["Llama", "Gemma 3"])
def test_padding_among_documents_does_not_join_them(name: str, padding: str, compiles: bool) -> None:
    # Under torch.compile nobody knows that there is none.
    made, seen = tiny.model(name, SIZE, "eager"), padded(padding)
    expected = alone(made, seen)
    made.set_attn_implementation("generated")
    call = torch.compile(made, fullgraph=True, backend="eager") if compiles else made
    found = call(**packed(attention_mask=seen)).logits
    assert near(found[seen.bool()], expected[seen.bool()])


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_matrix_of_the_caller_holds_within_documents(dtype: torch.dtype) -> None:
    made = tiny.model("Llama", SIZE, "eager")
    expected = alone(made, padded("none"))
    made.set_attn_implementation("generated")
    mask = torch.ones(1, 1, TOTAL, TOTAL, dtype=torch.bool).tril()
    if dtype != torch.bool:
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(dtype).min)
    assert near(made(**packed(attention_mask=mask, position_ids=POSITIONS)).logits, expected)


def shares_keys() -> Any:
    kinds = ["sliding_attention", "full_attention"]
    own = tiny._decoder(
        SIZE, num_hidden_layers=4, layer_types=kinds * 2, sliding_window=SIZE.window, num_kv_shared_layers=2,
        global_head_dim=SIZE.head_dim, hidden_size_per_layer_input=8, vocab_size_per_layer_input=SIZE.vocabulary,
    )  # fmt: skip
    return transformers.Gemma4ForCausalLM, transformers.Gemma4TextConfig(**own)


@pytest.mark.parametrize("padding", ["none", "inside"])
@pytest.mark.parametrize("kept", [1, 3])
def test_the_last_queries_are_of_the_last_document(kept: int, padding: str) -> None:
    made, seen = eager(shares_keys), padded(padding)
    expected = alone(made, seen)[:, -kept:]
    made.set_attn_implementation("generated")
    assert near(made(**packed(attention_mask=seen, logits_to_keep=kept)).logits, expected)


def test_ends_of_documents_in_several_rows_are_refused() -> None:
    made, inputs = tiny.model("Llama", SIZE, "generated"), packed()
    with pytest.raises(ModelError, match="cu_seq_lens_q came with 2 sequences"):
        made(**inputs | {"input_ids": inputs["input_ids"].expand(2, -1)})


def reads_images() -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = {**sizes, "model_type": "clip_vision_model", "image_size": 32, "patch_size": 8, "projection_dim": 32}
    config = transformers.LlavaConfig(
        text_config={**tiny._decoder(SIZE), "model_type": "llama"}, vision_config=vision, image_token_index=126,
        vision_feature_layer=-1,
    )  # fmt: skip
    return transformers.LlavaForConditionalGeneration, config


def test_ends_of_texts_are_not_those_of_the_images_between() -> None:
    # Sixteen patches make an image of each document's.
    made, length = eager(reads_images), 22
    words = torch.randint(3, 120, (2, length), generator=torch.Generator().manual_seed(3))
    words[:, 3:19] = 126
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    each = [made(input_ids=words[b : b + 1], pixel_values=images[b : b + 1]).logits for b in (0, 1)]
    made.set_attn_implementation("generated")
    ends = torch.tensor([0, length, 2 * length], dtype=torch.int32)
    positions = torch.arange(length).repeat(2)[None]
    found = made(
        input_ids=words.reshape(1, -1), pixel_values=images, position_ids=positions, cu_seq_lens_q=ends,
        cu_seq_lens_k=ends,
    )  # fmt: skip
    assert near(found.logits, torch.cat(each, 1))


def test_nor_those_of_keys_of_something_else() -> None:
    q = torch.randn(1, 2, TOTAL, 16, generator=torch.Generator().manual_seed(1))
    k = torch.randn(1, 2, TOTAL + 5, 16, generator=torch.Generator().manual_seed(2))
    layer = torch.nn.Module()
    for mask in (None, torch.rand(1, 1, TOTAL, TOTAL + 5, generator=torch.Generator().manual_seed(3)) < 0.5):
        expected, _ = generated_attention(layer, q, k, k, mask, is_causal=False)
        ends = {name: packed()[name] for name in ("cu_seq_lens_q", "cu_seq_lens_k")}
        found, _ = generated_attention(layer, q, k, k, mask, is_causal=False, **ends)
        assert torch.equal(found, expected)


def reads_masks() -> Any:
    return transformers.DogeForCausalLM, transformers.DogeConfig(**tiny._decoder(SIZE, keep_window_size=6))


def test_a_model_that_reads_its_mask_is_told_of_documents_by_positions() -> None:
    made = eager(reads_masks)
    by_position = {"position_ids": POSITIONS, "use_cache": False}
    expected = made(input_ids=packed()["input_ids"], **by_position).logits
    made.set_attn_implementation("generated")
    assert near(made(**packed(**by_position)).logits, expected)
    for unknown in ({}, {"attention_mask": padded("inside")}):
        with pytest.raises(ModelError, match="reads its mask, which shows other documents too; expected position_ids"):
            made(**packed(**unknown))
