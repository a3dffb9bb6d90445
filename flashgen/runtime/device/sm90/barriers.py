"""Barriers by which the roles of a kernel meet: in shared memory for tiles that come and go, and by number.

There are 16 named barriers, of which Triton takes the first five. Those from 5 on are for taking turns, those from 8 on
for places of channels, or for what the consumers of a kernel hand each other.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from flashgen.runtime.gluon import aggregate


@aggregate
class Channel:
    """Places in shared memory that a producer fills and consumers empty: the n-th tile has place n % STAGES.

    Of each place `full` says that a tile has arrived, `empty` that all who read it are done. Where PARTS is not 1, each
    tile has so many, with a place and barriers of its own. A slot is a place and the phase of its barriers.

    Where NAMED is not 0, that named barrier and those after it take the place of `empty`, and all THREADS of the
    consumers and the producer count: at a barrier in shared memory Triton lets the warps of a consumer wait for each
    other before they arrive, and after.
    """

    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    STAGES: gl.constexpr
    PARTS: gl.constexpr
    NAMED: gl.constexpr
    THREADS: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, full, empty, STAGES, PARTS, READERS, NAMED):
        self.full, self.empty = full, empty
        self.STAGES, self.PARTS = gl.constexpr(STAGES), gl.constexpr(PARTS)
        self.NAMED, self.THREADS = gl.constexpr(NAMED), gl.constexpr(128 * READERS + 32)

    @gluon.jit
    def begin(self):
        """A consumer's: all places are free at first. Barriers in shared memory know that by themselves."""
        if self.NAMED:
            for place in gl.static_range(self.STAGES):
                barrier_arrive(self.NAMED + place, self.THREADS)

    @gluon.jit
    def slot(self, n, part=0):
        """The place of tile n, and the phase of its barriers there."""
        return n % self.STAGES * self.PARTS + part, n // self.STAGES & 1

    @gluon.jit
    def acquire(self, slot):
        """The producer's: wait until there is room. Returns the barrier that waits for the tile."""
        if self.NAMED:
            barrier_sync(self.NAMED + slot[0], self.THREADS, WARPS=1)
        else:
            mbarrier.wait(self.empty.index(slot[0]), slot[1] ^ 1)
        return self.full.index(slot[0])

    @gluon.jit
    def wait(self, slot, pred=True):
        """A consumer's: wait until the tile has arrived."""
        mbarrier.wait(self.full.index(slot[0]), slot[1], pred=pred)

    @gluon.jit
    def release(self, slot, pred=True):
        """A consumer's: it is done with the tile."""
        if self.NAMED == 0:
            mbarrier.arrive(self.empty.index(slot[0]), pred=pred)
        elif pred:
            barrier_arrive(self.NAMED + slot[0], self.THREADS)


@gluon.jit
def make_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr = 1):
    """So many barriers [COUNT, 1], each of which so many arrivals open; a tile that TMA brings is one."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(COUNT):
        mbarrier.init(barriers.index(each), count=ARRIVALS)
    return barriers


@gluon.jit
def make_channel(STAGES: gl.constexpr, READERS: gl.constexpr, PARTS: gl.constexpr = 1, NAMED: gl.constexpr = 0):
    """A channel of so many stages, each part of which so many consumers read. With NAMED they `begin` it."""
    full = make_barriers(STAGES * PARTS)
    empty = full if NAMED else make_barriers(STAGES * PARTS, READERS)
    return Channel(full, empty, STAGES, PARTS, READERS, NAMED)


@gluon.constexpr_function
def _at_named(what, threads):
    return f"bar.{what} $1, {threads}; mov.b32 $0, $1;"


@gluon.jit
def barrier_sync(BARRIER, THREADS: gl.constexpr = 256, WARPS: gl.constexpr = 4):
    """Wait at a named barrier until so many threads, of two consumers by default, are there or have been there.

    Gluon has no words for those.
    """
    barrier = gl.full([32 * WARPS], BARRIER, gl.int32, layout=gl.BlockedLayout([1], [32], [WARPS], [0]))
    code: gl.constexpr = _at_named("sync", THREADS)
    gl.inline_asm_elementwise(code, "=r,r", [barrier], gl.int32, False, 1)


@gluon.jit
def barrier_arrive(BARRIER, THREADS: gl.constexpr = 256):
    """Count as being at a named barrier, without waiting for others."""
    barrier = gl.full([128], BARRIER, gl.int32, layout=gl.BlockedLayout([1], [32], [4], [0]))
    code: gl.constexpr = _at_named("arrive", THREADS)
    gl.inline_asm_elementwise(code, "=r,r", [barrier], gl.int32, False, 1)


@gluon.jit
def ping_pong_sync(CONSUMER: gl.constexpr, PING_PONG: gl.constexpr):
    """A consumer issues its products when the others have issued theirs and are at their softmax.

    It waits at named barrier 5 + CONSUMER, where another one arrives.
    """
    if PING_PONG:
        barrier_sync(5 + CONSUMER)


@gluon.jit
def ping_pong_arrive(CONSUMER: gl.constexpr, CONSUMERS: gl.constexpr, PING_PONG: gl.constexpr):
    """Let the next consumer issue its products."""
    if PING_PONG:
        barrier_arrive(5 + (CONSUMER + 1) % CONSUMERS)
