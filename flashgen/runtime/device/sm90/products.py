"""Products of tiles, as WGMMA takes them: powers of two of columns, MAIN and, where these are not all, REST.

Tiles and sums are tuples, of a part for MAIN and one for REST; see `tiles` for SPLIT.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from flashgen.runtime.device.sm90.tiles import rest_columns


@gluon.jit
def start_scores(
    q_tile, k_tile, sums, MAIN: gl.constexpr, REST: gl.constexpr, SPLIT: gl.constexpr = False, ADD: gl.constexpr = False
):
    """Start Q K^T [rows, keys] over MAIN and REST columns; sums + Q K^T where ADD. Q may be in registers."""
    k_main = k_tile[0].slice(0, MAIN, 1).permute((1, 0))
    q_main = q_tile[0] if REST == 0 else q_tile[0].slice(0, MAIN, 1)
    scores = warpgroup_mma(q_main, k_main, sums, use_acc=ADD, is_async=True)
    if REST > 0:
        k_rest = rest_columns(k_tile, MAIN, REST, SPLIT).permute((1, 0))
        scores = warpgroup_mma(rest_columns(q_tile, MAIN, REST, SPLIT), k_rest, scores, is_async=True)
    return scores


@gluon.jit
def start_product(p, v_tile, acc, MAIN: gl.constexpr, REST: gl.constexpr, SPLIT: gl.constexpr = False):
    """Start acc + P V, for the MAIN and the REST columns of V."""
    main = warpgroup_mma(p, v_tile[0].slice(0, MAIN, 1), acc[0], is_async=True)
    if REST > 0:
        return main, warpgroup_mma(p, rest_columns(v_tile, MAIN, REST, SPLIT), acc[1], is_async=True)
    else:
        return (main,)


@gluon.jit
def await_product(product, REST: gl.constexpr, PENDING: gl.constexpr = 0):
    """The sums of a product that was started before the last PENDING ones."""
    if REST > 0:
        return warpgroup_mma_wait(PENDING, deps=(product[0], product[1]))
    else:
        return (warpgroup_mma_wait(PENDING, deps=(product[0],)),)


@gluon.jit
def scale_rows(acc, factor, REST: gl.constexpr):
    """acc with each row times its factor."""
    main = acc[0] * gl.convert_layout(factor, gl.SliceLayout(1, acc[0].type.layout))[:, None]
    if REST > 0:
        return main, acc[1] * gl.convert_layout(factor, gl.SliceLayout(1, acc[1].type.layout))[:, None]
    else:
        return (main,)


@gluon.jit
def zero_sums(
    ROWS: gl.constexpr, MAIN: gl.constexpr, REST: gl.constexpr, main_layout: gl.constexpr, rest_layout: gl.constexpr
):
    """acc before the first product."""
    main = gl.zeros([ROWS, MAIN], gl.float32, main_layout)
    if REST > 0:
        return main, gl.zeros([ROWS, REST], gl.float32, rest_layout)
    else:
        return (main,)


@gluon.jit
def store_sums(tile, sums, scale, dtype: gl.constexpr, MAIN: gl.constexpr, REST: gl.constexpr):
    """Put sums into the MAIN and REST columns of a tile in shared memory, times scale unless that is None."""
    main = sums[0] if scale is None else sums[0] * scale
    tile.slice(0, MAIN, 1).store(main.to(dtype))
    if REST > 0:
        rest = sums[1] if scale is None else sums[1] * scale
        tile.slice(MAIN, REST, 1).store(rest.to(dtype))
