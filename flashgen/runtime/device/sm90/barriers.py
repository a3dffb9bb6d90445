"""Named barriers, which Gluon has no words for: numbers from 8 on, of 128 threads that wait and 128 that arrive."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def barrier_sync(BARRIER):
    """Wait at a named barrier until all 256 threads of two consumers are there or have been there."""
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
