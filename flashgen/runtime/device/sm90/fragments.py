"""Tiles [64, 64] in the order in which the threads of a consumer hold what WGMMA sums up:

by eight columns, warp and lane, and a thread's four values of these columns, rows 0 and 8 by columns 0 and 1.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma

from flashgen.runtime.device.learned import accumulate
from flashgen.runtime.gluon import tma_add


@gluon.jit
def start_dq(ds_s, buffer, k_s, zero, CONSUMER: gl.constexpr):
    """Start dS K, from the dS of both consumers in a buffer, for this one's 64 rows or columns of it."""
    HEAD_DIM: gl.constexpr = k_s.type.shape[-1]
    dq = zero
    for c in gl.static_range(2):
        ds = ds_s.index(2 * buffer + c)
        keys = k_s.index(c).reshape([64, HEAD_DIM])
        if HEAD_DIM == 128:
            keys = keys.slice(64 * CONSUMER, 64, 1)
        else:
            ds = ds.slice(64 * CONSUMER, 64, 0)
        dq = warpgroup_mma(ds, keys, dq, use_acc=c > 0, is_async=True)
    return dq


@gluon.jit
def add_dq(dq_sums, dq_s, at, dq, FUSE_DQ: gl.constexpr):
    """Add a tile to the sums in memory, from element 64 * at on, as fragments.

    FUSE_DQ 1: each thread adds what it holds. FUSE_DQ 2: TMA adds it from shared memory.
    """
    if FUSE_DQ == 1:
        layout: gl.constexpr = dq.type.layout
        rows = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
        cols = gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
        # The address of the first of a thread's four values; the others are not looked at.
        places = ((rows >> 4) * 128 + (rows & 7) * 16)[:, None] + ((cols >> 3) * 512 + (cols >> 1 & 3) * 4)[None, :]
        addresses = (dq_sums + at.to(gl.int64) * 64 + places).to(gl.int64)
        gl.inline_asm_elementwise(
            "red.global.add.v4.f32 [$4], {$8, $9, $10, $11}; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;",
            "=r,=r,=r,=r,l,l,l,l,f,f,f,f", [addresses, dq], gl.int32, False, 4,
        )  # fmt: skip
    else:
        # What was added before must be out of shared memory.
        tma.store_wait(0)
        dq_s.store(dq.reshape([4, 2, 8, 8, 4, 2]).permute((3, 0, 2, 4, 1, 5)).reshape([16, 256]))
        fence_async_shared()
        tma_add(dq_sums, [at // 4, 0], dq_s)


@gluon.jit
def store_fragments(p_s, p):
    """Put a tile into shared memory as fragments, 16 bytes a thread."""
    p_s.store(p.reshape([4, 2, 8, 8, 4, 2]).permute((3, 0, 2, 4, 1, 5)).reshape([32, 128]))


@gluon.jit
def load_fragments(p_s, layout: gl.constexpr):
    """What the same threads of the other consumer put there."""
    p = p_s.load(gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])).reshape([8, 4, 8, 4, 2, 2])
    return gl.convert_layout(p.permute((1, 4, 2, 0, 3, 5)).reshape([64, 64]), layout, assert_trivial=True)


@gluon.jit
def thread_sums(tile):
    """The sums of what each thread holds of a tile [64, BM]: [4, 8, 4], by warp and lane."""
    return gl.sum(gl.sum(gl.sum(tile.reshape([4, 2, 8, tile.shape[1] // 8, 4, 2]), 5), 3), 1)


@gluon.jit
def accumulate_threads(sums_ptr, at, sums):
    """Add such sums to one element, a number for each warp."""
    value = gl.sum(gl.sum(sums, 2), 1)
    accumulate(sums_ptr, at + gl.zeros_like(value).to(gl.int32), value)
