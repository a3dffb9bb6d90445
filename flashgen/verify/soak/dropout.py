"""Which weights a call with dropout keeps, in numpy: written anew from what the docstrings of the runtime say."""

from __future__ import annotations

import numpy as np
import torch

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def kept(seed: int, p: float, batch: int, heads: int, q_len: int, kv_len: int) -> torch.Tensor:
    """bool [batch, heads, q_len, kv_len]."""
    b, h, q, k = np.ogrid[:batch, :heads, :q_len, :kv_len]
    key, first_row, first_key, _ = _philox4x32(b, h, seed % 2**64)
    # One block of two words is for rows r, r + 8 and keys c, c + 8.
    row, col = (place.astype(np.uint64) & np.uint64(0xFFFFFFF7) for place in (q, k))
    x = row * np.uint64(0x9E3779B9) + first_row
    y = col * np.uint64(0x85EBCA6B) + first_key
    words = _philox2x32(x & _LOW, y & _LOW, key)
    word = np.where(q & 8, words[1], words[0])
    bits = np.where(k & 8, word >> np.uint64(16), word) & np.uint64(0x7FFF)
    # So many of 2**15 values drop a pair: the lowest ones, if they are no more than half.
    dropped = int(np.float32(p) * np.float32(32768))
    within = bits < np.uint64(32768 - dropped if dropped > 16384 else dropped)
    return torch.from_numpy(within if dropped > 16384 else ~within)


def _times(x: np.ndarray, factor: int) -> tuple[np.ndarray, np.ndarray]:
    product = x * np.uint64(factor)
    return product >> _HALF, product & _LOW


def _philox2x32(x: np.ndarray, y: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    for step in range(5):
        high, low = _times(x, 0xD256D193)
        x, y = high ^ y ^ ((key + np.uint64(step * 0x9E3779B9)) & _LOW), low
    return x, y


def _philox4x32(b: np.ndarray, h: np.ndarray, seed: int) -> list[np.ndarray]:
    words = [each.astype(np.uint64) for each in (b, h, np.zeros_like(b), np.zeros_like(b))]
    for step in range(10):
        keys = [
            np.uint64(((seed >> 32 * half) + step * bump) % 2**32) for half, bump in enumerate((0x9E3779B9, 0xBB67AE85))
        ]
        (high0, low0), (high1, low1) = _times(words[0], 0xD2511F53), _times(words[2], 0xCD9E8D57)
        words = [high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0]
    return words
