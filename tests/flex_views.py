"""Mods that read captured tensors through views, and what torch makes of captured tensors alone.

They are for 2 sequences, 4 heads, and 24 queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

BATCH, HEADS, LENGTH = 2, 4, 24

_generator = torch.Generator("cpu").manual_seed(0)


def _learned(*shape: int) -> torch.Tensor:
    drawn = torch.randn(shape, generator=_generator, device="cpu")
    return drawn.to(torch.get_default_device()).requires_grad_()


pairs, by_head, row, rows = _learned(LENGTH, LENGTH), _learned(HEADS, LENGTH, LENGTH), _learned(LENGTH), _learned(4, 48)
layers, slopes, by_place = _learned(3, HEADS, LENGTH), _learned(HEADS), _learned(LENGTH, HEADS)
left, right = _learned(HEADS, 8), _learned(8, LENGTH)
LEARNED = [pairs, by_head, row, rows, layers, slopes, by_place, left, right]
document = torch.arange(LENGTH) // 7
counts = torch.randint(0, 4, (BATCH, LENGTH), generator=_generator, device="cpu").to(torch.get_default_device())
first, factor = 3, 2.0


def no_gradient(score, b, h, q, k):
    with torch.no_grad():
        weights = rows.softmax(-1)
    return score + weights[h, k] + slopes[h]


def each_layer(score, b, h, q, k):
    for number, layer in enumerate(layers):
        score = score + layer[h, k] * number
    return score


def written_to(score, b, h, q, k):
    kept = row.clone()
    kept[document == 1] = 0
    return score + kept[k] + rows.clone().mul_(factor)[h, q]


def read_before_it_is_written_to(score, b, h, q, k):
    kept = rows.clone()
    before = kept[h, q]
    kept.add_(1)
    return score + before * kept[h, k]


def doubled(score, b, h, q, k):
    total = row
    for _ in range(40):
        total = (total + total) / 2
    return score + total[k]


def mapped(score, b, h, q, k):
    return score + torch.vmap(lambda each: each / each.norm())(rows)[h, k]


def collected(score, b, h, q, k):
    total = torch.zeros(LENGTH)
    for number, layer in enumerate(layers.unbind(0)):
        total = total + layer.mean(0) * number
    total += row
    return score + total[k]


def turned_in_place(score, b, h, q, k):
    return score + rows.clone().t_()[k, h] + rows.clone().unsqueeze_(0)[0, h, q]


class Position(torch.nn.Module):
    """A network gives the bias of each distance; of its modules' own code nothing is read."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.LayerNorm(8), Wide(8, HEADS))
        self.register_buffer("places", torch.linspace(-1, 1, 4 * length).view(-1, 2))
        self.center = length

    def forward(self, score, b, h, q, k):
        return score + self.net(self.places)[q - k + self.center, h]


