"""The names in a kernel: which it uses itself, what the spec's names become, and what new values are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flashgen.lang.nodes import Const, Expr, Gather, Op, Var, variables
from flashgen.lang.triton_levels import ONCE, ROW, is_reduction, level

# Names that a kernel uses itself; a user's name that equals one gets a trailing underscore.
KERNEL_NAMES = frozenset({
    "BUFFERS", "DELAY_DQ", "DP_PRODUCTS", "HOLD_Q", "HOLD_V", "S_PRODUCTS", "THROUGH_DS", "V_STAGES", "acc",
    "acc_layout", "along", "alpha", "answer", "at", "at_once", "b", "barriers", "begin", "begins", "bh", "by_rank",
    "chunk", "col", "col0", "col_layout", "cols", "computes", "counter", "counts", "d_lse_rows", "d_out", "d_out_rows",
    "delta", "delta_desc", "delta_s", "dims", "dk", "dk_desc", "dk_layout", "dk_operand", "dk_s", "dk_tile", "do_base",
    "do_desc", "do_empty", "do_full", "do_s", "do_tile", "dp", "dq", "dq_desc", "dq_layout", "dq_ptr", "dq_s", "ds",
    "ds_layout", "ds_operand", "ds_out", "ds_s", "dtype", "dv", "dv_desc", "dv_layout", "dv_operand", "dv_s", "dv_tile",
    "each", "element", "elements", "empty", "enable_fp_fusion", "end", "every", "factor", "finishes", "first",
    "first_head", "first_row", "freed", "full", "full_end", "full_start", "group", "h", "head", "head_dim",
    "head_group", "heads", "i", "in_group", "in_range", "index", "index_empty", "index_full", "index_s", "inside", "k",
    "k_base", "k_desc", "k_descs", "k_empty", "k_first", "k_full", "k_last", "k_rest", "k_s", "k_strides", "k_tile",
    "key_layout", "keys", "kv_full", "kv_h", "kv_heads", "kv_len", "l", "l_layout", "last", "last_at", "last_phase",
    "layout", "left", "load_layout", "loads", "lse", "lse_desc", "lse_rows", "lse_s", "m", "m_new", "m_sink", "n",
    "next_dk", "next_dq", "next_dv", "nothing", "num_chunks", "num_full", "num_heads", "num_k_tiles", "num_kv_tiles",
    "num_left", "num_mixed", "num_q_tiles", "num_right", "num_rows", "num_stages", "num_tiles", "num_warps", "out",
    "out_b", "out_cols", "out_desc", "out_h", "out_row0", "out_rows", "out_s", "out_strides", "out_tile", "own", "p",
    "p_full", "p_layout", "p_operand", "p_s", "pair", "pairs", "phase", "place", "product", "products", "q", "q_base",
    "q_desc", "q_descs", "q_empty", "q_first", "q_full", "q_last", "q_layout", "q_len", "q_s", "q_strides", "q_tile",
    "qk", "qk_layout", "qk_scale", "queries", "rest_layout", "right", "room_for_k", "row", "row0", "row_layout",
    "row_shift", "rows", "rows_full", "scale", "schedule_heads", "scores", "scores_layout", "seen_from", "seen_to",
    "shared", "sheared", "shift", "shown", "sink", "sizes", "slope", "slot", "some", "stage", "start", "starts",
    "state", "stop", "tile", "tiles", "tilt", "tilted", "turn", "v", "v_b", "v_base", "v_desc", "v_descs", "v_dims",
    "v_empty", "v_full", "v_head", "v_head_dim", "v_held", "v_layout", "v_phase", "v_s", "v_stage", "v_start",
    "v_strides", "v_tile", "work", "wrap", "x", "zero", "zero_dq",
})  # fmt: skip

# The variables of the language and of its rewriting passes.
VARIABLES = frozenset({
    "b", "batch", "h", "head_dim", "heads", "k", "k_first", "k_last", "kv_h", "kv_heads", "kv_len", "q", "q_first",
    "q_last", "q_len", "qk", "scale", "score",
})  # fmt: skip

# The first and the last query of the tile at hand where the loop walks along queries: the kernel calls them as it does
# elsewhere.
_SPELLED = {"q_start": "q_first", "q_end": "q_last"}

QK_SCALE = "qk_scale"
# What no new value may be called: the kernel's own names, but for the one that is made here.
RESERVED = KERNEL_NAMES - {QK_SCALE}


def kernel_name(name: str) -> str:
    """The kernel's name for a variable of the language: its own keep theirs, a user's gives way."""
    return _SPELLED.get(name) or (name if name in VARIABLES else user_name(name))


def user_name(name: str) -> str:
    """The kernel's name for an input, runtime param, named dimension or let of the spec; different for each."""
    return f"{name}_" if name.rstrip("_") in KERNEL_NAMES else name


def suggest(expr: Expr, lets: Sequence[tuple[str, Expr]]) -> str:
    """A telling name for a value."""
    for name, meaning in lets:
        if meaning is expr:
            return user_name(name)
    if isinstance(expr, Var):
        return expr.name
    if isinstance(expr, Gather):
        return f"{expr.input}_{'_'.join(i.name for i in expr.indices if isinstance(i, Var)) or 'at'}"
    if isinstance(expr, Op):
        inner = expr.args[0]
        if is_reduction(expr):
            return f"{suggest(inner, lets)}_{expr.name.removeprefix('tile_')}"
        if expr.name == "to_float":
            return f"{suggest(inner, lets)}_f"
        if expr.name == "mul" and "scale" in variables(inner) and isinstance(expr.args[1], Const):
            return QK_SCALE
        if expr.name in ("mul", "truediv") and isinstance(inner, Gather | Var):
            return f"{suggest(inner, lets)}_scaled"
    return {ONCE: "c", ROW: "r"}.get(level(expr), "t")


@dataclass
class Statements:
    """Assignments under way. `names` maps what they computed to its name, `free` are the names that they read from
    outside, `taken` those that they may not make.
    """

    taken: set[str]
    free: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    names: dict[Expr | str, str] = field(default_factory=dict)

    def assign(self, value: Expr | str, preferred: str, text: str) -> str:
        """Assign the text of a value, an expression or the text itself, to a new name like `preferred`."""
        name, number = preferred, 2
        while name in self.taken or name in self.free:
            name, number = f"{preferred}_{number}", number + 1
        self.taken.add(name)
        self.names[value] = name
        self.lines.append(f"{name} = {text}")
        return name
