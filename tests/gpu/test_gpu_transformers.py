"""Models of transformers on a GPU: as eager attention says, in every cache, compiled, and many requests at once."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", minversion="5.17")

from flashgen.integrations import comparing, tiny
from flashgen.integrations.transformers import register

pytestmark = pytest.mark.gpu
SIZE = tiny.Size()


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


@pytest.mark.parametrize("name", tiny.MODELS)
def test_a_model_agrees_with_its_eager_self(name: str) -> None:
    found = comparing.compare(name, SIZE, "generated", "cuda")
    assert found.agrees, found


@pytest.mark.parametrize("name", ["Llama", "Gemma 3", "GPT-OSS", "Llama 4"])
def test_a_compiled_static_cache_gives_the_same_tokens(name: str) -> None:
    if name == "Llama 4" and not comparing.has_static_chunks():
        pytest.skip("this transformers raises for a static cache of chunks, whatever the attention")
    made = tiny.model(name, SIZE, "eager").cuda()
    inputs = {key: value.cuda() for key, value in comparing.sample(name, SIZE).items()}
    eager = comparing.greedy(made, inputs)
    made.set_attn_implementation("generated")
    assert torch.equal(comparing.greedy(made, inputs, cache_implementation="static"), eager)


@pytest.mark.parametrize("name", ["Llama", "Gemma 2"])
def test_long_prompts_decode_with_split_keys(name: str) -> None:
    size = tiny.Size(longest=2048, head_dim=64, window=300)
    made = tiny.model(name, size, "eager").cuda()
    words = torch.randint(3, size.vocabulary, (2, 1000), generator=torch.Generator().manual_seed(0)).cuda()
    inputs = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    inputs["attention_mask"][1, :200] = 0
    eager = comparing.greedy(made, inputs, 12)
    made.set_attn_implementation("generated")
    assert torch.equal(comparing.greedy(made, inputs, 12), eager)


@pytest.mark.parametrize("name", ["Llama", "GPT-OSS"])
def test_requests_are_batched_continuously(name: str) -> None:
    made = tiny.model(name, SIZE, "eager").cuda()
    prompts = [torch.randint(3, SIZE.vocabulary, (length,)).tolist() for length in (5, 11, 70)]
    answers = []
    for attention in ("eager", "generated"):
        made.set_attn_implementation(attention)
        answers.append(comparing.batched(made, prompts, 16, num_blocks=64, max_batch_tokens=128))
    assert answers[0] == answers[1]
