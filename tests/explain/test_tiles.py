"""Tile counts and pictures of masks, against counting pair by pair in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flashgen.explain.picture import ASCII_SHADES, COLOURS, Panel, draw, image, save
from flashgen.explain.tiles import TileMap, count


def banded(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (k <= q) & (q - k < 5)


def test_a_mask_that_ignores_a_position_still_counts_every_pair() -> None:
    assert count(lambda b, h, q, k: q < 3, 4, 6, 2, 4).counts.tolist() == [[8, 4], [4, 2]]
    assert count(lambda b, h, q, k: k < 3, 4, 6, 2, 4).counts.tolist() == [[6, 0], [6, 0]]
    assert count(lambda b, h, q, k: b == 0, 2, 1, 2, 1).counts.tolist() == [[2]]


@given(*[st.integers(1, 40)] * 2, *[st.integers(1, 16)] * 2)
def test_counts_are_those_of_brute_force(q_len: int, kv_len: int, BM: int, BN: int) -> None:
    tiles = count(banded, q_len, kv_len, BM, BN)
    for i, j in np.ndindex(tiles.counts.shape):
        pairs = [
            k <= q < k + 5
            for q in range(i * BM, min(i * BM + BM, q_len))
            for k in range(j * BN, min(j * BN + BN, kv_len))
        ]
        assert tiles.counts[i, j] == sum(pairs)
        assert (tiles.none[i, j], tiles.full[i, j], tiles.mixed[i, j]) == (
            not any(pairs),
            all(pairs),
            any(pairs) and not all(pairs),
        )


@given(st.integers(1, 5), st.integers(1, 5))
def test_merging_equals_counting_in_larger_tiles(rows: int, columns: int) -> None:
    merged = count(banded, 37, 29, 3, 2).merged(rows, columns)
    direct = count(banded, 37, 29, 3 * rows, 2 * columns)
    assert (merged.counts == direct.counts).all()
    assert (merged.BM, merged.BN) == (direct.BM, direct.BN)


def test_density_is_the_visible_share_of_all_pairs() -> None:
    assert count(lambda b, h, q, k: k <= q, 4, 4, 3, 3).density == 10 / 16


def test_characters_show_none_and_all_exactly() -> None:
    tiles = TileMap(2, 8, 1, 4, np.array([[0, 4], [1, 3]]))
    assert draw(tiles, ASCII_SHADES) == ["+--+", "| #|", "|.+|", "+--+"]


def test_a_cell_has_the_colour_of_what_the_kernel_does_with_its_tile() -> None:
    cells, tiles = count(banded, 16, 16, 1, 1), count(banded, 16, 16, 4, 4)
    picture = image(Panel("band", cells, tiles))
    colours = {kind: [tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in pair] for kind, pair in COLOURS.items()}
    for q, k in np.ndindex(16, 16):
        tile = (q // 4, k // 4)
        kind = next(kind for kind in COLOURS if getattr(tiles, kind)[tile])
        paper, ink = colours[kind]
        assert tuple((picture[q, k] * 255).round()) == (ink if k <= q < k + 5 else paper)


@pytest.mark.parametrize("panels", [1, 7])
def test_a_png_is_saved_for_one_mask_or_many(tmp_path: Path, panels: int) -> None:
    path = tmp_path / "new" / "mask.png"
    save([Panel("band", count(banded, 64, 64, 1, 1), count(banded, 64, 64, 16, 16))] * panels, path)
    assert path.read_bytes().startswith(b"\x89PNG")
