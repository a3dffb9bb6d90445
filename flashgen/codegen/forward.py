"""What the forward template needs to know of a variant: the text for its holes, and which parts exist at all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import COL, Level, level
from flashgen.codegen.limits import SCHEDULE, loop_limits, scheduled_tiles
from flashgen.codegen.pairs import Function, pairs
from flashgen.codegen.words import words
from flashgen.emit.dialects import TRITON, Dialect
from flashgen.emit.prologue import Prologue
from flashgen.emit.writer import Tensor
from flashgen.lang.nodes import TRUE, Expr, Type
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class ForwardView:
    """The holes of the forward kernel. Every string is Triton text; names are those of the kernel.

    `score` is None where the logit is the dot product times `qk_scale`: `scaled`. `mask` is None without one.
    `precision` is that of products of float32 inputs. `shown` is what a mixed tile keeps. `limits` are statements that
    name the loops' ends. `arguments` are the kernel's arguments beyond those that every variant has, `unspecialized`
    those of all that change from call to call. `default` is the function of runtime/defaults.py that has the built-in
    configs.
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
    default: str

    @property
    def functions(self) -> tuple[Function, ...]:
        """Those that the kernel calls."""
        return tuple(f for f in (self.score, self.mask) if f is not None)


def new_prologue(facts: Facts, walked: Level = COL, approximate: bool = False, dialect: Dialect = TRITON) -> Prologue:
    """The prologue of a kernel whose loop goes along keys, or along queries where `walked` is ROW."""
    variant = facts.variant
    tensors = {i.name: Tensor(tuple(d.size for d in i.dims), i.dtype) for i in variant.inputs}
    return Prologue(
        facts.ranges,
        tensors,
        variant.lets,
        reserved=_scalars(variant),
        walked=walked,
        approximate=approximate,
        words=words(),
        dialect=dialect,
    )


def q_offset(facts: Facts) -> str:
    return " + (kv_len - q_len)" if facts.bottom_right else ""


def forward_view(facts: Facts) -> ForwardView:
    """Work the holes out."""
    variant, scheduled = facts.variant, facts.uses_schedule
    prologue = new_prologue(facts)
    found = pairs(facts, prologue)
    limits: tuple[str, ...] = ()
    if found.mask is not None:
        limits = scheduled_tiles(facts) if scheduled else loop_limits(facts, prologue).lines
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
        scheduled=scheduled,
        two_sided=bool(facts.keys.lower),
        longest_first=facts.longest_first,
        q_vector="q" in reads,
        precise="PRECISE" in reads,
        precision="tf32" if variant.allow_tf32 else "ieee",
        q_first="q_first" in reads,
        q_last="q_last" in reads,
        q_offset=q_offset(facts),
        prologue=prologue.lines,
        limits=limits,
        epilogue=(*epilogue.lines, *row_shift),
        natural=found.natural,
        row_shift=bool(row_shift),
        sink=variant.sink,
        arguments=(*SCHEDULE, *arguments) if scheduled else arguments,
        unspecialized=unspecialized(variant, reads, scheduled),
        helpers=tuple(sorted(prologue.helpers)),
        default=default_name(facts),
    )


def default_name(facts: Facts) -> str:
    """What the function that has the forward kernel's built-in configs is called."""
    if facts.uses_schedule:
        return "default_by_key_config" if facts.mask_reads_keys else "default_scheduled_config"
    plain = facts.logits.scaled is not None and (facts.variant.mask is TRUE or facts.longest_first)
    return "default_plain_config" if plain else "default_config"


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
