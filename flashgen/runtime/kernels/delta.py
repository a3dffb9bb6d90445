"""The kernel that comes before those of the backward pass: what they need of each row."""

from __future__ import annotations

import torch

from flashgen.runtime.backward import Incoming, incoming, rescaled
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.device.packed import rows_apart
from flashgen.runtime.kernels.kernel import HelperKernel
from flashgen.runtime.launching import Setup, relaunch
from flashgen.runtime.variant import Variant
from flashgen.runtime.widths import tile_widths

# Of a tile.
_ELEMENTS = 8192


def delta_kernel(config: Config, head_dim: int, v_head_dim: int, packed: bool = False, width: int = 0) -> HelperKernel:
    """What comes before a kernel of dK and dV in a config; `width` is that of the sums that it clears."""
    v_width = tile_widths(head_dim, v_head_dim)[1]
    rows_each = max(16, _ELEMENTS // v_width)
    if packed:
        rows_each = min(rows_each, rows_apart())
    return HelperKernel("_delta", {"BM": rows_each, "V_HEAD_DIM": v_width, "WIDTH": width, "TILE": config.BM})


def launch_delta(
    variant: Variant, call: Call, config: Config, output: tuple[torch.Tensor, ...], d_out: torch.Tensor,
    d_lse: torch.Tensor | None, dq_sums: torch.Tensor | None,
) -> Incoming:  # fmt: skip
    """What the backward kernels need of each row, for those of a config of dK and dV; clears the sums of dq.

    `output` is what the forward pass wrote: out, lse and, where that has one, its residue. Then d_out and delta are
    scaled by exp(-residue).
    """
    out, lse, *residue = output
    given = incoming(call, d_out, variant.takes("delta", "tile_lse_ptr"))
    rows = rescaled(given) if residue else given
    tensors = {
        "out_ptr": out, "d_out_ptr": given.d_out, "lse_ptr": lse, "d_lse_ptr": d_lse, "row_lse_ptr": rows.lse,
        "delta_ptr": rows.delta, "dq_sums_ptr": dq_sums, "tile_lse_ptr": rows.tile_lse, **call.given,
    }  # fmt: skip
    if residue:
        tensors |= {"residue_ptr": residue[0], "scaled_ptr": rows.d_out}
    lse_strides = (0, 0, 0) if d_lse is None else d_lse.stride()
    relaunch(
        variant.kernels["delta"],
        (call.layout, call.own, config, out.stride(), given.strides, rows.strides, lse_strides), tensors,
        lambda: _rest(call, config, out.stride(), given, rows, lse_strides, 0 if dq_sums is None else dq_sums.shape[1]),
    )  # fmt: skip
    return rows


def _rest(
    call: Call, config: Config, out_strides: tuple[int, ...], given: Incoming, rows: Incoming,
    lse_strides: tuple[int, ...], width: int,
) -> Setup:  # fmt: skip
    """`width` is that of the sums that are cleared."""
    s = call.sizes
    batch, heads, _ = s.rows
    made = delta_kernel(config, s.head_dim, s.v_head_dim, s.packed, width)
    of_each = {"out": out_strides, "o": given.strides, "s": rows.strides, "l": lse_strides}
    strides = {
        f"stride_{name}{axis}": stride
        for name, of_it in of_each.items()
        for axis, stride in zip("bhm", call.counted_strides(of_it[:3]), strict=True)
    }
    return Setup(
        -(-rows.num_rows // made.constants["BM"]) * batch * heads,
        {**call.numbers, **rows.numbers, **strides},
        made.constants,
        made.options,
    )
