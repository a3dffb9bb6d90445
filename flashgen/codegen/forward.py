"""What the forward template needs to know of a variant: the text for its holes, and which parts exist at all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flashgen.analysis.levels import COL, Level, level
from flashgen.codegen.limits import SCHEDULE, longest_first, loop_limits, scheduled_tiles
from flashgen.codegen.naming import inner
from flashgen.codegen.pairs import Function, pairs
from flashgen.codegen.words import words
from flashgen.emit.dialects import TRITON, Dialect
from flashgen.emit.prologue import Prologue
from flashgen.emit.writer import Tensor
from flashgen.lang.bounds import key_range
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Expr, Gather, Type, walk
from flashgen.spec.variant import Variant


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
    natural: bool
    row_shift: bool
    sink: bool
    arguments: tuple[str, ...]
    unspecialized: tuple[str, ...]
    helpers: tuple[str, ...]

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
    named = inner(variant)
    return not key_range(named.mask, ranges_of(named)).closed


def new_prologue(
    variant: Variant, walked: Level = COL, approximate: bool = False, dialect: Dialect = TRITON
) -> Prologue:
    """The prologue of a kernel whose loop goes along keys, or along queries where `walked` is ROW."""
    tensors = {i.name: Tensor(tuple(d.size for d in i.dims), i.dtype) for i in variant.inputs}
    return Prologue(
        ranges_of(variant),
        tensors,
        variant.lets,
        reserved=_scalars(variant),
        walked=walked,
        approximate=approximate,
        words=words(),
        dialect=dialect,
    )


def ranges_of(variant: Variant) -> Ranges:
    """What is known of the values that the variant's expressions read."""
    dtypes = {i.name: i.dtype for i in variant.inputs}
    return Ranges(dtypes, frozenset(variant.dim_names), variant.align == "bottom_right")


def q_offset(variant: Variant) -> str:
    return " + (kv_len - q_len)" if variant.align == "bottom_right" else ""


def forward_view(variant: Variant) -> ForwardView:
    """Work the holes out."""
    prologue = new_prologue(variant)
    keys = key_range(variant.mask, ranges_of(variant))
    found = pairs(variant, keys, prologue)
    limits: tuple[str, ...] = ()
    if found.mask is not None:
        limits = loop_limits(variant, keys, prologue).lines if keys.closed else scheduled_tiles(variant)
    epilogue = prologue.fork()
    row_shift = [] if found.row is None else [f"row_shift = {_row_shift(found.row, epilogue)}"]
    reads = prologue.reads | found.reads
    arguments = extra_arguments(variant, reads | ({"sinks_ptr"} if variant.sink else set()))
    spread = "tl.zeros([BM, BN], tl.float32) + " if found.spread else ""
    return ForwardView(
        scaled=found.score is None,
        score=found.score,
        score_call="" if found.score is None else spread + found.score.call,
        mask=found.mask,
        logit=found.logit,
        shown=found.shown.result,
        clamps_k=found.clamps_k,
        score_reads_k=found.score_reads_k,
        scheduled=not keys.closed,
        by_key=any(isinstance(node, Gather) and level(node) == COL for node in walk(variant.mask)),
        two_sided=bool(keys.lower),
        longest_first=longest_first(keys),
        q_vector="q" in reads,
        precise="PRECISE" in reads,
        precision="tf32" if variant.allow_tf32 else "ieee",
        q_first="q_first" in reads,
        q_last="q_last" in reads,
        q_offset=q_offset(variant),
        prologue=prologue.lines,
        limits=limits,
        epilogue=(*epilogue.lines, *row_shift),
        natural=found.natural,
        row_shift=bool(row_shift),
        sink=variant.sink,
        arguments=(*SCHEDULE, *arguments) if not keys.closed else arguments,
        unspecialized=unspecialized(variant, reads, scheduled=not keys.closed),
        helpers=tuple(sorted(prologue.helpers)),
    )


def extra_arguments(variant: Variant, reads: set[str]) -> tuple[str, ...]:
    """Pointers and strides of the inputs, runtime params and named sizes, as far as a kernel reads them."""
    names: list[str] = []
    for tensor in variant.inputs:
        name = tensor.name
        strides = [f"stride_{name}_{axis}" for axis in range(len(tensor.dims) - 1)]
        names += [n for n in (f"{name}_ptr", *strides) if n in reads]
    return (*names, *(n for n in _scalars(variant) if n in reads))


def unspecialized(
    variant: Variant, reads: set[str], scheduled: bool, schedule: Sequence[str] = SCHEDULE
) -> tuple[str, ...]:
    """The integers that a kernel is not compiled anew for."""
    sizes = ["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", *([schedule[-1]] if scheduled else [])]
    return (*sizes, *own_integers(variant, reads))


def own_integers(variant: Variant, reads: Collection[str]) -> tuple[str, ...]:
    """The integers among the arguments that only some variants have, as far as a kernel reads them."""
    integers = [p.name for p in variant.runtime_params if p.type is Type.INT]
    integers += ["batch", *variant.dim_names]
    return tuple(name for name in integers if name in reads)


def _scalars(variant: Variant) -> list[str]:
    """Scalar arguments that only some variants have."""
    return ["batch", *(p.name for p in variant.runtime_params), *variant.dim_names]


def _row_shift(row: Expr, epilogue: Prologue) -> str:
    text = epilogue.inline(row)
    return f"tl.reshape({text}, [BM])" if level(row) else text
