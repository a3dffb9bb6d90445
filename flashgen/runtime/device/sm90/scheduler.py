"""Which tile a program takes next where tiles differ in length: whoever is done takes the next one of a counter."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from flashgen.runtime.device.sm90.barriers import Channel, make_channel
from flashgen.runtime.gluon import aggregate


@aggregate
class TileScheduler:
    """The producer draws a tile and hands its index to the consumers. A ticket is the number of those before.

    `index_s` int32 [2, 1] has the index of a ticket and of the next one.
    """

    index_s: gl.shared_memory_descriptor
    channel: Channel

    @gluon.constexpr_function
    def __init__(self, index_s, channel):
        self.index_s, self.channel = index_s, channel

    @gluon.jit
    def announce(self, ticket, index):
        """The producer's: tell the consumers which tile this ticket is for."""
        slot = self.channel.slot(ticket)
        full = self.channel.acquire(slot)
        layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
        self.index_s.index(slot[0]).store(gl.full([1], 0, gl.int32, layout=layout) + index)
        mbarrier.arrive(full)

    @gluon.jit
    def take(self, ticket):
        """A consumer's: the tile of this ticket."""
        slot = self.channel.slot(ticket)
        self.channel.wait(slot)
        index = gl.sum(self.index_s.index(slot[0]).load(gl.BlockedLayout([1], [32], [4], [0])), 0)
        self.channel.release(slot)
        return index


@gluon.jit
def make_scheduler(CONSUMERS: gl.constexpr):
    """A scheduler for so many consumers."""
    index_s = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    return TileScheduler(index_s, make_channel(2, CONSUMERS))


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
