"""What the forward template needs to know of a variant: the text for its holes, and which parts exist at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from flashgen.lang.bounds import LAST_KEY, KeyRange, increasing_in_q, key_range
from flashgen.lang.intervals import Ranges
from flashgen.lang.linear import expression, linear
from flashgen.lang.log2 import logits
from flashgen.lang.nodes import TRUE, Expr, Gather, Type, const, op, substitute, var, variables, walk
from flashgen.lang.show import show
from flashgen.lang.tiles import CORNERS
from flashgen.lang.triton_emitter import COL, Body, Level, Prologue, Tensor, level, user_name
from flashgen.spec.variant import Variant

Q = var("q", Type.INT)
# What is at hand by name: the expression, and the name.
Given = Mapping[Expr, str]
NOTHING: Given = MappingProxyType({})
SCHEDULE = ("counts_ptr", "tiles_ptr", "num_k_tiles")
LOG2E, LN2 = "1.4426950408889634", "0.6931471805599453"


@dataclass(frozen=True)
class Function:
    """A helper function of the generated file: its arguments, body, and the formula that it stands for."""

    name: str
    body: Body
    formula: str

    @property
    def names(self) -> tuple[str, ...]:
        first = [name for name in ("qk", "q", "k") if name in self.body.free]
        return (*first, *(name for name in self.body.free if name not in first))

    @property
    def arguments(self) -> str:
        return ", ".join(f"{name}: tl.constexpr" if name.isupper() else name for name in self.names)

    @property
    def call(self) -> str:
        return self.call_with({})

    def call_with(self, renamed: Mapping[str, str]) -> str:
        """A call where some arguments go by other names."""
        return f"{self.name}({', '.join(renamed.get(name, name) for name in self.names)})"

    def says_the_same(self, other: Function) -> bool:
        """Whether the other's text would be the same under this name."""
        return (self.arguments, self.body.lines, self.result) == (other.arguments, other.body.lines, other.result)

    @property
    def lines(self) -> tuple[str, ...]:
        return self.body.lines

    @property
    def result(self) -> str:
        return ", ".join(self.body.results)


@dataclass(frozen=True)
class ForwardView:
    """The holes of the forward kernel. Every string is Triton text; names are those of the kernel.

    `score` is None where the logit is the dot product times `qk_scale`: `scaled`. `mask` is None without one.
    `precision` is that of products of float32 inputs. `shown` is what a mixed tile keeps. `by_key`: the mask reads
    inputs of each key, such as doc[b, k]. `limits` are statements that
    name the loops' ends. `arguments` are the kernel's arguments beyond those that every variant has,
    `unspecialized` those of all that change from call to call.
    """

    scaled: bool
    score: Function | None
    score_call: str
    mask: Function | None
    logit: str
    shown: str
    clamps_k: bool
    score_reads_k: bool
    scheduled: bool
    by_key: bool
    two_sided: bool
    longest_first: bool
    q_vector: bool
    precise: bool
    precision: str
    q_first: bool
    q_last: bool
    q_offset: str
    prologue: tuple[str, ...]
    limits: tuple[str, ...]
    epilogue: tuple[str, ...]
    row_shift: bool
    sink: bool
    arguments: tuple[str, ...]
    unspecialized: tuple[str, ...]
    helpers: tuple[str, ...]
    log2e: str = LOG2E
    ln2: str = LN2

    @property
    def default(self) -> str:
        """The function of runtime/defaults.py that has the built-in configs."""
        if self.scheduled:
            return "default_by_key_config" if self.by_key else "default_scheduled_config"
        plain = self.scaled and (self.mask is None or self.longest_first)
        return "default_plain_config" if plain else "default_config"

    @property
    def functions(self) -> tuple[Function, ...]:
        """Those that the kernel calls."""
        return tuple(f for f in (self.score, self.mask) if f is not None)


def uses_schedule(variant: Variant) -> bool:
    """Whether the mask says more than an interval of keys for each query, so that tiles are found by a kernel."""
    return not key_range(variant.mask).closed


def new_prologue(variant: Variant, walked: Level = COL, approximate: bool = False) -> Prologue:
    """The prologue of a kernel whose loop goes along keys, or along queries where `walked` is ROW."""
    tensors = {i.name: Tensor(tuple(d.size for d in i.dims), i.dtype) for i in variant.inputs}
    return Prologue(
        ranges_of(variant), tensors, variant.lets, reserved=_scalars(variant), walked=walked, approximate=approximate
    )


def ranges_of(variant: Variant) -> Ranges:
    """What is known of the values that the variant's expressions read."""
    dtypes = {i.name: i.dtype for i in variant.inputs}
    return Ranges(dtypes, frozenset(variant.dim_names), variant.align == "bottom_right")


def q_offset(variant: Variant) -> str:
    return " + (kv_len - q_len)" if variant.align == "bottom_right" else ""


def mask_function(variant: Variant, prologue: Prologue, given: Given = NOTHING) -> Function | None:
    if variant.mask is TRUE:
        return None
    return Function("_visible", prologue.body(variant.mask, given=given), f"{show(variant.mask, variant.lets)}.")


