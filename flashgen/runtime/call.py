"""What every launch of a generated kernel needs: prepared tensors and outputs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from flashgen.runtime.arguments import refuse_unstrided, scale_of, sizes_of
from flashgen.runtime.bounded_cache import remember
from flashgen.runtime.interpreter import interpreted
from flashgen.runtime.sizes import Sizes
from flashgen.runtime.strides import kernel_ready, row_strides

FLOAT32 = torch.finfo(torch.float32)


@dataclass(frozen=True, eq=False)
class Layout:
    """What a call is but for the values of its tensors.

    Calls that are alike share one: its identity stands for all that it says.
    """

    # > 0.
    scale: float
    sizes: Sizes
    # Strides of batch, heads and length of q, k and v as kernels read them, in elements.
    strides: tuple[int, ...]
    # heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, as kernels take them.
    lengths: tuple[int, ...]
    # Whether kernels read other tensors than were given.
    copies: bool


@dataclass(frozen=True, eq=False)
class OwnLayout:
    """What a call is by its variant's own inputs: their strides and the dimensions that they bind, by name."""

    numbers: Mapping[str, int]
    # Whether kernels read other tensors than were given.
    copies: bool = False


NOTHING_OWN = OwnLayout({})
_STRIDES = tuple(
    f"stride_{tensor}{axis}" for tensor, axes in (("q", "bhm"), ("k", "bhn"), ("v", "bhn")) for axis in axes
)


def qkv_strides(strides: Iterable[int]) -> dict[str, int]:
    """Strides of batch, heads and length of q, k and v, as kernels know them."""
    return dict(zip(_STRIDES, strides, strict=True))


class Call(NamedTuple):
    """One call of attention(), checked: tensors as a kernel reads them, and what else there is to know of them.

    `given` are the variant's own inputs and runtime params, by the names of kernels' parameters.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    layout: Layout
    given: Mapping[str, Any] = {}
    own: OwnLayout = NOTHING_OWN

    @property
    def sizes(self) -> Sizes:
        return self.layout.sizes

    @property
    def scale(self) -> float:
        return self.layout.scale

    @property
    def strides(self) -> tuple[int, ...]:
        return self.layout.strides

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.layout.lengths

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers that follow from the layout, by the names of kernels' parameters."""
        strides = qkv_strides(self.counted_strides(self.strides))
        return {"scale": self.scale, **self.sizes.numbers, **strides, **self.own.numbers}

    def counted_strides(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Strides of batch, heads and length, of each tensor three, as kernels count: packed sequences by tokens."""
        if not self.sizes.packed:
            return tuple(strides)
        heads_and_tokens = zip(strides[1::3], strides[2::3], strict=True)
        return tuple(each for head, token in heads_and_tokens for each in (token, head, token))


_layouts: dict[Hashable, Layout] = {}


def prepare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> Call:
    """Check the tensors of a call and bring them into a form that a kernel reads."""
    try:
        description = (
            q.shape, q.stride(), q.dtype, q.device, q.data_ptr() % 16,
            k.shape, k.stride(), k.dtype, k.device, k.data_ptr() % 16,
            v.shape, v.stride(), v.dtype, v.device, v.data_ptr() % 16,
            scale,
        )  # fmt: skip
    except RuntimeError:
        refuse_unstrided(q=q, k=k, v=v)
        raise
    layout = _layouts.get(description)
    if layout is None:
        call = _prepare(q, k, v, scale)
        remember(_layouts, description, call.layout)
        return call
    return _prepare(q, k, v, scale)._replace(layout=layout) if layout.copies else Call(q, k, v, layout)


def _prepare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> Call:
    sizes, given = sizes_of(q, k, v), (q, k, v)
    if q.device.type != "cuda" and not interpreted():
        raise ValueError(
            f"q is on {q.device}; expected a CUDA device (TRITON_INTERPRET=1, set before Python starts, runs it on "
            "the CPU)"
        )
    scale = scale_of(scale, sizes.head_dim)
    # The kernels mask scores and take their maximum before they multiply by scale, which needs it to be positive.
    if abs(scale) < FLOAT32.tiny:
        q, scale = torch.zeros_like(q), 1.0
    elif scale < 0:
        q, scale = -q, -scale
    q, k, v = kernel_ready("q", q), kernel_ready("k", k), kernel_ready("v", v)
    copies = any(ready is not each for ready, each in zip((q, k, v), given, strict=True))
    lengths = (sizes.heads, sizes.kv_heads, sizes.q_len, sizes.kv_len, sizes.head_dim, sizes.v_head_dim)
    strides = (*row_strides(q), *row_strides(k), *row_strides(v))
    return Call(q, k, v, Layout(float(scale), sizes, strides, lengths, copies))


def outputs(call: Call, residue: bool = False, largest: bool = False) -> dict[str, torch.Tensor]:
    """What a kernel writes, not yet written, by the names of its parameters.

    out [batch, heads, q_len, v_head_dim] in q's dtype and lse [batch, heads, q_len] in float32; like lse with `residue`
    what that has lost, and with `largest` the largest logits. Of packed sequences they are as callers get them, out
    [total, heads, v_head_dim] and the others [heads, total]: kernels are given addresses alone.
    """
    s, q = call.layout.sizes, call.q
    batch, heads, length = s.rows
    if s.packed:
        out = q.new_empty((length, heads, s.v_head_dim))
    elif s.v_head_dim != s.head_dim:
        out = q.new_empty((batch, heads, length, s.v_head_dim))
    else:
        out = room_like(q)
    shape, strides = (batch, heads, length), (heads * length, length, 1)
    first = 1 if s.packed else 0
    lse = torch.empty_strided(shape[first:], strides[first:], dtype=torch.float32, device=q.device)
    found = {"out_ptr": out, "lse_ptr": lse}
    if residue:
        found["residue_ptr"] = torch.empty_like(lse)
    if largest:
        found["max_ptr"] = torch.empty_like(lse)
    return found


def room(
    like: torch.Tensor, shape: tuple[int, int, int, int], packed: bool, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A tensor [batch, heads, length, dim], not yet written: contiguous, or where it is `packed` token by token."""
    if not packed:
        return like.new_empty(shape, dtype=dtype)
    batch, heads, length, dim = shape
    return like.new_empty((batch, length, heads, dim), dtype=dtype).transpose(1, 2)


def room_like(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of this shape and dtype, not yet written: in half the time that it takes with a shape."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def is_empty(call: Call) -> bool:
    """Whether there is nothing to launch: no rows, or no keys."""
    s = call.layout.sizes
    return not s.batch or 0 in s.rows or 0 in s.keys_of(s.heads)


def nothing_seen(found: Mapping[str, torch.Tensor]) -> None:
    """Write the outputs of rows that see no key."""
    for name, tensor in found.items():
        tensor.fill_(-math.inf if name in ("lse_ptr", "max_ptr") else 0)
