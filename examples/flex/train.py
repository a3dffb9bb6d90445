"""A training loop: packed documents, another packing in each step, and a learned bias by distance in each layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, WIDTH, HEADS, STEPS = (2048, 256, 4, 100) if DEVICE == "cuda" else (48, 32, 2, 6)
REACH = 16
WORDS = 32


class Layer(nn.Module):
    """Attention with a bias that each head learns of each distance up to REACH, and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(HEADS, REACH + 1))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, mask: BlockMask) -> Tensor:
        bias = self.bias

        def by_distance(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return score + bias[h, (q_idx - kv_idx).clamp(0, REACH)]

        q, k, v = self.qkv(self.before_attention(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(flex_attention(q, k, v, by_distance, mask).transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class Model(nn.Module):
    """Logits of the next word, [1, length, WORDS]."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, words: Tensor, mask: BlockMask) -> Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def packed(draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Words [1, LENGTH + 1] and the document of each, [LENGTH]: each document repeats a few words of its own."""
    ends = torch.rand(LENGTH + 1, generator=draw) < 0.05
    document = ends.cumsum(0)
    own = torch.randint(WORDS, (int(document[-1]) + 1, 3), generator=draw)
    words = own[document, torch.arange(LENGTH + 1) % 3]
    return words[None].to(DEVICE), document[:-1].to(DEVICE)


def causal_within(document: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The mask of earlier words of the same document."""

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (q_idx >= kv_idx) & (document[q_idx] == document[kv_idx])

    return mask


def main() -> Tensor:
    """The loss of each step."""
    torch.manual_seed(0)
    draw, model = torch.Generator().manual_seed(0), Model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(STEPS):
        words, document = packed(draw)
        mask = create_block_mask(causal_within(document), None, None, LENGTH, LENGTH, device=DEVICE)
        loss = functional.cross_entropy(model(words[:, :-1], mask)[0], words[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


if __name__ == "__main__":
    losses = main()
    print(f"train: loss {losses[0]:.4f} to {losses[-1]:.4f}")
