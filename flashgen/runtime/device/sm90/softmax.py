"""One step of the online softmax (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1) in registers.

m [ROWS] is the running maximum of the logits, in units of log2. l [ROWS, 8] are the running sums of exp2(logit - m) of
every eighth column, which each thread has of its own: they meet after the last step. A step returns
p = exp2(logit - m), alpha = exp2(old m - m), m and l. The accumulator is scaled by alpha elsewhere.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def softmax_step(x, m, l):
    """The step for logits x [ROWS, BN]."""
    m_new = gl.maximum(m, gl.max(x, 1))
    p = gl.exp2(x - m_new[:, None])
    alpha = gl.exp2(m - m_new)
    return p, alpha, m_new, add_columns(l, alpha, p)


@gluon.jit
def softmax_step_scaled(x, m, l, factor):
    """The same for logits x * factor, of a factor >= 0: one FMA each."""
    m_new = gl.maximum(m, gl.max(x, 1) * factor)
    p = gl.exp2(x * factor - m_new[:, None])
    alpha = gl.exp2(m - m_new)
    return p, alpha, m_new, add_columns(l, alpha, p)


@gluon.jit
def softmax_step_shifted(x, m, l, factor, shift):
    """The same for logits x * factor + shift, of a shift [ROWS]."""
    m_new = gl.maximum(m, gl.max(x, 1) * factor + shift)
    p = gl.exp2(x * factor - (m_new - shift)[:, None])
    alpha = gl.exp2(m - m_new)
    return p, alpha, m_new, add_columns(l, alpha, p)


@gluon.jit
def softmax_step_natural(x, m, l):
    """The same for logits in units of their own, which may be huge; exp in the place of exp2."""
    m_new = gl.maximum(m, gl.max(x, 1))
    p = gl.exp2((x - m_new[:, None]) * 1.4426950408889634)
    alpha = gl.exp2((m - m_new) * 1.4426950408889634)
    return p, alpha, m_new, add_columns(l, alpha, p)


@gluon.jit
def add_columns(l, alpha, p):
    """l * alpha and p [ROWS, BN] by every eighth column, without a word between threads."""
    layout: gl.constexpr = l.type.layout
    sums = gl.sum(gl.reshape(p, [p.shape[0], p.shape[1] // 8, 8]), 1)
    alpha_l = gl.convert_layout(alpha, gl.SliceLayout(1, layout), assert_trivial=True)
    return l * alpha_l[:, None] + gl.convert_layout(sums, layout, assert_trivial=True)


@gluon.jit
def packed(p, dtype: gl.constexpr):
    """p rounded to dtype, the neighbours of a row in one int32: [ROWS, BN] becomes [ROWS, BN / 2].

    So a loop carries them in the very registers that the next product reads; two of 16 bits each would change places
    twice in between.
    """
    pairs = gl.reshape(p.to(dtype).to(gl.int16, bitcast=True), [p.shape[0], p.shape[1] // 2, 2])
    low, high = gl.split(pairs)
    return gl.inline_asm_elementwise("mov.b32 $0, {$1, $2};", "=r,h,h", [low, high], gl.int32, True, 1)


@gluon.jit
def unpacked(pairs, dtype: gl.constexpr, layout: gl.constexpr):
    """p [ROWS, BN] as an operand of a product."""
    low, high = gl.inline_asm_elementwise("mov.b32 {$0, $1}, $2;", "=h,=h,r", [pairs], (gl.int16, gl.int16), True, 1)
    p = gl.reshape(gl.join(low, high), [pairs.shape[0], 2 * pairs.shape[1]])
    return gl.convert_layout(p.to(dtype, bitcast=True), layout, assert_trivial=True)
