"""Score and mask mods in the manner of public code, in our own words; each says where one meets its like.

They are for 2 sequences, 4 heads, and up to 24 queries and keys. What they capture is on the device that is torch's
default when this is imported.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks

BATCH, HEADS, LENGTH = 2, 4, 24
WINDOW, CAP, NEGATIVE = 5, 3.0, float("-inf")

_generator = torch.Generator("cpu").manual_seed(0)


def _floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_generator, device="cpu").to(torch.get_default_device())


def _integers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=_generator, device="cpu").to(torch.get_default_device())


slopes = 2.0 ** (-8.0 * torch.arange(1, HEADS + 1) / HEADS)
document = torch.arange(LENGTH) // 7
documents = torch.stack([torch.arange(LENGTH) // 5, torch.arange(LENGTH) // 9]).int()
offsets = torch.tensor([0, 7, 14, 21, 24])
lengths = torch.tensor([9, 20], dtype=torch.int32)
table = _floats(HEADS, 2 * WINDOW + 1)
pair_bias = _floats(HEADS, LENGTH, LENGTH)
whole_bias = _floats(BATCH, HEADS, LENGTH, LENGTH).bfloat16()
padding = _integers(2, BATCH, LENGTH).bool()
kinds = _integers(3, BATCH, LENGTH)
bytes_ = _integers(4, LENGTH).to(torch.uint8)
temperature = torch.tensor(0.7)
counted_back = torch.arange(LENGTH) % 5 - 5


class Mod(NamedTuple):
    """A pair of mods under a name."""

    name: str
    score: Callable[..., torch.Tensor] | None = None
    mask: Callable[..., torch.Tensor] | None = None


def causal(b, h, q, k):
    return q >= k


def sliding_window(b, h, q, k):
    return (q >= k) & (q - k <= WINDOW)


def prefix_lm(length: int) -> Callable[..., torch.Tensor]:
    def prefix(b, h, q_idx, kv_idx):
        return kv_idx < length

    return or_masks(prefix, causal)


def document_mask(inner):
    def document_inner(b, h, q, kv):
        same = document[q] == document[kv]
        q_start, kv_start = offsets[document[q]], offsets[document[kv]]
        return torch.where(same, inner(b, h, q - q_start, kv - kv_start), False)

    return document_inner


def natten(width: int, kernel: int) -> Callable[..., torch.Tensor]:
    def neighborhood(b, h, q_idx, kv_idx):
        q_x, q_y = q_idx // width, q_idx % width
        kv_x, kv_y = kv_idx // width, kv_idx % width
        center_x = q_x.clamp(kernel // 2, (width - 1) - kernel // 2)
        center_y = q_y.clamp(kernel // 2, (width - 1) - kernel // 2)
        return ((center_x - kv_x).abs() <= kernel // 2) & ((center_y - kv_y).abs() <= kernel // 2)

    return neighborhood


def dilated(steps: int) -> Callable[..., torch.Tensor]:
    return lambda b, h, q, k: (q >= k) & ((q - k) % steps == 0) & (q - k < steps * 4)


def big_bird(b, h, q, k):
    near = (q // 4 - k // 4).abs() <= 1
    return near | (k < 2) | (q < 2)


def alibi(score, b, h, q, k):
    return score - slopes[h] * (q - k).abs()


def computed_alibi(heads: int) -> Callable[..., torch.Tensor]:
    def alibi_mod(score, b, h, q_idx, kv_idx):
        scale = torch.exp2(-((h + 1) * 8.0 / heads))
        return score + (kv_idx - q_idx) * scale

    return alibi_mod


def softcap(score, b, h, q, k):
    return CAP * torch.tanh(score / CAP)


@torch.library.custom_op("flashgen_tests::tanh", mutates_args=())
def _approximate_tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


@_approximate_tanh.register_fake
def _(x):
    return torch.empty_like(x)


@_approximate_tanh.register_vmap
def _(info, in_dims, x):
    return torch.tanh(x), in_dims[0]


APPROXIMATE_TANH = torch.ops.flashgen_tests.tanh


def approximate_softcap(score, b, h, q, k):
    return CAP * APPROXIMATE_TANH(score / CAP)


def sigmoid_cap(score, b, h, q, k):
    return 2 * CAP * (torch.sigmoid(2 * score / CAP) - 0.5)


def relative(score, b, h, q, k):
    distance = (q - k).clamp(-WINDOW, WINDOW)
    return score + table[h, distance + WINDOW]


def bucketed(score, b, h, q, k):
    """T5's relative buckets, by their formula."""
    distance = (q - k).clamp(min=0)
    large = 4 + (torch.log(distance.float().clamp(min=1) / 4) / math.log(4) * 3).int()
    return score + table[h, torch.where(distance < 4, distance, large.clamp(max=7))]


