"""Which tile a program takes next where tiles differ in length: whoever is done takes the next one of a counter.

The producer draws it and hands it over to the consumers through shared memory, index_s [2, 1]. A ticket is the number
of tiles that a program has had.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def announce(index, ticket, index_s, index_full, index_empty):
    """The producer's: tell the consumers which tile this ticket is for."""
    mbarrier.wait(index_empty.index(ticket % 2), (ticket // 2 & 1) ^ 1)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    index_s.index(ticket % 2).store(gl.full([1], 0, gl.int32, layout=layout) + index)
    mbarrier.arrive(index_full.index(ticket % 2))


@gluon.jit
def announced(ticket, index_s, index_full, index_empty):
    """A consumer's: the tile of this ticket."""
    mbarrier.wait(index_full.index(ticket % 2), ticket // 2 & 1)
    index = gl.sum(index_s.index(ticket % 2).load(gl.BlockedLayout([1], [32], [4], [0])), 0)
    mbarrier.arrive(index_empty.index(ticket % 2))
    return index


@gluon.jit
def request_tile(counter_ptr):
    """The producer's: count one up, without a wait for the answer. It is the sum of what this returns, [32]."""
    lanes = gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))
    return gl.inline_asm_elementwise(
        "{ .reg .pred first; setp.eq.s32 first, $2, 0; mov.b32 $0, 0; @first atom.global.add.u32 $0, [$1], 1; }",
        "=&r,l,r", [(counter_ptr + lanes * 0).to(gl.int64), lanes], gl.int32, False, 1,
    )  # fmt: skip


@gluon.jit
def reset_counter(counter_ptr):
    """The last program to end sets the counters back, for the launch that follows on this stream."""
    if gl.atomic_add(counter_ptr + 1, 1) == gl.num_programs(0) - 1:
        gl.store(counter_ptr, 0)
        gl.store(counter_ptr + 1, 0)
