"""How wide the tiles of the portable kernels are."""

from __future__ import annotations

from itertools import product

import pytest

from flashgen.runtime.widths import tile_widths

DIMS = (1, 7, 13, 16, 17, 32, 33, 64, 80, 100, 128, 192, 256)


@pytest.mark.parametrize("itemsize", [2, 4])
def test_both_are_powers_of_two_that_hold_the_dimension_and_lie_alike(itemsize: int) -> None:
    for head_dim, v_head_dim in product(DIMS, DIMS):
        widths = tile_widths(head_dim, v_head_dim, itemsize)
        for width, dim in zip(widths, (head_dim, v_head_dim), strict=True):
            assert width >= max(16, dim)
            assert width & (width - 1) == 0
        # A row of 128 bytes or more is laid out like any longer one.
        one, other = (min(128, width * itemsize) for width in widths)
        assert one == other


def test_equal_dimensions_are_not_made_wider() -> None:
    assert [tile_widths(dim, dim, 2) for dim in (16, 20, 64, 80)] == [(16, 16), (32, 32), (64, 64), (128, 128)]
    assert tile_widths(64, 128, 2) == (64, 128)
