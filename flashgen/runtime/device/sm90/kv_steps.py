"""What the kernel for dK and dV does alike in every variant: how tiles are divided, how they come, what a step begins and
ends with, and how dK and dV leave.

A step takes a tile of queries, the n-th in its stage. A consumer has 64 of a tile's 128 keys. Consumers meet at named
barriers. 8: both have dS of a tile in shared memory. Where dQ is made one tile later, 8 + 2 * consumer for its even
tiles and the next one for its odd tiles. 12: both have read dS or the keys, or dK and dV are out of its room.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashgen.runtime.device.sm90.barriers import barrier_arrive, barrier_sync, make_barriers
from flashgen.runtime.device.sm90.fragments import add_dq, start_dq
from flashgen.runtime.device.sm90.positions import opaque
from flashgen.runtime.device.sm90.sequences import delta_place, tma_place
from flashgen.runtime.device.sm90.tiles import place_of
from flashgen.runtime.device.sm90.work_tiles import key_tile
from flashgen.runtime.gluon import aggregate, reinterpret, tma_load, tma_store


@aggregate
class KvShape:
    """The sides of tiles, and which thread holds what of them: all that a config and the head dimensions decide.

    Tiles of scores are transposed, [64, BM], so that P and dS enter the products for dV and dK from registers. dS of
    both consumers has BUFFERS places in shared memory, where FUSE_DQ. THROUGH_DS: dK and dV leave through its room.
    HIDE_OWN: the compiler does not know which of a tile's halves is a consumer's, see `own_tile`.
    """

    BM: gl.constexpr
    STAGES: gl.constexpr
    FUSE_DQ: gl.constexpr
    DELAY_DQ: gl.constexpr
    HEAD_DIM: gl.constexpr
    V_HEAD_DIM: gl.constexpr
    HIDE_OWN: gl.constexpr
    BUFFERS: gl.constexpr
    THROUGH_DS: gl.constexpr
    scores_layout: gl.constexpr
    v_layout: gl.constexpr
    dk_layout: gl.constexpr
    dv_layout: gl.constexpr
    dk_operand: gl.constexpr
    dv_operand: gl.constexpr
    dq_layout: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, BM, HEAD_DIM, V_HEAD_DIM, STAGES, FUSE_DQ, DELAY_DQ, PERSISTENT, PACKED, SUMS_BY_TILE=False):
        buffers = 4 if DELAY_DQ else 2
        hide_own = PACKED or (FUSE_DQ > 0 and BM == 128 and not SUMS_BY_TILE)
        scores, dk, dv, dq = (
            gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16]) for width in (BM, HEAD_DIM, V_HEAD_DIM, 64)
        )
        self.BM, self.STAGES = gl.constexpr(BM), gl.constexpr(STAGES)
        self.FUSE_DQ, self.DELAY_DQ = gl.constexpr(FUSE_DQ), gl.constexpr(DELAY_DQ)
        self.HEAD_DIM, self.V_HEAD_DIM = gl.constexpr(HEAD_DIM), gl.constexpr(V_HEAD_DIM)
        self.HIDE_OWN, self.BUFFERS = gl.constexpr(hide_own), gl.constexpr(buffers)
        self.THROUGH_DS = gl.constexpr(PERSISTENT and FUSE_DQ > 0 and buffers * BM >= 2 * HEAD_DIM)
        self.scores_layout, self.dq_layout = gl.constexpr(scores), gl.constexpr(dq)
        self.dk_layout, self.dv_layout = gl.constexpr(dk), gl.constexpr(dv)
        self.v_layout, self.dk_operand, self.dv_operand = (
            gl.constexpr(gl.DotOperandLayout(0, each, 2)) for each in (scores, dk, dv)
        )


@gluon.jit
def allocate_kv(descs, outputs, shape, PERSISTENT: gl.constexpr):
    """Shared memory for tiles of Q, dO, K, V, lse, delta, dS and dQ, and where PERSISTENT of dK and dV."""
    q_desc, do_desc, k_desc, v_desc, lse_desc, delta_desc = descs
    dq_sums, dk_desc, dv_desc = outputs
    q_s = gl.allocate_shared_memory(q_desc.dtype, [shape.STAGES] + q_desc.block_type.shape, q_desc.layout)
    do_s = gl.allocate_shared_memory(do_desc.dtype, [shape.STAGES] + do_desc.block_type.shape, do_desc.layout)
    k_s = gl.allocate_shared_memory(k_desc.dtype, [2] + k_desc.block_type.shape, k_desc.layout)
    v_s = gl.allocate_shared_memory(v_desc.dtype, [2] + v_desc.block_type.shape, v_desc.layout)
    lse_s = gl.allocate_shared_memory(gl.float32, [shape.STAGES, shape.BM], lse_desc.layout)
    delta_s = gl.allocate_shared_memory(gl.float32, [shape.STAGES, shape.BM], delta_desc.layout)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([shape.BM, 64], k_desc.dtype)
    # What a launch does without is not allocated: another name for K's.
    if shape.FUSE_DQ > 0:
        ds_s = gl.allocate_shared_memory(k_desc.dtype, [2 * shape.BUFFERS, shape.BM, 64], ds_layout)
    else:
        ds_s = k_s
    if shape.FUSE_DQ == 2:
        dq_s = gl.allocate_shared_memory(gl.float32, [2] + dq_sums.block_type.shape, dq_sums.layout)
    else:
        dq_s = k_s
    if PERSISTENT:
        dk_s, dv_s = _room_for_gradients(ds_s, dk_desc, dv_desc, shape)
        return q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, dq_s, dk_s, dv_s
    else:
        return q_s, do_s, k_s, v_s, lse_s, delta_s, ds_s, dq_s


@gluon.jit
def _room_for_gradients(ds_s, dk_desc, dv_desc, shape):
    """dV and dK leave at once through the room of dS where it is large, else one after the other through their own."""
    ROOM: gl.constexpr = 2 * shape.BUFFERS * shape.BM
    if shape.THROUGH_DS:
        dv_s = reinterpret(ds_s, dv_desc.dtype, [ROOM // shape.V_HEAD_DIM] + dv_desc.block_type.shape, dv_desc.layout)
        dk_s = reinterpret(ds_s, dk_desc.dtype, [ROOM // shape.HEAD_DIM] + dk_desc.block_type.shape, dk_desc.layout)
    else:
        dk_s = gl.allocate_shared_memory(dk_desc.dtype, [2] + dk_desc.block_type.shape, dk_desc.layout)
        if shape.V_HEAD_DIM == shape.HEAD_DIM:
            dv_s = dk_s
        else:
            dv_s = gl.allocate_shared_memory(dv_desc.dtype, [2] + dv_desc.block_type.shape, dv_desc.layout)
    return dk_s, dv_s


@gluon.jit
def make_kv_barriers(STAGES: gl.constexpr, PERSISTENT: gl.constexpr):
    """Those of a tile of keys, and those of stages of queries: `full` says that a tile has arrived, `empty` that both
    consumers are done with it. Who takes but one tile of keys has one barrier for K and V."""
    kv_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    if PERSISTENT:
        k_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        v_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        v_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_full = make_barriers(STAGES)
    do_full = make_barriers(STAGES)
    rows_full = make_barriers(STAGES)
    empty = make_barriers(STAGES, 2)
    mbarrier.init(kv_full, count=1)
    if PERSISTENT:
        mbarrier.init(k_empty, count=2)
        mbarrier.init(v_full, count=1)
        mbarrier.init(v_empty, count=2)
        return (kv_full, k_empty, v_full, v_empty), (q_full, do_full, rows_full, empty)
    else:
        return (kv_full,), (q_full, do_full, rows_full, empty)


@gluon.jit
def load_halves(desc, cu_seqlens_k_ptr, begin, length, kv_h, col0, tiles, full):
    """The producer's: bring each consumer its 64 keys, or values, of a tile."""
    for c in gl.static_range(2):
        b, row = tma_place(cu_seqlens_k_ptr, begin, length, col0 + 64 * c)
        tma_load(desc, place_of(desc, b, kv_h, row, 0), full, tiles.index(c))


