"""Keys that a layer chooses for each query, one by one or in blocks, and sinks of each query."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.17")

from flashgen.errors import ModelError  # noqa: E402
from flashgen.integrations import comparing, tiny  # noqa: E402
from flashgen.integrations.transformers import generated_attention  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("registered"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU suite has models of its own"),
]
SIZE = tiny.Size()
BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN, BLOCK = 2, 4, 2, 5, 11, 4


class Layer(torch.nn.Module):
    """As far as attention asks one."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.indexer = SimpleNamespace(block_size=BLOCK)


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v, leaves with gradients."""
    generator = torch.Generator().manual_seed(4)
    shapes = ((HEADS, Q_LEN), (KV_HEADS, KV_LEN), (KV_HEADS, KV_LEN))
    q, k, v = (torch.randn(BATCH, *shape, 16, generator=generator).requires_grad_() for shape in shapes)
    return q, k, v


def by_formula(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention [batch, q_len, heads, head_dim] over what is seen; sinks are one more logit of each query."""
    k, v = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (k, v))
    scores = (q @ k.mT / 4).masked_fill(~seen, -torch.inf)
    last = torch.full((*scores.shape[:3], 1), -torch.inf) if sinks is None else sinks
    weights = torch.cat((scores, last), -1).softmax(-1)[..., :-1]
    return (weights @ v).transpose(1, 2)


def agree(found: torch.Tensor, expected: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> bool:
    """Whether results and gradients do."""
    back = torch.linspace(-1, 1, expected.numel()).reshape(expected.shape)
    pairs = zip(torch.autograd.grad(found, leaves, back), torch.autograd.grad(expected, leaves, back), strict=True)
    return all(torch.allclose(own, true, atol=2e-5) for own, true in [(found, expected), *pairs])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_query_sees_the_blocks_that_are_chosen_for_its_head(is_causal: bool, masked: bool) -> None:
    q, k, v = drawn()
    indices = torch.rand(BATCH, KV_HEADS, Q_LEN, 3, generator=torch.Generator().manual_seed(1)).argsort(-1)[..., :2]
    indices[0, 1, 2, 1] = -1
    # The first block is seen in any case, so that every query sees a key.
    indices[..., 0] = 0
    place = torch.arange(KV_LEN)
    seen = ((place // BLOCK)[:, None] == indices[..., None, :]).any(-1).repeat_interleave(HEADS // KV_HEADS, 1)
    mask = None
    if masked:
        mask = torch.ones(BATCH, 1, Q_LEN, KV_LEN, dtype=torch.bool)
        mask[1, :, :, 1:6] = False
        seen = seen & mask
    elif is_causal:
        seen = seen & (place <= torch.arange(Q_LEN)[:, None] + KV_LEN - Q_LEN)
    found, _ = generated_attention(Layer(is_causal), q, k, v, mask, block_indices=indices)
    assert agree(found, by_formula(q, k, v, seen), (q, k, v))


@pytest.mark.parametrize("shape", [(BATCH, HEADS, Q_LEN, 2), (BATCH, Q_LEN, 2)])
def test_blocks_of_other_heads_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"block_indices .* expected \[2, 2, q_len, n\]"):
        generated_attention(Layer(True), *drawn(), None, block_indices=torch.zeros(shape, dtype=torch.int64))


def test_blocks_of_a_layer_that_does_not_say_their_size_are_refused() -> None:
    with pytest.raises(ModelError, match="whose indexer has block_size None"):
        generated_attention(
            torch.nn.Module(), *drawn(), None, block_indices=torch.zeros(BATCH, KV_HEADS, Q_LEN, 2, dtype=torch.int64)
        )


def test_a_sink_of_each_query_is_one_more_logit() -> None:
    q, k, v = drawn()
    sinks = torch.linspace(-3, 3, BATCH * HEADS * Q_LEN).reshape(BATCH, HEADS, Q_LEN, 1).requires_grad_()
    seen = torch.ones(BATCH, 1, Q_LEN, KV_LEN, dtype=torch.bool)
    seen[1, :, 2] = False
    found, _ = generated_attention(Layer(False), q, k, v, seen, sinks=sinks)
    assert agree(found, by_formula(q, k, v, seen, sinks), (q, k, v, sinks))
    assert not found[1, 2].any()


def test_queries_may_be_the_same_for_all_sequences() -> None:
    q, k, v = drawn()
    seen = torch.ones(BATCH, 1, 1, KV_LEN, dtype=torch.bool)
    seen[1, ..., 6:] = False
    found, _ = generated_attention(Layer(False), q[:1], k, v, seen)
    assert agree(found, by_formula(q[:1], k, v, seen), (q, k, v))


def test_chosen_keys_without_a_mask_are_refused() -> None:
    with pytest.raises(ModelError, match="indices came to a layer without a mask"):
        generated_attention(Layer(True), *drawn(), None, indices=torch.zeros(BATCH, Q_LEN, 2, dtype=torch.int32))


def test_weights_of_heads_are_refused() -> None:
    with pytest.raises(ModelError, match="head_mask"):
        generated_attention(Layer(True), *drawn(), None, head_mask=torch.ones(HEADS))


def blocks_of_keys() -> Any:
    own = tiny._decoder(
        SIZE, num_attention_heads=4, num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=1,
        dense_intermediate_size=32, shared_intermediate_size=16, rotary_dim=8, index_n_heads=2, index_head_dim=8,
        index_block_size=4, index_topk_blocks=2, layer_types=["full_attention", "minimax_m3_sparse"],
        mlp_layer_types=["dense", "sparse"],
    )  # fmt: skip
    transformers.set_seed(0)
    config = transformers.MiniMaxM3VLTextConfig(**own)
    return transformers.MiniMaxM3VLForCausalLM._from_config(config, attn_implementation="sdpa").eval()


@pytest.mark.skipif(
    not hasattr(transformers, "MiniMaxM3VLForCausalLM"), reason="this transformers has no model that chooses blocks"
)
@pytest.mark.parametrize("padding", [slice(0), slice(4), slice(5, 9)], ids=["none", "left", "inside"])
def test_a_model_that_chooses_blocks_agrees_with_itself(padding: slice) -> None:
    # Left padding changes what it chooses, and eager attention has other padding than torch's.
    made = blocks_of_keys()
    words = torch.randint(3, SIZE.vocabulary, (2, 19), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    inputs["attention_mask"][1, padding] = 0
    expected, tokens = comparing.results(made, inputs), comparing.greedy(made, inputs, 6)
    made.set_attn_implementation("generated")
    for own, true in zip(comparing.results(made, inputs), expected, strict=True):
        assert float((own - true).norm()) <= 1e-5 * float(true.norm())
    assert torch.equal(comparing.greedy(made, inputs, 6), tokens)
