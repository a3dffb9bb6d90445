"""Which tile a program takes next where tiles differ in length: whoever is done takes the next one of a counter."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from flashgen.runtime.device.sm90.barriers import Channel, make_channel
from flashgen.runtime.gluon import aggregate


@gluon.constexpr_function
def _numbers(packed):
    """The numbers of a work tile: of a packed one all that its index leads to, which takes a search to find."""
    return 8 if packed else 1


@aggregate
class TileScheduler:
    """The producer draws a tile and hands it to the consumers. A ticket is the number of those before.

    A work tile is a tuple whose first number is its index; see work_tiles.py for the others, which packed sequences have.
    `tiles_s` int32 [2 * NUMBERS, 1] has that of a ticket and the next one.
    """

    tiles_s: gl.shared_memory_descriptor
    channel: Channel
    NUMBERS: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, tiles_s, channel, NUMBERS):
        self.tiles_s, self.channel = tiles_s, channel
        self.NUMBERS = gl.constexpr(NUMBERS)

    @gluon.jit
    def announce(self, ticket, work_tile):
        """The producer's: tell the consumers which tile this ticket is for."""
        self._write(ticket, work_tile, self.NUMBERS)

    @gluon.jit
    def end(self, ticket, index):
        """The producer's: tell them that there is none, by an index behind the last."""
        self._write(ticket, (index,), 1)

    @gluon.jit
    def _write(self, ticket, numbers, COUNT: gl.constexpr):
        slot = self.channel.slot(ticket)
        full = self.channel.acquire(slot)
        layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
        for i in gl.static_range(COUNT):
            number = self.tiles_s.index(slot[0] * self.NUMBERS + i)
            number.store(gl.full([1], 0, gl.int32, layout=layout) + numbers[i])
        mbarrier.arrive(full)

    @gluon.jit
    def take(self, ticket, index=0):
        """A consumer's: the tile of this ticket. The one before was `index`, by which those in turn go.

        A packed tile's numbers stay where they are until `take_again`.
        """
        slot = self.channel.slot(ticket)
        self.channel.wait(slot)
        work_tile = self._read(slot)
        if self.NUMBERS == 1:
            self.channel.release(slot)
        return work_tile

    @gluon.jit
    def take_again(self, ticket, work_tile, pred=True):
        """A consumer's: the tile once more. Meanwhile the numbers of a packed one are not worth registers. It is done
        with the tile then, unless `pred` is false. In front of the first one comes the first: its numbers exist."""
        if self.NUMBERS > 1:
            slot = self.channel.slot(gl.maximum(ticket, 0))
            work_tile = self._read(slot)
            self.channel.release(slot, pred)
        return work_tile

    @gluon.jit
    def _read(self, slot):
        work_tile = (self._number(slot, 0),)
        for i in gl.static_range(1, self.NUMBERS):
            work_tile += (self._number(slot, i),)
        return work_tile

    @gluon.jit
    def _number(self, slot, i: gl.constexpr):
        number = self.tiles_s.index(slot[0] * self.NUMBERS + i)
        return gl.sum(number.load(gl.BlockedLayout([1], [32], [4], [0])), 0)


@aggregate
class TilesInTurn:
    """In the place of a scheduler where tiles are alike: each role finds them by itself."""

    @gluon.constexpr_function
    def __init__(self):
        pass

    @gluon.jit
    def announce(self, ticket, work_tile):
        """The consumers know."""

    @gluon.jit
    def take(self, ticket, index):
        """The tile after the one under `index`."""
        return (index + gl.num_programs(0),)


@gluon.jit
def make_scheduler(CONSUMERS: gl.constexpr, PACKED: gl.constexpr):
    """A scheduler for so many consumers, whose tiles are those of packed sequences or of dense ones."""
    NUMBERS: gl.constexpr = _numbers(PACKED)
    tiles_s = gl.allocate_shared_memory(gl.int32, [2 * NUMBERS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    return TileScheduler(tiles_s, make_channel(2, CONSUMERS), NUMBERS)


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