class Wide(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(torch.tanh(x))


class Buckets(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(8, HEADS)
        self.register_buffer("distance", torch.arange(LENGTH)[None] - torch.arange(LENGTH)[:, None])

    def forward(self, score, b, h, q, k):
        buckets = self.distance.abs().clamp(max=3) + (self.distance > 0) * 4
        return score + self.table(buckets).permute(2, 0, 1)[h, q, k]


position, buckets = Position(LENGTH), Buckets()
LEARNED += [*position.parameters(), *buckets.parameters()]

VIEWS: dict[str, Callable[..., Any]] = {
    "t": lambda score, b, h, q, k: score + pairs.t()[q, k],
    "T": lambda score, b, h, q, k: score + pairs.T[q, k],
    "mT": lambda score, b, h, q, k: score + by_head.mT[h, q, k],
    "transpose": lambda score, b, h, q, k: score + by_head.transpose(-1, -2)[h, q, k],
    "permute": lambda score, b, h, q, k: score + by_head.permute(1, -1, 0)[q, k, h],
    "movedim": lambda score, b, h, q, k: score + by_head.movedim(0, -1)[q, k, h],
    "new dimension": lambda score, b, h, q, k: score + slopes[None][0, h] + rows[..., None, :][h, 0, k],
    "unsqueeze": lambda score, b, h, q, k: score + rows.unsqueeze(-1)[h, q, 0] + row[None].squeeze(0)[k],
    "slice": lambda score, b, h, q, k: score + layers[1:][1, h, k] + rows[:, :-3][h, q],
    "slice by a number": lambda score, b, h, q, k: score + rows[:, first:][h, q],
    "slice at a place": lambda score, b, h, q, k: score + rows[h, first:][k] + rows[h][::2][q],
    "select": lambda score, b, h, q, k: score + layers.select(0, 1)[h, q],
    "unbind": lambda score, b, h, q, k: score + layers.unbind()[1][h, q],
    "chunk": lambda score, b, h, q, k: score + rows.chunk(2, 1)[1][h, q],
    "split": lambda score, b, h, q, k: score + rows.split([10, 38], 1)[1][h, q],
    "each layer": each_layer,
    "flatten": lambda score, b, h, q, k: score + pairs.flatten()[q * LENGTH + k],
    "flatten turned": lambda score, b, h, q, k: score + pairs.t().flatten()[q * LENGTH + k],
    "reshape": lambda score, b, h, q, k: score + layers.reshape(-1, LENGTH)[h + 2, k],
    "expand": lambda score, b, h, q, k: score + row.expand(HEADS, LENGTH)[h, k],
    "at a place turned": lambda score, b, h, q, k: score + by_head[h].t()[q, k],
    "diagonal": lambda score, b, h, q, k: score + pairs.diagonal()[k],
    "double": lambda score, b, h, q, k: score + pairs.double().t().cumsum(0)[q, k],
}
DERIVED: dict[str, Callable[..., Any]] = {
    "stack": lambda score, b, h, q, k: score + torch.stack([row, row * 2])[h // 2, k],
    "stack at a place": lambda score, b, h, q, k: score + torch.stack([layers[0, h], layers[-1, h]]).softmax(0)[1, k],
    "cat": lambda score, b, h, q, k: score + torch.cat([row, row.flip(0)])[k + q],
    "softmax": lambda score, b, h, q, k: score + torch.softmax(slopes, -1)[h] * rows.softmax(-1)[h, k],
    "softmax at a place": lambda score, b, h, q, k: score + rows[h].softmax(-1)[k],
    "cumsum": lambda score, b, h, q, k: score + row.cumsum(0)[k],
    "norm": lambda score, b, h, q, k: score + (row / row.norm())[k] + row[q] / row.norm(),
    "mean at a place": lambda score, b, h, q, k: score + (rows[h] - rows[h].mean())[k],
    "two tables": lambda score, b, h, q, k: score + (rows[h] * slopes[h])[k],
    "two orders": lambda score, b, h, q, k: score + torch.softmax(by_head[:, q][h] + by_head[h, q], -1)[k],
    "elements": lambda score, b, h, q, k: score + (by_head * factor).masked_fill(by_head > 1, 0.0)[h, q, k],
    "matmul": lambda score, b, h, q, k: score + (left @ right)[h, k],
    "matmul at a place": lambda score, b, h, q, k: score + (right.t() @ left[h])[k],
    "einsum": lambda score, b, h, q, k: score + torch.einsum("d,dl->l", left[h], right)[k],
    "outer": lambda score, b, h, q, k: score + (row[:, None] * row[None])[q, k],
    "gather": lambda score, b, h, q, k: score + row[document][k] + row.gather(0, document)[q],
    "embedding": lambda score, b, h, q, k: score + F.embedding(document, by_place)[k, h],
    "largest": lambda score, b, h, q, k: score / (1 + rows.abs().max()) + rows.max(1).values[h],
    "sorted": lambda score, b, h, q, k: score + row.sort().values[k],
    "interpolated": lambda score, b, h, q, k: score + F.interpolate(rows[None], size=LENGTH)[0][h, k],
    "layer norm": lambda score, b, h, q, k: score + F.layer_norm(rows, (48,))[h, k],
    "padded": lambda score, b, h, q, k: score + F.pad(row, (3, 3))[k + 3],
    "triangle": lambda score, b, h, q, k: score + pairs.tril()[q, k],
    "repeated": lambda score, b, h, q, k: score + slopes[:2].repeat_interleave(2)[h] + slopes[:2].repeat(2)[h],
    "detached": lambda score, b, h, q, k: score + pairs.detach()[q, k] + slopes.detach()[h] * slopes[h],
    "no gradient": no_gradient,
    "written to": written_to,
    "read before it is written to": read_before_it_is_written_to,
    "doubled": doubled,
    "collected": collected,
    "turned in place": turned_in_place,
    "from the end": lambda score, b, h, q, k: score + rows.flip(1)[h, -1 - k] + rows.cumsum(1)[h - 1, k - q],
    "compared": lambda score, b, h, q, k: score + (row[None] > row[:, None]).sum(1)[k] * row[q],
    "mapped": mapped,
    "lengths": lambda score, b, h, q, k: torch.where(k < (counts > 0).sum(-1)[b] + 3, score, -math.inf),
    "counted": lambda score, b, h, q, k: torch.where(counts.cumsum(-1)[b, q] >= counts.cumsum(-1)[b, k], score, -1e9),
    "a network": position,
    "an embedding": buckets,
    "linear at a place": lambda score, b, h, q, k: score + F.linear(right.t()[k], left, slopes)[h],
    "rounded": lambda score, b, h, q, k: score + rows.bfloat16().float().t()[k, h] + slopes.half().softmax(0)[h],
    "turned in rotation": lambda score, b, h, q, k: (
        score + (torch.cat(rows[h].chunk(2)[::-1]) * rows[0].sin())[k] * rows.view(HEADS, 2, LENGTH)[h, 1, q]
    ),
    "relative, as of Swin": lambda score, b, h, q, k: (
        score + by_place[document.view(-1)].view(1, LENGTH, -1).permute(2, 0, 1).contiguous().sigmoid()[h, 0, k]
    ),
    "forgotten": lambda score, b, h, q, k: (
        score + F.logsigmoid(rows).cumsum(-1)[h, q] - rows.sigmoid().cumsum(-1)[h, k]
    ),
    "made of numbers": lambda score, b, h, q, k: score + torch.tensor([0.1, 0.2, 0.3, 0.4])[h],
    "made of a range": lambda score, b, h, q, k: score + torch.exp2(-torch.arange(1, HEADS + 1) * 8.0 / HEADS)[h] * k,
    "made triangle": lambda score, b, h, q, k: torch.where(
        torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[q, k], score, -math.inf
    ),
}
