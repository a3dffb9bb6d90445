"""Generated kernels without one of their techniques, by edits of the generated text.

A template has no switch for what no one would turn off. To measure what such a technique brings, its lines are replaced
in the kernel's file of one package. An edit whose text is gone raises EditFailed: it never passes for a technique that
brings nothing. After a change of templates/forward_sm90*.jinja it is mended here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashgen.errors import EditFailed
from flashgen.runtime.kernels.forward_sm90 import FORWARD_SM90_KERNEL

# The kernel whose techniques these are.
FILE = f"{FORWARD_SM90_KERNEL.name}.py"


@dataclass(frozen=True)
class Edit:
    """Text of the kernel's file, all of whose occurrences are replaced."""

    old: str
    new: str


_IN_STEP = "            "

EDITS: Mapping[str, tuple[Edit, ...]] = {
    # Waits for both products, so that the softmax runs beside none of its own warps.
    "softmax after both products": (
        Edit("qk = warpgroup_mma_wait(shape.PRODUCTS, deps=(scores,))", "qk = warpgroup_mma_wait(0, deps=(scores,))"),
    ),
    # The wait for the next tile of V before the wait for P V: the compiler keeps the exponentials in front of it.
    "V awaited a tile ahead": (
        Edit("shared, channels, CONSUMER, shape)", "shared, channels, CONSUMER, shape, finishes=False)"),
        Edit(f"{_IN_STEP}acc = finish_product(", f"{_IN_STEP}v_channel.wait(slot)\n{_IN_STEP}acc = finish_product("),
        Edit(
            "        # A finite floor for the maximum",
            # Where no tile begins, none of V comes: an unconditional wait would hang.
            "        v_channel.wait(slot, begins)\n        # A finite floor for the maximum",
        ),
    ),
    "row sums meet in each step": (
        Edit(
            "p, alpha, m, l = softmax_step_scaled(qk, m, l, qk_scale)\n",
            "p, alpha, m, l = softmax_step_scaled(qk, m, l, qk_scale); "
            "total = gl.convert_layout(gl.sum(l, 1), gl.SliceLayout(1, shape.l_layout), assert_trivial=True); "
            "l = gl.zeros([ROWS, 8], gl.float32, shape.l_layout) + (total * 0.125)[:, None]\n",
        ),
    ),
    "tiles in turn": (Edit("gl.num_programs(0) + gl.sum(answer, 0)", "work_tile[0] + gl.num_programs(0)"),),
    "shortest tiles first": (Edit("row0 = tile * BM", "row0 = (gl.cdiv(q_len, BM) - 1 - tile) * BM"),),
    "causal, all tiles": (Edit("    stop = q_last + 1\n", "    stop = kv_len\n"),),
    "causal, all masked": (Edit("full_end = gl.maximum(q_first + 1, 0) // BN * BN", "full_end = 0"),),
    "window, all tiles": (
        Edit("first = gl.maximum(q_first - 1023, 0) // BN * BN", "first = 0"),
        Edit("stop = gl.maximum(q_last + 1, first)", "stop = kv_len"),
    ),
}


def edited(files: Mapping[str, str], name: str) -> dict[str, str]:
    """The files of a generated package after the edits of this name; EditFailed where the kernel has no such text."""
    text = files[FILE]
    for edit in EDITS[name]:
        if edit.old not in text:
            raise EditFailed(
                f"the edit {name!r} did not find {edit.old.strip()!r}; expected it in {FILE} of the generated package: "
                f"mend flashgen/bench/edits.py after a change of the templates"
            )
        text = text.replace(edit.old, edit.new)
    return {**files, FILE: text}