@gluon.jit
def load_stage(descs, b, h, row, first_row, start, stage, phase, shared, of_queries):
    """The producer's: bring a tile of Q and dO once there is room, and lse and delta of its rows, those from `start` on."""
    q_desc, do_desc, _, _, lse_desc, delta_desc = descs
    q_s, do_s, lse_s, delta_s = shared[0], shared[1], shared[4], shared[5]
    q_full, do_full, rows_full, empty = of_queries
    mbarrier.wait(empty.index(stage), phase ^ 1)
    mbarrier.expect(q_full.index(stage), q_desc.block_type.nbytes)
    tma_load(q_desc, place_of(q_desc, b, h, row, 0), q_full.index(stage), q_s.index(stage))
    mbarrier.expect(do_full.index(stage), do_desc.block_type.nbytes)
    tma_load(do_desc, place_of(do_desc, b, h, row, 0), do_full.index(stage), do_s.index(stage))
    mbarrier.expect(rows_full.index(stage), lse_desc.block_type.nbytes + delta_desc.block_type.nbytes)
    tma_load(lse_desc, [first_row + start], rows_full.index(stage), lse_s.index(stage))
    tma_load(delta_desc, [first_row + start], rows_full.index(stage), delta_s.index(stage))


@gluon.jit
def _own_ds(ds_s, n, CONSUMER: gl.constexpr, shape):
    """Where a consumer puts its dS^T of the n-th tile of queries, as the product for dQ wants it: rows are queries."""
    return ds_s.index(2 * (n & (shape.BUFFERS - 1)) + CONSUMER).permute((1, 0))