@dataclass(frozen=True)
class Pairs:
    """How a kernel gets from the dot products of a tile to its logits; `shown` is what a tile that needs it keeps.

    `score` is None where the logit is the dot product times `qk_scale`; `spread` where it is less than a whole tile.
    `row` is what is left out of the logits, constant along a row. `free` are names that score and mask read.
    """

    score: Function | None
    spread: bool
    mask: Function | None
    shown: str
    clamps_k: bool
    row: Expr | None

    @property
    def free(self) -> set[str]:
        return {name for f in (self.score, self.mask) if f is not None for name in f.body.free}

    @property
    def score_reads_k(self) -> bool:
        return self.score is not None and "k" in self.score.body.free

    @property
    def logit(self) -> str:
        return "qk" if self.score is None else "x"


def pairs(variant: Variant, keys: KeyRange, prologue: Prologue, given: Given = NOTHING) -> Pairs:
    """The score and mask of a pair; what is free of k goes into the prologue, what is `given` has a name."""
    found = logits(variant.score, variant.mask)
    score = None
    if found.scaled is not None:
        prologue.name(found.scaled, "qk_scale")
    else:
        note = "in units of log2" + ("" if found.row is None else ", less what is constant along a row")
        score = Function(
            "_score", prologue.body(found.pair, given=given), f"{show(variant.score, variant.lets)}, {note}."
        )
    mask = mask_function(variant, prologue, given)
    clamps_k = _reads_tensors_along_k(given, variant.mask, found.pair)
    checks = clamps_k or not _ends_before_kv_len(variant, keys)
    in_range = [f"{'col' if clamps_k else 'k'} < kv_len"] if checks else []
    shown = " & ".join([mask.call, *(f"({test})" for test in in_range)] if mask is not None else in_range)
    # A score that ignores the keys, or the queries, is spread over the tile.
    spread = level(found.pair) != level(var("qk", Type.FLOAT))
    return Pairs(score, spread, mask, shown, clamps_k, found.row)


def forward_view(variant: Variant) -> ForwardView:
    """Work the holes out."""
    prologue = new_prologue(variant)
    keys = key_range(variant.mask)
    found = pairs(variant, keys, prologue)
    limits: tuple[str, ...] = ()
    if found.mask is not None:
        limits = limit_lines(variant, keys, prologue) if keys.closed else scheduled_tiles(variant)
    epilogue = prologue.fork()
    row_shift = [] if found.row is None else [f"row_shift = {_row_shift(found.row, epilogue)}"]
    free = prologue.free | found.free
    arguments = extra_arguments(variant, free | ({"sinks_ptr"} if variant.sink else set()))
    spread = "tl.zeros([BM, BN], tl.float32) + " if found.spread else ""
    return ForwardView(
        scaled=found.score is None,
        score=found.score,
        score_call="" if found.score is None else spread + found.score.call,
        mask=found.mask,
        logit=found.logit,
        shown=found.shown,
        clamps_k=found.clamps_k,
        score_reads_k=found.score_reads_k,
        scheduled=not keys.closed,
        by_key=any(isinstance(node, Gather) and level(node) == COL for node in walk(variant.mask)),
        two_sided=bool(keys.lower),
        longest_first=longest_first(keys),
        q_vector="q" in free,
        precise="PRECISE" in free,
        precision="tf32" if variant.allow_tf32 else "ieee",
        q_first="q_first" in free,
        q_last="q_last" in free,
        q_offset=q_offset(variant),
        prologue=tuple(prologue.lines),
        limits=limits,
        epilogue=(*epilogue.lines, *row_shift),
        row_shift=bool(row_shift),
        sink=variant.sink,
        arguments=(*SCHEDULE, *arguments) if not keys.closed else arguments,
        unspecialized=unspecialized(variant, free, scheduled=not keys.closed),
        helpers=tuple(sorted(prologue.helpers)),
    )


def extra_arguments(variant: Variant, free: set[str]) -> tuple[str, ...]:
    """Pointers and strides of the inputs, runtime params and named sizes, as far as a kernel reads them."""
    names: list[str] = []
    for tensor in variant.inputs:
        name = user_name(tensor.name)
        strides = [f"stride_{name}_{axis}" for axis in range(len(tensor.dims) - 1)]
        names += [n for n in (f"{name}_ptr", *strides) if n in free]
    return (*names, *(n for n in _scalars(variant) if n in free))


def unspecialized(
    variant: Variant, free: set[str], scheduled: bool, schedule: Sequence[str] = SCHEDULE
) -> tuple[str, ...]:
    """The integers that a kernel is not compiled anew for."""
    integers = [user_name(p.name) for p in variant.runtime_params if p.type is Type.INT]
    integers += ["batch", *(user_name(name) for name in variant.dim_names)]
    sizes = ["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", *([schedule[-1]] if scheduled else [])]
    return (*sizes, *(name for name in integers if name in free))


