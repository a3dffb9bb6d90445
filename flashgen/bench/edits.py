"""Generated kernels without one of their techniques, by edits of the generated text.

A template has no switch for what no one would turn off. To measure what such a technique brings, its lines are replaced
in the text of one module. An edit whose text is gone raises EditFailed: it never passes for a technique that brings
nothing. After a change of templates/hopper_forward*.jinja it is mended here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashgen.errors import EditFailed


@dataclass(frozen=True)
class Edit:
    """Text of a generated module, all of whose occurrences are replaced."""

    old: str
    new: str


_IN_STEP = "            "

EDITS: Mapping[str, tuple[Edit, ...]] = {
    # Waits for both products, so that the softmax runs beside none of its own warps.
    "softmax after both products": (
        Edit("qk = warpgroup_mma_wait(PRODUCTS, deps=(scores,))", "qk = warpgroup_mma_wait(0, deps=(scores,))"),
    ),
    # The wait for the next tile of V before the wait for P V: the compiler keeps the exponentials in front of it.
    "V awaited a tile ahead": (
        Edit(f"{_IN_STEP}mbarrier.wait(v_full.index(last), last_phase)\n", ""),
        Edit(
            f"{_IN_STEP}acc = _await_pv(product, V_REST)\n",
            f"{_IN_STEP}mbarrier.wait(v_full.index(stage), n // STAGES & 1)\n"
            f"{_IN_STEP}acc = _await_pv(product, V_REST)\n",
        ),
        Edit(
            "        # A finite floor for the maximum",
            # Where no tile begins, none of V comes: an unconditional wait would hang.
            "        mbarrier.wait(v_full.index(stage), n // STAGES & 1, pred=begins)\n"
            "        # A finite floor for the maximum",
        ),
    ),
    "row sums meet in each step": (
        Edit(
            "    sums = gl.sum(gl.reshape(p, [p.shape[0], p.shape[1] // 8, 8]), 1)\n",
            "    total = gl.convert_layout(gl.sum(p, 1), gl.SliceLayout(1, layout), assert_trivial=True)\n"
            "    sums = gl.zeros(l.shape, gl.float32, layout) + (total * 0.125)[:, None]\n",
        ),
    ),
    "tiles in turn": (Edit("index = gl.num_programs(0) + gl.sum(answer, 0)", "index += gl.num_programs(0)"),),
    "shortest tiles first": (
        Edit("row0 = (num_q_tiles - 1 - in_group // group) * BM", "row0 = in_group // group * BM"),
    ),
    "causal, all tiles": (Edit("    stop = q_last + 1\n", "    stop = kv_len\n"),),
    "causal, all masked": (Edit("full_end = gl.maximum(q_first + 1, 0) // BN * BN", "full_end = 0"),),
    "window, all tiles": (
        Edit("first = gl.maximum(q_first - 1023, 0) // BN * BN", "first = 0"),
        Edit("stop = gl.maximum(q_last + 1, first)", "stop = kv_len"),
    ),
}


def edited(text: str, name: str) -> str:
    """The text of a generated module after the edits of this name; EditFailed where it has no such text."""
    for edit in EDITS[name]:
        if edit.old not in text:
            raise EditFailed(
                f"the edit {name!r} did not find {edit.old.strip()!r}; expected it in the generated module: mend "
                f"flashgen/bench/edits.py after a change of the templates"
            )
        text = text.replace(edit.old, edit.new)
    return text
