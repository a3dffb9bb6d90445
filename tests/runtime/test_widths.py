"""How wide the tiles of the portable kernels are."""

from __future__ import annotations

from itertools import product

from flashgen.runtime.widths import tile_widths

DIMS = (1, 7, 13, 16, 17, 32, 33, 64, 80, 100, 128, 192, 256)


def test_both_are_powers_of_two_that_hold_the_dimension_and_lie_alike() -> None:
    for head_dim, v_head_dim in product(DIMS, DIMS):
        widths = tile_widths(head_dim, v_head_dim)
        for width, dim in zip(widths, (head_dim, v_head_dim), strict=True):
            assert width >= max(16, dim)
            assert width & (width - 1) == 0
        # A row of 128 bytes or more, 64 columns, is laid out like any longer one.
        one, other = (min(128, 2 * width) for width in widths)
        assert one == other


def test_equal_dimensions_are_not_made_wider() -> None:
    assert [tile_widths(dim, dim) for dim in (16, 20, 64, 80)] == [(16, 16), (32, 32), (64, 64), (128, 128)]
    assert tile_widths(64, 128) == (64, 128)
