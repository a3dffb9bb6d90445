"""Barriers by which the roles of a kernel meet: in shared memory for tiles that come and go, and by number."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from flashgen.runtime.gluon import aggregate


@aggregate
class Channel:
    """Places in shared memory that a producer fills and consumers empty: the n-th tile has place n % STAGES.

    Of each place `full` says that a tile has arrived, `empty` that all who read it are done. Where PARTS is not 1, each
    tile has so many, with a place and barriers of its own. A slot is a place and the phase of its barriers.
    """

    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    STAGES: gl.constexpr
    PARTS: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, full, empty, STAGES, PARTS):
        self.full, self.empty = full, empty
        self.STAGES, self.PARTS = gl.constexpr(STAGES), gl.constexpr(PARTS)

    @gluon.jit
    def slot(self, n, part=0):
        """The place of tile n, and the phase of its barriers there."""
        return n % self.STAGES * self.PARTS + part, n // self.STAGES & 1

    @gluon.jit
    def acquire(self, slot):
        """The producer's: wait until there is room. Returns the barrier that waits for the tile."""
        mbarrier.wait(self.empty.index(slot[0]), slot[1] ^ 1)
        return self.full.index(slot[0])

    @gluon.jit
    def wait(self, slot, pred=True):
        """A consumer's: wait until the tile has arrived."""
        mbarrier.wait(self.full.index(slot[0]), slot[1], pred=pred)

    @gluon.jit
    def release(self, slot, pred=True):
        """A consumer's: it is done with the tile."""
        mbarrier.arrive(self.empty.index(slot[0]), pred=pred)


@gluon.jit
def make_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr = 1):
    """So many barriers [COUNT, 1], each of which so many arrivals open; a tile that TMA brings is one."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(COUNT):
        mbarrier.init(barriers.index(each), count=ARRIVALS)
    return barriers


@gluon.jit
def make_channel(STAGES: gl.constexpr, READERS: gl.constexpr, PARTS: gl.constexpr = 1):
    """A channel of so many stages, each part of which so many consumers read."""
    full = make_barriers(STAGES * PARTS)
    return Channel(full, make_barriers(STAGES * PARTS, READERS), STAGES, PARTS)


@gluon.jit
def barrier_sync(BARRIER):
    """Wait at a named barrier until all 256 threads of two consumers are there or have been there.

    Gluon has no words for those: they have numbers, of which Triton itself takes the first.
    """
    barrier = gl.full([128], BARRIER, gl.int32, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise("bar.sync $1, 256; mov.b32 $0, $1;", "=r,r", [barrier], gl.int32, False, 1)


@gluon.jit
def barrier_arrive(BARRIER):
    """Count as being at a named barrier, without waiting for others."""
    barrier = gl.full([128], BARRIER, gl.int32, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise("bar.arrive $1, 256; mov.b32 $0, $1;", "=r,r", [barrier], gl.int32, False, 1)


@gluon.jit
def ping_pong_sync(CONSUMER: gl.constexpr, PING_PONG: gl.constexpr):
    """A consumer issues its products when the others have issued theirs and are at their softmax.

    It waits at named barrier 8 + CONSUMER, where another one arrives.
    """
    if PING_PONG:
        barrier_sync(8 + CONSUMER)


@gluon.jit
def ping_pong_arrive(CONSUMER: gl.constexpr, CONSUMERS: gl.constexpr, PING_PONG: gl.constexpr):
    """Let the next consumer issue its products."""
    if PING_PONG:
        barrier_arrive(8 + (CONSUMER + 1) % CONSUMERS)