def _scalars(variant: Variant) -> list[str]:
    """Scalar arguments that only some variants have."""
    return ["batch", *(user_name(name) for name in (*(p.name for p in variant.runtime_params), *variant.dim_names))]


def _reads_tensors_along_k(given: Given, *exprs: Expr) -> bool:
    return any(
        isinstance(node, Gather) and "k" in variables(node) and node not in given for node in walk(*exprs, to=given)
    )


def _ends_before_kv_len(variant: Variant, keys: KeyRange) -> bool:
    """Whether an upper bound of the mask alone keeps k below kv_len; the last query stands at kv_len - 1."""
    for bound in keys.upper:
        form = linear(bound)
        if variant.align == "bottom_right" and form.terms.get(Q) == 1:
            form = form + linear(op("sub", LAST_KEY, Q))
        gap = form - linear(LAST_KEY)
        if not gap.terms and gap.constant <= 0:
            return True
    return False


def longest_first(keys: KeyRange) -> bool:
    """Whether later queries see more keys."""
    return keys.closed and not keys.lower and keys.upper_bound is not None and increasing_in_q(keys.upper_bound) == 1


def extremes(bound: Expr, prologue: Prologue, owned: Expr = Q) -> tuple[str, str]:
    """The least and greatest value of a bound over the tile's rows, or keys, as texts of int32 scalars.

    `owned` is what the bound depends on: Q or K.
    """
    first, last = CORNERS["q" if owned is Q else "k"]
    sign = increasing_in_q(bound if owned is Q else substitute(bound, {owned: Q}))
    if sign is None:
        ends: Sequence[Expr] = (op("tile_min", bound), op("tile_max", bound))
    else:
        ends = [substitute(bound, {owned: first}), substitute(bound, {owned: last})]
        ends = ends if sign >= 0 else ends[::-1]
    least, greatest = (prologue.inline(end) for end in ends)
    if all(prologue.ranges.fits_int32(node) for node in walk(bound) if node.type is Type.INT):
        return least, greatest
    prologue.helpers.add("_clip")
    return f"_clip({least})", f"_clip({greatest})"


def limit_lines(variant: Variant, keys: KeyRange, prologue: Prologue) -> tuple[str, ...]:
    """Statements for `first`, `full_start`, `full_end` and `stop`, the ends of the loops over keys."""
    lines = ["", "# Keys [first, stop) are seen by some row of the tile, [full_start, full_end) by each row."]
    inside = _ends_before_kv_len(variant, keys)
    if keys.upper:
        assert keys.upper_bound is not None
        least, greatest = extremes(expression(linear(op("add", keys.upper_bound, const(1)))), prologue)
        stop = greatest if inside else f"tl.minimum({greatest}, kv_len)"
        end = least if inside else f"tl.minimum({least}, kv_len)"
    else:
        stop, end = "kv_len", "kv_len"
    if not keys.lower:
        lines[1] = "# Keys below stop are seen by some row of the tile, those below full_end by each row."
        return (*lines, f"stop = {stop}", f"full_end = tl.maximum({end}, 0) // BN * BN")
    assert keys.lower_bound is not None
    least, greatest = extremes(keys.lower_bound, prologue)
    lines += [
        f"first = tl.maximum({least}, 0) // BN * BN",
        f"stop = tl.maximum({stop}, first)",
        f"full_start = tl.minimum(tl.cdiv(tl.maximum({greatest}, 0), BN), tl.cdiv(stop, BN)) * BN",
        f"full_end = tl.maximum(tl.maximum({end}, 0) // BN * BN, full_start)",
    ]
    return tuple(lines)


def scheduled_tiles(
    variant: Variant, schedule: Sequence[str] = SCHEDULE, owned: str = "queries", walked: str = "keys"
) -> tuple[str, ...]:
    """Statements that read this tile's row of the schedule."""
    return (
        "",
        f"# What the schedule says of this tile of {owned}: which tiles of {walked} are mixed and which are full.",
        f"row = {schedule_row(variant, 'num_tiles', 'tile')}",
        "num_mixed = tl.load(counts_ptr + 3 * row)",
        "num_full = tl.load(counts_ptr + 3 * row + 1)",
        f"tiles_ptr += row * {schedule[-1]}",
    )


def schedule_row(variant: Variant, num_tiles: str, tile: str) -> str:
    """The row of the schedule for a tile of queries, one of `num_tiles`: batch and heads as far as the mask tells."""
    used = variables(variant.mask)
    by_head = bool(used & {"h", "kv_h"})
    if "b" in used:
        group = "(b * heads + h)" if by_head else "b"
        return f"{group}.to(tl.int64) * {num_tiles} + {tile}"
    return f"h.to(tl.int64) * {num_tiles} + {tile}" if by_head else f"{tile}.to(tl.int64)"


def _row_shift(row: Expr, epilogue: Prologue) -> str:
    text = epilogue.inline(row)
    return f"tl.reshape({text}, [BM])" if level(row) else text
