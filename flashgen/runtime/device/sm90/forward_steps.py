"""What consumers of the forward kernel do alike in every variant: how tiles are divided, what a step begins and ends
with, and how the output leaves.

A round begins a tile of queries and finishes that of the round before; a step takes a tile of keys. A consumer has ROWS
rows of each tile of queries.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from flashgen.runtime.device.sm90.barriers import ping_pong_arrive, ping_pong_sync
from flashgen.runtime.device.sm90.products import await_product, scale_rows, start_product, start_scores, zero_sums
from flashgen.runtime.device.sm90.sequences import describe_sequences, output_strides, tma_place
from flashgen.runtime.device.sm90.softmax import unpacked
from flashgen.runtime.device.sm90.tiles import allocate_tiles, load_tile, place_of, tile_at
from flashgen.runtime.gluon import aggregate, tma_store


@aggregate
class ForwardShape:
    """The sides of tiles, and which thread holds what of them: all that a config and the head dimensions decide.

    Tiles of Q, K and V lie in WIDTH columns, a power of two, or SPLIT in two parts, and then V of a tile takes the place
    of its K. Products take powers of two, MAIN and REST, those with V at most 128 columns at a time, V_MAIN and V_REST.
    The output leaves through shared memory of OUT_WIDTH columns. Q of the next tile waits beside that of this one where
    there is room for two. Where there are registers for Q, HOLD_Q, products read only K and V from shared memory. Of
    keys in pages of BLOCK_SIZE slots PAGE_ROWS come at a time, all of one page; both are 0 without pages. A thread of a
    consumer has REGISTERS, 240 where there are two and 160 where there are three, one of the producer 24; where it has
    pages to look up it takes what three leave, or 8 from each of two. That a place of K or V is free, named barriers
    say, from K_NAMED and V_NAMED on, or barriers in shared memory where these are 0.
    """

    ROWS: gl.constexpr
    BN: gl.constexpr
    CONSUMERS: gl.constexpr
    STAGES: gl.constexpr
    PING_PONG: gl.constexpr
    SPLIT: gl.constexpr
    BLOCK_SIZE: gl.constexpr
    PAGE_ROWS: gl.constexpr
    REGISTERS: gl.constexpr
    PRODUCER_REGISTERS: gl.constexpr
    K_NAMED: gl.constexpr
    V_NAMED: gl.constexpr
    Q_SLOTS: gl.constexpr
    WIDTH: gl.constexpr
    MAIN: gl.constexpr
    REST: gl.constexpr
    V_WIDTH: gl.constexpr
    OUT_WIDTH: gl.constexpr
    V_MAIN: gl.constexpr
    V_REST: gl.constexpr
    PRODUCTS: gl.constexpr
    HOLD_Q: gl.constexpr
    qk_layout: gl.constexpr
    q_layout: gl.constexpr
    p_layout: gl.constexpr
    l_layout: gl.constexpr
    acc_layout: gl.constexpr
    rest_layout: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, BM, BN, HEAD_DIM, V_HEAD_DIM, STAGES, CONSUMERS, PING_PONG, SPLIT, BLOCK_SIZE):
        width, v_width = triton.next_power_of_2(HEAD_DIM), triton.next_power_of_2(V_HEAD_DIM)
        main = width if width == HEAD_DIM else width // 2
        v_main = min(v_width, 128)
        acc = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, v_main, 16])
        qk = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
        self.ROWS, self.BN = gl.constexpr(BM // CONSUMERS), gl.constexpr(BN)
        self.CONSUMERS, self.STAGES = gl.constexpr(CONSUMERS), gl.constexpr(STAGES)
        self.PING_PONG, self.SPLIT = gl.constexpr(PING_PONG), gl.constexpr(SPLIT)
        self.BLOCK_SIZE = gl.constexpr(BLOCK_SIZE)
        self.PAGE_ROWS = gl.constexpr(min(BN, BLOCK_SIZE & -BLOCK_SIZE))
        computes, loads = (160, 32 if BLOCK_SIZE else 24) if CONSUMERS == 3 else (232, 40) if BLOCK_SIZE else (240, 24)
        self.REGISTERS, self.PRODUCER_REGISTERS = gl.constexpr(computes), gl.constexpr(loads)
        # Three consumers and wide heads are no faster with named ones, of which there are four for K and four for V.
        named = CONSUMERS == 2 and max(width, v_width) <= 128 and STAGES <= 4
        self.K_NAMED, self.V_NAMED = gl.constexpr(8 if named else 0), gl.constexpr(12 if named else 0)
        self.Q_SLOTS = gl.constexpr(2 if width <= 128 else 1)
        self.WIDTH, self.MAIN, self.REST = gl.constexpr(width), gl.constexpr(main), gl.constexpr(HEAD_DIM - main)
        self.V_WIDTH, self.OUT_WIDTH = gl.constexpr(v_width), gl.constexpr(v_main)
        self.V_MAIN, self.V_REST = gl.constexpr(v_main), gl.constexpr(V_HEAD_DIM - v_main)
        self.PRODUCTS = gl.constexpr(1 if v_main == V_HEAD_DIM else 2)
        self.HOLD_Q = gl.constexpr(CONSUMERS == 2 and width == HEAD_DIM and width <= 64)
        self.qk_layout, self.acc_layout = gl.constexpr(qk), gl.constexpr(acc)
        self.q_layout, self.p_layout = (gl.constexpr(gl.DotOperandLayout(0, each, 2)) for each in (qk, acc))
        self.l_layout = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16]))
        self.rest_layout = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_HEAD_DIM - v_main, 16]))


@gluon.jit
def allocate_forward(dtype: gl.constexpr, shape, PACKED: gl.constexpr):
    """Shared memory for tiles of Q, K, V and the output; those of Q, K and V are tuples of parts."""
    COLUMNS: gl.constexpr = shape.MAIN if shape.SPLIT else shape.WIDTH
    q_s = (allocate_tiles(dtype, shape.Q_SLOTS * shape.CONSUMERS, shape.ROWS, COLUMNS, PACKED),)
    k_s = (allocate_tiles(dtype, shape.STAGES, shape.BN, COLUMNS, PACKED),)
    if shape.SPLIT:
        q_s = (q_s[0], allocate_tiles(dtype, shape.Q_SLOTS * shape.CONSUMERS, shape.ROWS, shape.REST, PACKED))
        k_s = (k_s[0], allocate_tiles(dtype, shape.STAGES, shape.BN, shape.REST, PACKED))
        v_s = k_s
    else:
        v_s = (allocate_tiles(dtype, shape.STAGES, shape.BN, shape.V_WIDTH, PACKED),)
    return q_s, k_s, v_s, allocate_tiles(dtype, shape.CONSUMERS, shape.ROWS, shape.OUT_WIDTH, PACKED)


@gluon.jit
def describe_output(cu_seqlens_q_ptr, out_ptr, batch, heads, length, dim, out_s):
    """How TMA sees the output [batch, heads, length, dim], or packed [total, heads, dim]."""
    strides = output_strides(cu_seqlens_q_ptr, length, heads, dim)
    (desc,) = describe_sequences(cu_seqlens_q_ptr, out_ptr, batch, heads, length, dim, strides, (out_s,), False)
    return desc


@gluon.jit
def load_queries(descs, cu_seqlens_q_ptr, begin, length, h, row0, ticket, q_s, q_channel, shape):
    """The producer's: bring each consumer its rows of a tile of queries, once there is room."""
    for each in gl.static_range(shape.CONSUMERS):
        b, row = tma_place(cu_seqlens_q_ptr, begin, length, row0 + each * shape.ROWS)
        slot = q_channel.slot(ticket, each)
        full = q_channel.acquire(slot)
        load_tile(descs, b, h, row, q_s, slot[0], full, shape.SPLIT)


