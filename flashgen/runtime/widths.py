"""How many columns the tiles of the portable kernels have."""

from __future__ import annotations

from functools import lru_cache

# Columns of 16 bits from which on the layout of a tile in shared memory is the same however wide it is: 128 bytes.
WIDEST_SWIZZLE = 64


def padded(dim: int) -> int:
    """A head dimension as a power of two, at least 16."""
    return max(16, 1 << (dim - 1).bit_length())


@lru_cache(maxsize=256)
def tile_widths(head_dim: int, v_head_dim: int) -> tuple[int, int]:
    """Columns of the tiles of Q and K, and of V: powers of two, at least 16.

    Both are laid out alike in shared memory, the narrower one with columns of zeros where need be: where the last tiles
    of K and V, laid out in different ways, have one place, ptxas 12.8 works out the address of V wrong.
    """
    width, v_width = padded(head_dim), padded(v_head_dim)
    alike = min(WIDEST_SWIZZLE, max(width, v_width))
    return max(width, alike), max(v_width, alike)
