"""What dropout keeps is kept with its probability, and independently: over keys, rows, heads, sequences and seeds.

Each test looks at means that are normal, to a good approximation, where pairs are independent. One is off by more than
SIGMAS standard deviations once in 1.7 million times; that one of all of them is, some 5000, once in 300 runs. The seeds
are fixed: what passes once passes always.
"""

from __future__ import annotations

import math

import pytest
import torch

from flashgen.runtime.dropout import kept_mask, philox2x32, philox4x32_10

SIGMAS = 5.0
BATCH, HEADS, LENGTH = 3, 5, 192
RATES = (0.1, 0.5, 0.9)


def mask(p: float, seed: int, q_len: int = LENGTH, kv_len: int = LENGTH) -> torch.Tensor:
    """As float64, of mean 0 and variance 1 where p is the probability."""
    q, k = torch.empty(BATCH, HEADS, q_len, 1), torch.empty(BATCH, HEADS, kv_len, 1)
    kept = kept_mask(q, k, None, None, None, p, torch.tensor(seed, dtype=torch.int64)).double()
    # The probability that draws of 15 bits have.
    dropped = math.floor(torch.tensor(p).item() * 32768) / 32768
    return (kept - (1 - dropped)) / math.sqrt(dropped * (1 - dropped))


def check(correlation: torch.Tensor, count: int) -> None:
    """Means of `count` products of independent numbers of mean 0 and variance 1."""
    worst = correlation.abs().max().item()
    assert worst * math.sqrt(count) < SIGMAS, worst


@pytest.mark.parametrize("p", [*RATES, 0.01, 1 / 3])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_the_rate_is_the_probability(p: float, seed: int) -> None:
    found = mask(p, seed)
    check(found.mean(), found.numel())
    # Of each row, key, head and sequence too, whose means are independent.
    for axes in ((0, 1, 3), (0, 1, 2), (0, 2, 3), (1, 2, 3)):
        means = found.mean(axes)
        check(means, found.numel() // means.numel())


@pytest.mark.parametrize("p", RATES)
@pytest.mark.parametrize("axis", [2, 3])
def test_neighbours_are_independent(p: float, axis: int) -> None:
    found = mask(p, 5)
    for distance in (*range(1, 18), 24, 32, 64, 128):
        length = found.shape[axis] - distance
        products = found.narrow(axis, 0, length) * found.narrow(axis, distance, length)
        check(products.mean(), products.numel())


@pytest.mark.parametrize("p", RATES)
def test_the_pairs_of_one_block_are_independent(p: float) -> None:
    """Rows r, r + 8 and keys c, c + 8 have the bits of one Philox block: all products of its four pairs."""
    found = mask(p, 6).view(BATCH, HEADS, LENGTH // 16, 2, 8, LENGTH // 16, 2, 8)
    a, b, c, d = (found[:, :, :, i, :, :, j] for i in (0, 1) for j in (0, 1))
    for product in (
        a * b,
        a * c,
        a * d,
        b * c,
        b * d,
        c * d,
        a * b * c,
        a * b * d,
        a * c * d,
        b * c * d,
        a * b * c * d,
    ):
        check(product.mean(), product.numel())


@pytest.mark.parametrize("p", RATES)
def test_rows_and_keys_are_independent(p: float) -> None:
    found = mask(p, 7).flatten(0, 1)
    rows, keys = found.transpose(0, 1).flatten(1), found.permute(2, 0, 1).flatten(1)
    for each in (rows, keys):
        correlations = each @ each.T / each.shape[1]
        check(correlations - torch.diag(correlations.diagonal()), each.shape[1])


@pytest.mark.parametrize("p", RATES)
def test_heads_sequences_and_seeds_are_independent(p: float) -> None:
    several = torch.stack([mask(p, seed) for seed in (0, 1, 2, 2**32, 2**32 + 1, -1)]).flatten(0, 2).flatten(1)
    correlations = several @ several.T / several.shape[1]
    check(correlations - torch.diag(correlations.diagonal()), several.shape[1])


def test_a_mask_does_not_depend_on_the_lengths() -> None:
    whole = mask(0.5, 8)
    assert torch.equal(mask(0.5, 8, 37, 101), whole[:, :, :37, :101])


FULL = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)


@pytest.mark.parametrize(
    ("counter", "keys", "answer"),
    [
        ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((FULL,) * 4, (FULL, FULL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_heads_are_told_apart_by_philox_as_its_authors_have_it(
    counter: tuple[int, ...], keys: tuple[int, int], answer: tuple[int, ...]
) -> None:
    """philox4x32 of 10 rounds: the known answers of Random123, kat_vectors."""
    key, other_key = (torch.tensor(word) for word in keys)
    found = philox4x32_10([torch.tensor(word) for word in counter], (key, other_key))
    assert tuple(map(int, found)) == answer


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0), 0, (0x257A3673, 0xCD26BE2A)),
        ((FULL, FULL), FULL, (0xAB302C4D, 0x3DC9D239)),
        (PI[:2], PI[2], (0xBEDBBE6B, 0xE4C770B3)),
    ],
)
def test_blocks_are_those_of_philox_as_its_authors_have_it(
    counter: tuple[int, int], key: int, answer: tuple[int, int]
) -> None:
    """The same of philox2x32 of 7 rounds."""
    x, y = (torch.tensor(word) for word in counter)
    assert tuple(map(int, philox2x32(x, y, torch.tensor(key), rounds=7))) == answer


def test_numbers_of_16_bits_compare_as_their_bits_do() -> None:
    """As the Hopper kernels compare: a threshold is a number up to 2, no number is not below it."""
    bits = torch.arange(2**15, dtype=torch.int32)
    numbers = bits.to(torch.int16).view(torch.float16)
    for threshold in (0, 1, 0x3FF, 0x400, 3276, 2**14):
        below = numbers < numbers[threshold]
        assert torch.equal(~below, bits >= threshold)


@pytest.mark.parametrize("p", [0.5 - 2**-15, 0.5, 0.5 + 2**-15, 0.75, 1 - 2**-15])
def test_the_rate_is_the_probability_on_both_sides_of_one_half(p: float) -> None:
    found = mask(p, 9)
    check(found.mean(), found.numel())