def full_bias(score, b, h, q, k):
    return score + pair_bias[h, q, k]


def chained_index(score, b, h, q, k):
    return score + whole_bias[b][h][q][k]


def hidden_tail(score, b, h, q, k):
    return torch.where(k < lengths[b], score, -float("inf"))


def filled(score, b, h, q, k):
    return score.masked_fill(k > q, NEGATIVE)


def additive(score, b, h, q, k):
    return score + torch.where(q >= k, 0.0, NEGATIVE)


def finite_mask(score, b, h, q, k):
    return torch.where(q >= k, score, torch.finfo(score.dtype).min)


def padded(b, h, q, k):
    return padding[b, k] | (q == k)


def left_padded(b, h, q, k):
    return (k >= LENGTH - lengths[b]) & (k <= q)


def modal(b, h, q, k):
    return (kinds[b, q] == 1) & (kinds[b, k] == 1) | (q >= k)


def polynomial(degree: int) -> Callable[..., torch.Tensor]:
    def mod(score, b, h, q, k):
        for power in range(1, degree + 1):
            score = score + 0.01 * score**power
        return score

    return mod


def scaled_by(factor, score, b, h, q, k):
    return score * factor


class Learned(torch.nn.Module):
    """A bias as a module with parameters, and a method as a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(_floats(HEADS))
        self.reach = 6

    def forward(self, score, b, h, q, k):
        return score + self.bias[h] * self.scaled(q - k)

    def scaled(self, distance):
        return distance / self.reach

    def near(self, b, h, q, k):
        return (q - k).abs() < self.reach


class Callable_:
    """A mod that is an object."""

    rate = 0.25

    def __init__(self, shift: int) -> None:
        self.shift = shift

    def __call__(self, score, b, h, q, k):
        return score - self.rate * torch.relu(q - k - self.shift)


def in_place(score, b, h, q, k):
    score = score.clone()
    score += slopes[h]
    score *= 2
    return score


def with_default(score, b, h, q, k, weight=0.5, *, other=2):
    return score * weight + (q % other)


def bits(b, h, q, k):
    return ((q ^ k) & 3 == 0) | (~(q >= k) & (k >> 1 == q >> 1))


def integers(score, b, h, q, k):
    rounded = torch.div(q - k, 3, rounding_mode="trunc") + torch.div(q - k, 3, rounding_mode="floor")
    return score + rounded * 0.1 + ((q - k) * 0.3).long() + (q - k) % 4 + torch.sign(k - q)


def narrow_integers(score, b, h, q, k):
    """What torch keeps in 8 or 16 bits."""
    signed = bytes_[q].to(torch.int8) * 50 - (q - k).to(torch.int8)
    return score + 0.01 * (signed + ~bytes_[k] + (q - k).to(torch.uint8)) + 0.001 * (q * 9000).short()


def centered(score, b, h, q, k):
    query, key = k_rope[b, q], k_rope[b, k]
    return score + ((query - query.sum() / 5) * key / (1 + key.square().sum())).sum()


def smooth(score, b, h, q, k):
    return score + torch.log1p((q - k).abs()) - torch.rsqrt(1.0 + k) + torch.expm1(-0.1 * q.float()) + (k + 1).log2()


def activations(score, b, h, q, k):
    return F.silu(score) + F.softplus(score) + F.leaky_relu(score) + F.hardtanh(score) + F.logsigmoid(score)


def many_names(score, b, h, q, k):
    heads = q - k
    scale = heads.abs() + 1
    return score / scale + heads * scale * 0.01


def powers(score, b, h, q, k):
    return score * 0.5 ** (1 + h) + 2**h + torch.square(score) * 0.1


def nested_masks(*masks):
    def mask(*position):
        seen = masks[0](*position)
        for other in masks[1:]:
            seen = seen & other(*position)
        return seen

    return mask


def paged(inner, page: int) -> Callable[..., torch.Tensor]:
    """A mask over physical pages, by the logical place of each; those below 0 are free."""

    def physical(b, h, q_idx, physical_kv):
        block = logical_pages[b, physical_kv // page]
        return torch.where(block >= 0, inner(b, h, q_idx, block * page + physical_kv % page), False)

    return physical


def block_diffusion(length: int, block: int) -> Callable[..., torch.Tensor]:
    """Noisy tokens after the clean ones: each block sees itself and the clean blocks before it."""

    def mask(b, h, q, k):
        q_is_noisy, k_is_noisy = q >= length, k >= length
        q_block = torch.where(q_is_noisy, (q - length) // block, q // block)
        k_block = torch.where(k_is_noisy, (k - length) // block, k // block)
        diagonal = (q_block == k_block) & (q_is_noisy == k_is_noisy)
        return (
            diagonal
            | ((q_block > k_block) & ~k_is_noisy & q_is_noisy)
            | ((q_block >= k_block) & ~k_is_noisy & ~q_is_noisy)
        )

    return mask


def swin(score, b, h, q, k):
    """A table of relative places in a window of 4 by 6."""
    rows = q // 6 - k // 6 + 3
    columns = q % 6 - k % 6 + 5
    return score + window_table[rows * 11 + columns, h]


def t5_bidirectional(score, b, h, q, k):
    buckets, exact, far = 4, 2, 16
    distance = k - q
    side = (distance > 0).to(torch.long) * buckets
    distance = distance.abs()
    log_part = torch.log(torch.clamp(distance.float(), min=1) / exact) / math.log(far / exact) * (buckets - exact)
    large = torch.min(exact + log_part.long(), torch.full_like(distance, buckets - 1, dtype=torch.long))
    return score + bucket_table[side + torch.where(distance < exact, distance, large), h]


learned = Learned()
embedding = torch.nn.Embedding.from_pretrained(_floats(7, HEADS), freeze=False)
logical_pages = torch.tensor([[2, -1, 0, 1, 3, -1], [0, 1, -1, 2, -1, 3]])
ancestors = torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool)) & (_integers(2, LENGTH, LENGTH) > 0)
window_table, bucket_table = _floats(77, HEADS), _floats(8, HEADS)
q_rope, k_rope = _floats(BATCH, HEADS, LENGTH, 5), _floats(BATCH, LENGTH, 5)
chosen = _integers(3, BATCH, HEADS, 3, 2)
is_global = _integers(2, BATCH, LENGTH) > 0
hashes = _integers(4, BATCH, HEADS, LENGTH)
reaches, rates = [3, 6, 9, 12], torch.rand(HEADS, 2, generator=_generator, device="cpu").to(torch.get_default_device())
q_lengths, positions = torch.tensor([20, 11]), torch.arange(LENGTH).flip(0)

MODS = [
    # attention-gym's masks and mods, by their shape.
    Mod("nothing"),
    Mod("noop", mask=noop_mask),
    Mod("causal", mask=causal),
    Mod("sliding_window", mask=sliding_window),
    Mod("prefix_lm", mask=prefix_lm(6)),
    Mod("document", mask=document_mask(causal)),
    Mod("document_window", mask=document_mask(sliding_window)),
    Mod("packed", mask=and_masks(causal, lambda b, h, q, k: documents[b, q] == documents[b, k])),
    Mod("natten", mask=natten(5, 3)),
    Mod("dilated", mask=dilated(3)),
    Mod("big_bird", mask=big_bird),
    Mod("global_or_window", mask=or_masks(sliding_window, lambda b, h, q, k: k < 2)),
    Mod("per_head_window", mask=lambda b, h, q, k: (q - k).abs() <= 2 + 3 * h),
    Mod("alibi", alibi),
    Mod("computed_alibi", computed_alibi(HEADS)),
    Mod("softcap", softcap),
    Mod("approximate_softcap", approximate_softcap),
    Mod("gemma2", softcap, sliding_window),
    Mod("sigmoid_cap", sigmoid_cap),
    # PyTorch's own tests of FlexAttention.
    Mod("relative", relative),
    Mod("bucketed", bucketed),
    Mod("full_bias", full_bias),
    Mod("chained_index", chained_index),
    Mod("any_dimension_first", lambda score, b, h, q, k: score + pair_bias[:, 3][h, k]),
    Mod("checkerboard", lambda score, b, h, q, k: torch.where((q + k) % 2 == 0, score * 0.5, score)),
    Mod("times_two", lambda score, b, h, q, k: score * 2),
    Mod("squared", lambda score, b, h, q, k: score * score),
    Mod("head_offset", lambda score, b, h, q, k: score + h),
    Mod("trig_free", lambda score, b, h, q, k: score + 1 / (1 + torch.exp(-(q - k) / 4.0))),
    Mod("hidden_tail", hidden_tail),
    Mod("filled", filled),
    Mod("additive", additive),
    Mod("finite_mask", finite_mask),
    Mod("batch_lengths", alibi, lambda b, h, q, k: (k < lengths[b]) & (q < lengths[b])),
    Mod("njt_offsets", mask=lambda b, h, q, k: (offsets[document[q]] <= k) & (k < offsets[document[q] + 1])),
    # Models of transformers, torchtune, torchtitan.
    Mod("padded", mask=padded),
    Mod("left_padded", mask=left_padded),
    Mod("chunked", mask=lambda b, h, q, k: (q // 8 == k // 8) & (q >= k)),
    Mod("modal", mask=modal),
    Mod("temperature", lambda score, b, h, q, k: score * temperature),
    Mod("decoding", alibi, lambda b, h, q, k: q + lengths[b] >= k),
    Mod("bert_types", mask=lambda b, h, q, k: kinds[b, q] == kinds[b, k]),
    Mod("paged", mask=paged(causal, 4)),
    Mod("block_diffusion", mask=block_diffusion(12, 4)),
    Mod("swin", swin),
    Mod("t5_bidirectional", t5_bidirectional),
    Mod("tree", mask=lambda b, h, q, k: ancestors[q, k]),
    Mod("longformer", mask=lambda b, h, q, k: ((q - k).abs() <= 2) | is_global[b, q] | is_global[b, k]),
    Mod("reformer", mask=lambda b, h, q, k: (hashes[b, h, q] == hashes[b, h, k]) & (q >= k)),
    Mod("streaming", mask=lambda b, h, q, k: causal(b, h, q, k) & ((k < 4) | (q - k < WINDOW))),
    Mod("strided", mask=lambda b, h, q, k: (q >= k) & ((q // 4 == k // 4) | (k % 4 == 3))),
    Mod("shared_question", mask=lambda b, h, q, k: (q >= k) & ((k < 6) | ((q - 6) // 6 == (k - 6) // 6))),
    Mod("kerple", lambda score, b, h, q, k: score - rates[h, 0] * torch.log(1 + rates[h, 1] * (q - k).abs())),
    Mod("log_n", lambda score, b, h, q, k: score * torch.log(q.float() + 2) / math.log(8)),
    Mod("llama4_temperature", lambda score, b, h, q, k: score * (torch.log(torch.floor((q + 1) / 8) + 1) * 0.1 + 1)),
    Mod("reach_by_layer", mask=lambda b, h, q, k: (q >= k) & (q - k < reaches[2])),
    Mod("jagged", mask=lambda b, h, q, k: (q < q_lengths[b]) & (k < lengths[b]) & (q + lengths[b] >= k + q_lengths[b])),
    Mod("own_positions", mask=lambda b, h, q, k: positions[q] >= positions[k]),
    Mod(
        "head_groups", lambda score, b, h, q, k: score + slopes[h // 2 * 2], lambda b, h, q, k: (h % 2 == 0) | (q >= k)
    ),
    # What Python lets a mod be.
    Mod("polynomial", polynomial(3)),
    Mod("partial", functools.partial(scaled_by, 0.3)),
    Mod("partial_keyword", functools.partial(with_default, other=3)),
    Mod("module", learned, learned.near),
    Mod("object", Callable_(2)),
    Mod("in_place", in_place),
    Mod("with_default", with_default),
    Mod("many_names", many_names),
    Mod("nested_masks", mask=nested_masks(causal, sliding_window, document_mask(causal))),
    Mod("loop_of_masks", mask=or_masks(*[lambda b, h, q, k, n=n: q - k == n for n in (0, 2, 5)])),
    Mod("not_masked", mask=lambda b, h, q, k: ~sliding_window(b, h, q, k)),
    # What tensors do.
    Mod("bits", mask=bits),
    Mod("integers", integers),
    Mod("smooth", smooth),
    Mod("activations", activations),
    Mod("powers", powers),
    Mod("from_the_end", lambda score, b, h, q, k: score + slopes[counted_back[q] % -3] + slopes[-1] * document[q - k]),
    Mod("unsigned", lambda score, b, h, q, k: score + bytes_[bytes_[q].int()] * 0.5),
    Mod("narrow_integers", narrow_integers),
    Mod("narrow_distance", mask=lambda b, h, q, k: (bytes_[q] - bytes_[k]).int() < 100),
    Mod("tests_as_integers", lambda score, b, h, q, k: score + ~(q >= k).int() + ((q >= k).sum() + (k > 3).sum())),
    Mod("int_not_mask", mask=lambda b, h, q, k: ~(q >= k).long()),
    Mod("clamped_index", lambda score, b, h, q, k: score + counted_back[q.clamp(-5, 3) - q] * slopes[h]),
    Mod("whole_casts", lambda score, b, h, q, k: score + slopes.double()[h] * bytes_.int()[q] + padding.float()[b, k]),
    Mod("tanh_of_a_row", mask=lambda b, h, q, k: torch.tanh(h.float()) * 9 >= k),
    Mod("bool_arithmetic", lambda score, b, h, q, k: score + (q >= k) * 1.5 + ((q > 3) + (k > 3)) * 0.5),
    Mod("int_mask", mask=lambda b, h, q, k: (q - k).clamp(0, 1)),
    Mod("embedding", lambda score, b, h, q, k: score + embedding((q - k).clamp(-3, 3) + 3)[h]),
    Mod(
        "of_what_is_a_number",
        lambda score, b, h, q, k: torch.fmax(torch.fmin(score, torch.sqrt(1.0 * (q - k))), -slopes[h]),
    ),
    Mod("clamped", lambda score, b, h, q, k: score.clamp(-1, WINDOW) + torch.clamp(q - k, max=WINDOW)),
    Mod("constants", lambda score, b, h, q, k: score + torch.tensor(0.5) + torch.full((), 2.0) + score.new_ones(())),
    Mod("extremes", lambda score, b, h, q, k: torch.maximum(score, slopes[h]) - torch.minimum(score, q * 0.1)),
]

# Of short rows, for a language that has sums over them.
ROWS = [
    Mod("rope_part", lambda score, b, h, q, k: score + (q_rope[b, h, q] * k_rope[b, k]).sum()),
    Mod("dot", lambda score, b, h, q, k: score + torch.dot(q_rope[b, h, q], k_rope[b, k])),
    Mod("chosen_blocks", mask=lambda b, h, q, k: (chosen[b, h, q // 8] == k // 8).any()),
    Mod("none_of", mask=lambda b, h, q, k: (chosen[0, 0, 1] != k).all() & (q >= k)),
    Mod("sum_of_integers", lambda score, b, h, q, k: score + (q_rope[b, h, q] * 9).sum(dtype=torch.int64) // 2),
    Mod("rows_of_one", lambda score, b, h, q, k: score + ((k_rope[b, k] + torch.arange(1)) * torch.tensor([2])).sum()),
    Mod(
        "numbers_as_rows",
        mask=lambda b, h, q, k: (chosen[b, h, q // 8, 0] == k[None] // 8).any() | (q.unsqueeze(0) == k).all(),
    ),
    Mod("centered", centered),
    Mod("whole_cast_of_a_row", lambda score, b, h, q, k: score + chosen.float()[b, h, 1].sum()),
    Mod(
        "sum_of_indices", lambda score, b, h, q, k: score + slopes[torch.arange(3)].sum() * (q - torch.arange(4)).sum()
    ),
]


def arguments() -> dict[str, Any]:
    """The MODS by name, as pytest takes them."""
    mods = [*MODS, *ROWS]
    return {"argvalues": mods, "ids": [mod.name for mod in mods]}
