"""What the kernel for dK and dV of wide heads does alike in every variant: how tiles are divided and come, its products,
and how dK and dV leave.

A step takes a tile of queries. Four warps make P and dV of the program's 64 keys, four dS and dK.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from flashgen.runtime.device.sm90.products import await_product, start_product, start_scores, store_sums, zero_sums
from flashgen.runtime.device.sm90.sequences import tma_place
from flashgen.runtime.device.sm90.tiles import place_of
from flashgen.runtime.gluon import aggregate, tma_load, tma_store


@aggregate
class WideShape:
    """The sides of tiles, and which thread holds what of them: all that a config and the head dimensions decide.

    Tiles of Q and K lie in WIDTH columns, those of V and dO in V_WIDTH, powers of two; products take powers of two, MAIN
    and REST, V_MAIN and V_REST. Tiles of scores are transposed, [64, BM], so that P and dS enter products from registers.
    """

    BM: gl.constexpr
    BN: gl.constexpr
    STAGES: gl.constexpr
    WIDTH: gl.constexpr
    MAIN: gl.constexpr
    REST: gl.constexpr
    V_WIDTH: gl.constexpr
    V_MAIN: gl.constexpr
    V_REST: gl.constexpr
    scores_layout: gl.constexpr
    dk_layout: gl.constexpr
    dk_rest_layout: gl.constexpr
    dk_operand: gl.constexpr
    dv_layout: gl.constexpr
    dv_rest_layout: gl.constexpr
    dv_operand: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES):
        width, v_width = triton.next_power_of_2(HEAD_DIM), triton.next_power_of_2(V_HEAD_DIM)
        main = width if width == HEAD_DIM else width // 2
        v_main = v_width if v_width == V_HEAD_DIM else v_width // 2
        rest, v_rest = HEAD_DIM - main, V_HEAD_DIM - v_main
        scores, dk, dk_rest, dv, dv_rest = (
            gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16]) for columns in (BM, main, rest, v_main, v_rest)
        )
        self.BM, self.BN, self.STAGES = gl.constexpr(BM), gl.constexpr(BN), gl.constexpr(STAGES)
        self.WIDTH, self.MAIN, self.REST = gl.constexpr(width), gl.constexpr(main), gl.constexpr(rest)
        self.V_WIDTH, self.V_MAIN, self.V_REST = gl.constexpr(v_width), gl.constexpr(v_main), gl.constexpr(v_rest)
        self.scores_layout = gl.constexpr(scores)
        self.dk_layout, self.dk_rest_layout = gl.constexpr(dk), gl.constexpr(dk_rest)
        self.dv_layout, self.dv_rest_layout = gl.constexpr(dv), gl.constexpr(dv_rest)
        self.dk_operand, self.dv_operand = (gl.constexpr(gl.DotOperandLayout(0, each, 2)) for each in (dk, dv))


@gluon.jit
def allocate_wide(descs, shape):
    """Shared memory for tiles of Q, dO, K, V, lse and delta, and for P as fragments."""
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc = descs
    q_s = gl.allocate_shared_memory(q_desc.dtype, [shape.STAGES] + q_desc.block_type.shape, q_desc.layout)
    do_s = gl.allocate_shared_memory(do_desc.dtype, [shape.STAGES] + do_desc.block_type.shape, do_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, k_desc.block_type.shape, k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, v_desc.block_type.shape, v_desc.layout)
    lse_s = gl.allocate_shared_memory(gl.float32, [shape.STAGES, shape.BM], lse_desc.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, [shape.STAGES, shape.BM], delta_desc.layout)
    p_s = gl.allocate_shared_memory(gl.float32, [shape.STAGES, 32, 128], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    return q_s, do_s, k_s, v_s, lse_s, delta_s, p_s


@gluon.jit
def load_wide_stage(descs, b, h, row, first_row, start, slot, shared, q_channel, do_channel):
    """The producer's: bring a tile of dO and delta of its rows, those from `start` on, then one of Q and lse, each once
    there is room."""
    q_desc, do_desc, _, _, lse_desc, delta_desc = descs
    q_s, do_s, lse_s, delta_s = shared[0], shared[1], shared[4], shared[5]
    do_full = do_channel.acquire(slot)
    mbarrier.expect(do_full, do_desc.block_type.nbytes + delta_desc.block_type.nbytes)
    tma_load(do_desc, place_of(do_desc, b, h, row, 0), do_full, do_s.index(slot[0]))
    tma_load(delta_desc, [first_row + start], do_full, delta_s.index(slot[0]))
    q_full = q_channel.acquire(slot)
    mbarrier.expect(q_full, q_desc.block_type.nbytes + lse_desc.block_type.nbytes)
    tma_load(q_desc, place_of(q_desc, b, h, row, 0), q_full, q_s.index(slot[0]))
    tma_load(lse_desc, [first_row + start], q_full, lse_s.index(slot[0]))


@gluon.jit
def zero_wide_dk(shape):
    """dK before the first product, for MAIN and REST columns."""
    return zero_sums(shape.BN, shape.MAIN, shape.REST, shape.dk_layout, shape.dk_rest_layout)


@gluon.jit
def zero_wide_dv(shape):
    """The same of dV."""
    return zero_sums(shape.BN, shape.V_MAIN, shape.V_REST, shape.dv_layout, shape.dv_rest_layout)


@gluon.jit
def start_wide_scores(k_s, q_s, stage, zero, shape):
    """Start S^T = K Q^T of a tile of queries."""
    k_tile, q_tile = k_s.reshape([shape.BN, shape.WIDTH]), q_s.index(stage).reshape([shape.BM, shape.WIDTH])
    return start_scores((k_tile,), (q_tile,), zero, shape.MAIN, shape.REST)


@gluon.jit
def start_wide_dp(v_s, do_s, stage, zero, shape):
    """Start dP^T = V dO^T of a tile of queries."""
    v_tile, do_tile = v_s.reshape([shape.BN, shape.V_WIDTH]), do_s.index(stage).reshape([shape.BM, shape.V_WIDTH])
    return start_scores((v_tile,), (do_tile,), zero, shape.V_MAIN, shape.V_REST)


@gluon.jit
def add_wide_dv(p, do_s, stage, dv, shape):
    """dV + P^T dO."""
    do_tile = do_s.index(stage).reshape([shape.BM, shape.V_WIDTH])
    return await_product(start_product(p, (do_tile,), dv, shape.V_MAIN, shape.V_REST), shape.V_REST)


@gluon.jit
def add_wide_dk(ds, q_s, stage, dk, shape):
    """dK + dS^T Q."""
    q_tile = q_s.index(stage).reshape([shape.BM, shape.WIDTH])
    return await_product(start_product(ds, (q_tile,), dk, shape.MAIN, shape.REST), shape.REST)


@gluon.jit
def store_wide(
    desc, tile, sums, scale, cu_seqlens_k_ptr, begin, length, kv_h, col0, ROWS: gl.constexpr, MAIN: gl.constexpr,
    REST: gl.constexpr,
):  # fmt: skip
    """Let TMA write the sums, times scale unless that is None, as far as there are keys. They take the place of a tile
    that has been read for the last time."""
    store_sums(tile.reshape([ROWS, tile.type.shape[-1]]), sums, scale, desc.dtype, MAIN, REST)
    fence_async_shared()
    b, row = tma_place(cu_seqlens_k_ptr, begin, length, col0)
    tma_store(desc, place_of(desc, b, kv_h, row, 0), tile)
    tma.store_wait(0)
