"""Which tile of keys a program has, in the kernels for dK and dV, and in which stage a tile of queries lies."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def kv_place(index, batch, kv_heads, kv_len, head_group, BN: gl.constexpr):
    """Tile `index` of keys: its head in the batch, its place along the keys, and the size of its group.

    The heads are taken in groups of head_group, whose Q and dO stay in the L2 cache, the first keys of a group first:
    under a causal mask most queries see them.
    """
    num_tiles = gl.cdiv(kv_len, BN)
    first = index // (num_tiles * head_group) * head_group
    group = gl.minimum(head_group, batch * kv_heads - first)
    in_group = index - first * num_tiles
    return first + in_group % group, in_group // group, group


@gluon.jit
def kv_tile(index, batch, kv_heads, kv_len, head_group, BN: gl.constexpr):
    """Tile `index` of keys: its batch element, head of K and V, and first key."""
    head, place, _ = kv_place(index, batch, kv_heads, kv_len, head_group, BN)
    return head // kv_heads, head % kv_heads, place * BN


@gluon.jit
def slot_of(n, STAGES: gl.constexpr):
    """The place of the n-th tile, and the phase of its barriers there; n may be large."""
    return (n.to(gl.uint32) % STAGES).to(gl.int32), (n.to(gl.uint32) // STAGES & 1).to(gl.int32)


@gluon.jit
def v_slot_of(i, num_rows, V_STAGES: gl.constexpr):
    """Where tile i of V is in the kernel for dQ, and the phase of the barriers there."""
    if V_STAGES == 1:
        # Always 0, which the compiler does not know: it would keep the addresses of all parts of V's tile, and of dO's.
        return (i + num_rows) >> 31, i & 1
    else:
        return i % V_STAGES, i // V_STAGES & 1
