"""What consumers of the kernel for dQ do alike in every variant: how tiles are divided, what a step begins with, and how
dQ leaves.

A step takes a tile of keys. A consumer has 64 rows of the tile of queries.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from flashgen.runtime.device.sm90.barriers import ping_pong_arrive, ping_pong_sync
from flashgen.runtime.device.sm90.products import await_product, start_product, start_scores, store_sums, zero_sums
from flashgen.runtime.device.sm90.sequences import tma_place
from flashgen.runtime.device.sm90.tiles import place_of
from flashgen.runtime.gluon import aggregate, tma_store


@aggregate
class DqShape:
    """The sides of tiles, and which thread holds what of them: all that a config and the head dimensions decide.

    Tiles of Q, K and dQ lie in WIDTH columns, those of V and dO in V_WIDTH, powers of two; products take powers of two,
    MAIN and REST, V_MAIN and V_REST. S and dP are S_PRODUCTS and DP_PRODUCTS of them.
    """

    BN: gl.constexpr
    CONSUMERS: gl.constexpr
    V_STAGES: gl.constexpr
    PING_PONG: gl.constexpr
    WIDTH: gl.constexpr
    MAIN: gl.constexpr
    REST: gl.constexpr
    S_PRODUCTS: gl.constexpr
    V_WIDTH: gl.constexpr
    V_MAIN: gl.constexpr
    V_REST: gl.constexpr
    DP_PRODUCTS: gl.constexpr
    qk_layout: gl.constexpr
    dq_layout: gl.constexpr
    rest_layout: gl.constexpr
    ds_layout: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, BN, HEAD_DIM, V_HEAD_DIM, V_STAGES, CONSUMERS, PING_PONG):
        width, v_width = triton.next_power_of_2(HEAD_DIM), triton.next_power_of_2(V_HEAD_DIM)
        main = width if width == HEAD_DIM else width // 2
        v_main = v_width if v_width == V_HEAD_DIM else v_width // 2
        dq = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, main, 16])
        self.BN, self.V_STAGES = gl.constexpr(BN), gl.constexpr(V_STAGES)
        self.CONSUMERS, self.PING_PONG = gl.constexpr(CONSUMERS), gl.constexpr(PING_PONG)
        self.WIDTH, self.MAIN, self.REST = gl.constexpr(width), gl.constexpr(main), gl.constexpr(HEAD_DIM - main)
        self.V_WIDTH, self.V_MAIN, self.V_REST = (
            gl.constexpr(v_width),
            gl.constexpr(v_main),
            gl.constexpr(V_HEAD_DIM - v_main),
        )
        self.S_PRODUCTS = gl.constexpr(1 if main == HEAD_DIM else 2)
        self.DP_PRODUCTS = gl.constexpr(1 if v_main == V_HEAD_DIM else 2)
        self.qk_layout = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16]))
        self.dq_layout, self.ds_layout = gl.constexpr(dq), gl.constexpr(gl.DotOperandLayout(0, dq, 2))
        self.rest_layout = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM - main, 16]))


@gluon.jit
def zero_dq_sums(shape):
    """dQ before the first product, for MAIN and REST columns."""
    return zero_sums(64, shape.MAIN, shape.REST, shape.dq_layout, shape.rest_layout)


@gluon.jit
def start_dq_scores(q_tile, k_s, slot, zero, shape):
    """Start S = Q K^T with the keys at `slot`."""
    return start_scores((q_tile,), (_rows(k_s, slot[0], shape.BN, shape.WIDTH),), zero, shape.MAIN, shape.REST)


@gluon.jit
def start_dp(do_s, each, v_s, slot, zero, shape):
    """Start dP = dO V^T with the rows of consumer `each` and V at `slot`."""
    do_tile, v_tile = _rows(do_s, each, 64, shape.V_WIDTH), _rows(v_s, slot[0], shape.BN, shape.V_WIDTH)
    return start_scores((do_tile,), (v_tile,), zero, shape.V_MAIN, shape.V_REST)


@gluon.jit
def start_dq_product(ds, k_s, slot, dq, shape):
    """Start dQ + dS K with the keys at `slot`."""
    return start_product(ds, (_rows(k_s, slot[0], shape.BN, shape.WIDTH),), dq, shape.MAIN, shape.REST)


@gluon.jit
def start_dq_step(
    q_tile, zero, ds, dq, last, slot, v_slot, shared, k_channel, v_channel, CONSUMER: gl.constexpr, shape
):
    """Start the part of dQ of the tile of keys at `last`, and S, then dP of that at `slot`; V is at `v_slot`.

    Returns S and dP, and dQ with that part.
    """
    _, do_s, k_s, v_s = shared
    ping_pong_sync(CONSUMER, shape.PING_PONG)
    product = start_dq_product(ds, k_s, last, dq, shape)
    k_channel.wait(slot)
    scores = start_dq_scores(q_tile, k_s, slot, zero, shape)
    dq = await_product(product, shape.REST, shape.S_PRODUCTS)
    k_channel.release(last)
    v_channel.wait(v_slot)
    own = CONSUMER + v_slot[0] if shape.V_STAGES == 1 else CONSUMER  # CONSUMER, see v_slot_of
    products = start_dp(do_s, own, v_s, v_slot, zero, shape)
    ping_pong_arrive(CONSUMER, shape.CONSUMERS, shape.PING_PONG)
    return scores, products, dq


@gluon.jit
def store_dq(dq_desc, q_s, dq, scale, cu_seqlens_q_ptr, begin, length, h, row0, CONSUMER: gl.constexpr, shape):
    """Let TMA write dQ * scale, the rows and columns that exist. It takes the place of Q, with which all is done."""
    tile = _rows(q_s, CONSUMER, 64, shape.WIDTH)
    store_sums(tile, dq, scale, dq_desc.dtype, shape.MAIN, shape.REST)
    fence_async_shared()
    b, row = tma_place(cu_seqlens_q_ptr, begin, length, row0)
    tma_store(dq_desc, place_of(dq_desc, b, h, row, 0), q_s.index(CONSUMER))


@gluon.jit
def _rows(tiles, i, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """Tile i, [rows, columns]."""
    return tiles.index(i).reshape([ROWS, WIDTH])