@gluon.jit
def begin_steps(channels, CONSUMER: gl.constexpr, shape):
    """All places of K and V are free, and it is the first consumer's turn."""
    _, k_channel, v_channel = channels
    k_channel.begin()
    v_channel.begin()
    if CONSUMER == shape.CONSUMERS - 1:
        ping_pong_arrive(CONSUMER, shape.CONSUMERS, shape.PING_PONG)


@gluon.jit
def start_step(
    q_tile, sums, pairs, acc, slot, last, shared, channels, CONSUMER: gl.constexpr, shape, begins=True, finishes=True,
    ADD: gl.constexpr = False,
):  # fmt: skip
    """Start the scores of the tile of keys at `slot`, sums + Q K^T where ADD, and P V of the one before it, at `last`.

    P is `pairs`. Where nothing begins or finishes there is no such tile to wait for.
    """
    _, k_s, v_s, _ = shared
    _, k_channel, v_channel = channels
    k_channel.wait(slot, begins)
    ping_pong_sync(CONSUMER, shape.PING_PONG)
    k_tile = tile_at(k_s, slot[0], shape.SPLIT)
    scores = start_scores(q_tile, k_tile, sums, shape.MAIN, shape.REST, shape.SPLIT, ADD)
    v_channel.wait(last, finishes)
    p = unpacked(pairs, v_s[0].dtype, shape.p_layout)
    v_tile = tile_at(v_s, last[0], shape.SPLIT)
    product = start_product(p, v_tile, acc, shape.V_MAIN, shape.V_REST, shape.SPLIT)
    ping_pong_arrive(CONSUMER, shape.CONSUMERS, shape.PING_PONG)
    return scores, product


@gluon.jit
def finish_product(product, factor, last, v_channel, shape, finishes=True):
    """The sums of P V, each row times its factor; V at `last` has been read."""
    acc = await_product(product, shape.V_REST)
    v_channel.release(last, finishes)
    return scale_rows(acc, factor, shape.V_REST)


@gluon.jit
def zero_acc(shape):
    """The sums of P V before the first product, for the MAIN and the REST columns of V."""
    return zero_sums(shape.ROWS, shape.V_MAIN, shape.V_REST, shape.acc_layout, shape.rest_layout)


@gluon.jit
def store_output(out_desc, out_s, acc, b, h, row0, CONSUMER: gl.constexpr, shape):
    """Let TMA write a consumer's output, as far as there are rows and columns."""
    tile = out_s.index(CONSUMER).reshape([shape.ROWS, shape.OUT_WIDTH])
    tma.store_wait(0)
    tile.store(acc[0].to(out_s.dtype))
    if shape.V_REST > 0:
        # Shared memory for the output holds one part of it.
        fence_async_shared()
        tma_store(out_desc, place_of(out_desc, b, h, row0, 0), out_s.index(CONSUMER))
        tma.store_wait(0)
        tile.slice(0, shape.V_REST, 1).store(acc[1].to(out_s.dtype))
    fence_async_shared()
    tma_store(out_desc, place_of(out_desc, b, h, row0, shape.V_WIDTH - shape.OUT_WIDTH), out_s.index(CONSUMER))