@gluon.jit
def begin_dq(cu_seqlens_q_ptr, b, h, heads, begin, num_rows, n, shared, CONSUMER: gl.constexpr, shape):
    """Where dQ is made one tile later: as if there had been a tile before the first, with dS = 0. Returns where its part
    of dQ is added."""
    k_s, ds_s = shared[2], shared[6]
    if shape.FUSE_DQ > 0 and shape.DELAY_DQ:
        last_at = delta_place(cu_seqlens_q_ptr, b, h, heads, begin, num_rows)
        last_at = last_at * (shape.HEAD_DIM // 64) + 64 * CONSUMER
        nothing = gl.zeros([64, shape.BM], k_s.dtype, shape.scores_layout)
        _own_ds(ds_s, n - 1, CONSUMER, shape).store(nothing)
        fence_async_shared()
        barrier_arrive(8 + 2 * CONSUMER + (n + 1 & 1))
        return last_at
    else:
        return 0


@gluon.jit
def own_tile(tiles, CONSUMER: gl.constexpr, WIDTH: gl.constexpr, shape):
    """A consumer's 64 keys, or values, of a tile in shared memory.

    What describes each 16 columns of it to WGMMA waits in registers in front of all loops. Packed sequences need those
    for other things, and so do parts of dQ beside tiles of 128 queries: the compiler must not know which of the two
    tiles it is, and adds up what it needs. Beside sums by tile for learned inputs it would spill twice as much.
    """
    if shape.HIDE_OWN:
        own = tiles.index(opaque(gl.to_tensor(CONSUMER)))
    else:
        own = tiles.index(CONSUMER)
    return own.reshape([64, WIDTH])


@gluon.jit
def start_kv_step(zero, stage, phase, shared, of_queries, CONSUMER: gl.constexpr, shape, v_held=None):
    """Start S^T = K Q^T and dP^T = V dO^T of a tile of queries, as soon as Q and dO are there. V may be in registers."""
    q_s, do_s, k_s, v_s = shared[:4]
    q_full, do_full = of_queries[:2]
    q_tile = q_s.index(stage).reshape([shape.BM, shape.HEAD_DIM])
    do_tile = do_s.index(stage).reshape([shape.BM, shape.V_HEAD_DIM])
    v_tile = own_tile(v_s, CONSUMER, shape.V_HEAD_DIM, shape) if v_held is None else v_held
    mbarrier.wait(q_full.index(stage), phase)
    k_tile = own_tile(k_s, CONSUMER, shape.HEAD_DIM, shape)
    scores = warpgroup_mma(k_tile, q_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
    mbarrier.wait(do_full.index(stage), phase)
    return scores, warpgroup_mma(v_tile, do_tile.permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def finish_kv_step(
    p, ds, dk, dv, first_row, start, last_at, n, stage, dq_sums, shared, of_queries, CONSUMER: gl.constexpr, shape
):
    """dK + dS^T Q and dV + P^T dO of the tile of queries in `stage`, which is empty then, and where FUSE_DQ its part of
    dQ, from row first_row + start on. Where dQ is made one tile later it is the part of the tile before, at `last_at`.

    Returns dK, dV and where the tile's own part is added.
    """
    q_s, do_s, k_s = shared[:3]
    ds_s, dq_s = shared[6:8]
    zero_dq = gl.zeros([64, 64], gl.float32, shape.dq_layout)
    if shape.FUSE_DQ > 0:
        _own_ds(ds_s, n, CONSUMER, shape).store(ds)
    next_dv = warpgroup_mma(p, do_s.index(stage).reshape([shape.BM, shape.V_HEAD_DIM]), dv, is_async=True)
    if shape.FUSE_DQ > 0:
        fence_async_shared()
        at = (first_row + start) * (shape.HEAD_DIM // 64) + 64 * CONSUMER
        if shape.DELAY_DQ:
            # The other consumer is done with the tile before; its own part of dS came with it.
            barrier_sync(8 + 2 * (1 - CONSUMER) + (n + 1 & 1))
            next_dq = start_dq(ds_s, (n - 1) & (shape.BUFFERS - 1), k_s, zero_dq, CONSUMER)
            at, last_at = last_at, at
        else:
            barrier_sync(8)
            next_dq = start_dq(ds_s, n & (shape.BUFFERS - 1), k_s, zero_dq, CONSUMER)
    q_tile = q_s.index(stage).reshape([shape.BM, shape.HEAD_DIM])
    next_dk = warpgroup_mma(gl.convert_layout(ds, shape.dk_operand), q_tile, dk, is_async=True)
    if shape.FUSE_DQ > 0:
        # dQ leaves while the last product runs.
        dv, dq = warpgroup_mma_wait(1, deps=(next_dv, next_dq))
        add_dq(dq_sums, dq_s.index(CONSUMER), at, dq, shape.FUSE_DQ)
        dk = warpgroup_mma_wait(0, deps=(next_dk,))
    else:
        dv, dk = warpgroup_mma_wait(0, deps=(next_dv, next_dk))
    mbarrier.arrive(of_queries[3].index(stage))
    if shape.FUSE_DQ > 0 and shape.DELAY_DQ:
        barrier_arrive(8 + 2 * CONSUMER + (n & 1))
    return dk, dv, last_at


@gluon.jit
def end_dq(dq_sums, last_at, n, shared, CONSUMER: gl.constexpr, shape):
    """Where dQ is made one tile later: add the part of the last tile."""
    k_s, ds_s, dq_s = shared[2], shared[6], shared[7]
    if shape.FUSE_DQ > 0 and shape.DELAY_DQ:
        barrier_sync(8 + 2 * (1 - CONSUMER) + (n + 1 & 1))
        zero_dq = gl.zeros([64, 64], gl.float32, shape.dq_layout)
        next_dq = start_dq(ds_s, (n - 1) & (shape.BUFFERS - 1), k_s, zero_dq, CONSUMER)
        dq = warpgroup_mma_wait(0, deps=(next_dq,))
        add_dq(dq_sums, dq_s.index(CONSUMER), last_at, dq, shape.FUSE_DQ)


@gluon.jit
def _place_anew(work_tile, places, sequences, CONSUMER: gl.constexpr, BN: gl.constexpr):
    """Where TMA writes a consumer's part of a tile of keys; of a dense one that is not worth registers in the meantime."""
    batch, longest_k, kv_heads, head_group = places
    cu_seqlens_k_ptr, order_ptr = sequences[1], sequences[5]
    if order_ptr is None:
        work_tile = (opaque(work_tile[0]),)
    _, kv_h, col0, begin, length = key_tile(
        work_tile, order_ptr, opaque(longest_k), batch, opaque(kv_heads), opaque(head_group), BN
    )  # fmt: skip
    b, row = tma_place(cu_seqlens_k_ptr, begin, length, col0 + 64 * CONSUMER)
    return b, kv_h, row


@gluon.jit
def store_gradients(
    outputs, dk, scale, dv, work_tile, places, sequences, shared, CONSUMER: gl.constexpr, BN: gl.constexpr, shape
):
    """Let TMA write dK * scale and dV of a tile of keys, as far as there are keys."""
    _, dk_desc, dv_desc = outputs
    dk_s, dv_s = shared[8], shared[9]
    if shape.THROUGH_DS:
        barrier_sync(12)
    b, kv_h, row = _place_anew(work_tile, places, sequences, CONSUMER, BN)
    dv_tile, dk_tile = dv_s.index(CONSUMER), dk_s.index(dk_s.type.shape[0] - 2 + CONSUMER)
    tma.store_wait(0)
    dv_tile.reshape([64, shape.V_HEAD_DIM]).store(dv.to(dv_desc.dtype))
    fence_async_shared()
    tma_store(dv_desc, place_of(dv_desc, b, kv_h, row, 0), dv_tile)
    if not shape.THROUGH_DS:
        tma.store_wait(0)
    dk_tile.reshape([64, shape.HEAD_DIM]).store((dk * scale).to(dk_desc.dtype))
    fence_async_shared()
    tma_store(dk_desc, place_of(dk_desc, b, kv_h, row, 0), dk_tile)


@gluon.jit
def store_gradients_at_once(
    outputs,
    dk,
    scale,
    dv,
    last_at,
    n,
    work_tile,
    places,
    sequences,
    shared,
    CONSUMER: gl.constexpr,
    BN: gl.constexpr,
    shape,
):
    """The same for a program's only tile of keys: dK and dV take the place of K and V, which have been read then."""
    dq_sums, dk_desc, dv_desc = outputs
    k_s, v_s = shared[2:4]
    b, kv_h, row = _place_anew(work_tile, places, sequences, CONSUMER, BN)
    v_s.index(CONSUMER).reshape([64, shape.V_HEAD_DIM]).store(dv.to(dv_desc.dtype))
    fence_async_shared()
    tma_store(dv_desc, place_of(dv_desc, b, kv_h, row, 0), v_s.index(CONSUMER))
    if shape.FUSE_DQ > 0:
        end_dq(dq_sums, last_at, n, shared, CONSUMER, shape)
        # The other consumer has read this one's keys.
        barrier_sync(12)
    k_s.index(CONSUMER).reshape([64, shape.HEAD_DIM]).store((dk * scale).to(dk_desc.dtype))
    fence_async_shared()
    tma_store(dk_desc, place_of(dk_desc, b, kv_h, row, 0), k_s.index(CONSUMER))
