"""How many columns the tiles of the portable kernels have."""

from __future__ import annotations

# Bytes of a row beyond which the layout of a tile in shared memory is the same however wide it is: the widest swizzle.
SWIZZLE = 128


def tile_widths(head_dim: int, v_head_dim: int, itemsize: int) -> tuple[int, int]:
    """Columns of tiles of Q and K, and of V, of elements of so many bytes: powers of two, at least 16.

    Both are laid out alike in shared memory, the narrower one with columns of zeros where need be: where the last tiles
    of K and V, laid out in different ways, have one place, ptxas 12.8 works out the address of V wrong on sm_90.
    """
    width, v_width = (max(16, 1 << (dim - 1).bit_length()) for dim in (head_dim, v_head_dim))
    alike = min(SWIZZLE // itemsize, max(width, v_width))
    return max(width, alike), max(v_width, alike)
