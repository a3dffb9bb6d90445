"""The paged decode kernel: queries of sequences of any length, whose keys a plan on the device splits evenly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashgen.runtime.decoding import Partials, merge_partials
from flashgen.runtime.extending_paged import extension_of, launch_extension, reaches
from flashgen.runtime.kernels.decode_paged import DECODE_PAGED_KERNEL, converts_in_place
from flashgen.runtime.launching import Setup, relaunch
from flashgen.runtime.paged import PagedCall, PagedTensors
from flashgen.runtime.planning_paged import PlanParts, Shape, Work, planned, planned_sizes, work_of
from flashgen.runtime.variant import Variant
from flashgen.runtime.widths import tile_widths

_STRIDES = (
    "stride_qm", "stride_qh", "stride_kp", "stride_kn", "stride_kh", "stride_vp", "stride_vn", "stride_vh",
    "stride_ksp", "stride_ksn", "stride_ksh", "stride_vsp", "stride_vsn", "stride_vsh", "stride_table",
)  # fmt: skip


def launch_paged(
    variant: Variant, call: PagedCall, out: torch.Tensor, lse: torch.Tensor, plan: PlanParts, batch_invariant: bool,
    config: str | None,
) -> None:  # fmt: skip
    """Run the plan, unless there is one, the kernel and the merge: write out and lse."""
    if not call.sizes.total_q:
        return
    items, count, sizes = plan
    extension = extension_of(variant, call, config)
    if extension is not None and not reaches(call, out):
        # A plan with work for the forward kernel knew neither v_cache nor out: another one is made.
        extension, items = None, None if count is None or count.shape[0] > 1 else items
    work = work_of(variant, call, extension, batch_invariant, config)
    if items is None or count is None:
        items, count = planned(call, work)
    else:
        _check_plan(items, count, sizes, call, work)
    _launch_decode(variant, work, out, lse, items, count)
    if extension is not None:
        launch_extension(variant, call, extension, out, lse, items[work.shape.room :], count)


def _check_plan(
    items: torch.Tensor, count: torch.Tensor, sizes: Sequence[int] | None, call: PagedCall, work: Work
) -> None:  # fmt: skip
    """ValueError where a plan is not one for this call."""
    t = call.tensors
    gpu = t.q.device
    own = planned_sizes(t.q, t.k_cache, t.block_table, t.cu_seqlens_q, call.sizes.q_len)
    expected = (*own, work.shape.BM)
    if sizes is None or tuple(sizes) != expected:
        raise ValueError(
            f"plan is for {_planned_text(sizes or ())}; expected one for {_planned_text(expected)}, as plan_paged "
            "makes it for tensors of these sizes and dtypes"
        )
    if items.shape[0] != work.room or count.shape[0] != work.counts or items.device != gpu:
        raise ValueError(
            f"plan has room for {items.shape[0]} items on {items.device}; expected {work.room} on {gpu}, as "
            "plan_paged makes it for tensors and lengths of these sizes and this v_head_dim"
        )


def _planned_text(sizes: Sequence[int]) -> str:
    named = zip(("batch", "max_seqlen_q", "heads", "kv_heads", "rows of a tile"), sizes, strict=False)
    return ", ".join(f"{name} {size}" for name, size in named) or "unknown sizes"


def _launch_decode(
    variant: Variant, work: Work, out: torch.Tensor, lse: torch.Tensor, items: torch.Tensor, count: torch.Tensor
) -> None:  # fmt: skip
    """The decode kernel and the merge, for the items that come first."""
    call, shape = work.call, work.shape
    s = call.sizes
    programs, (_, width) = shape.room * s.kv_heads, tile_widths(s.head_dim, s.v_head_dim)
    parts = Partials.room(call.tensors.q, programs * shape.BM, width, variant.takes("decode_paged", "shift_ptr"))
    tensors = {**_tensors(call), **parts.named, "out_ptr": out, "lse_ptr": lse, "items_ptr": items, "count_ptr": count}
    relaunch(
        variant.kernels["decode_paged"], (call.layout, call.own, shape, out.stride()), tensors,
        lambda: Setup(
            programs, _numbers(call, out), _constants(call, shape), DECODE_PAGED_KERNEL.options(shape.config)
        ),
    )  # fmt: skip
    merge_partials(
        variant, (call.layout, shape, out.stride()), tensors, programs, _merge_numbers(call, out), shape.BM, shape.rows,
        width,
    )  # fmt: skip


def _tensors(call: PagedCall) -> dict[str, Any]:
    """What the kernel reads, by the names of its parameters."""
    t = call.tensors
    k_scale, v_scale = _both(t, call.layout.TOKEN_SCALES)
    return {
        "q_ptr": t.q, "k_ptr": t.k_cache, "v_ptr": t.v_cache, "block_table_ptr": t.block_table,
        "seq_lens_ptr": t.seq_lens, "cu_seqlens_q_ptr": t.cu_seqlens_q, "k_scale_ptr": k_scale,
        "v_scale_ptr": v_scale, **call.given,
    }  # fmt: skip


def _numbers(call: PagedCall, out: torch.Tensor) -> dict[str, Any]:
    layout = call.layout
    return {
        **vars(layout.sizes), **dict(zip(_STRIDES, layout.strides, strict=True)), **call.own.numbers,
        "stride_om": out.stride(0), "stride_oh": out.stride(1), "scale": layout.scale, "max_q": layout.sizes.q_len,
        "num_blocks": layout.num_blocks, "max_keys": layout.max_keys,
    }  # fmt: skip


def _merge_numbers(call: PagedCall, out: torch.Tensor) -> dict[str, int]:
    s = call.sizes
    return {
        "stride_ob": 0, "stride_oh": out.stride(1), "stride_om": out.stride(0),
        "stride_lb": 0, "stride_lh": s.total_q, "stride_lm": 1,
        "batch": s.batch, "total_q": s.total_q, "heads": s.heads, "kv_heads": s.kv_heads, "q_len": s.q_len,
        "v_head_dim": s.v_head_dim, "num_tiles": 0, "num_splits": 0,
    }  # fmt: skip


def _constants(call: PagedCall, shape: Shape) -> dict[str, Any]:
    layout = call.layout
    return {
        **DECODE_PAGED_KERNEL.constants(shape.config, layout.sizes.head_dim, layout.sizes.v_head_dim), "BM": shape.BM,
        "BLOCK_SIZE": layout.block_size, "TOKEN_SCALES": layout.TOKEN_SCALES,
        "CONVERTED": converts_in_place(shape.BM, layout.itemsizes[1], call.tensors.q.device),
    }  # fmt: skip


def _both(given: PagedTensors, of_tokens: bool) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Both scales, where one is of each token: then the kernel reads the other too."""
    if not of_tokens:
        return given.k_scale, given.v_scale
    one = given.q.new_ones((), dtype=torch.float32)
    return one if given.k_scale is None else given.k_scale, one if given.v_scale is None else given.v_scale
