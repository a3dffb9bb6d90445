"""What the portable kernels of the forward pass have in common, dense and decode: the holes of an online softmax."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.codegen.arguments import extra_arguments, q_offset
from flashgen.codegen.pairs import Function, Pairs
from flashgen.emit.prologue import Prologue


@dataclass(frozen=True)
class OnlineSoftmax:
    """The holes that both kernels have. Every string is Triton text; names are those of the kernel.

    `score` is None where the logit is the dot product times `qk_scale`: `scaled`. `mask` is None without one; `shown`
    is what a tile that needs it keeps. Logits are in units of log2, or `natural`. `precision` is that of products of
    float32 inputs. `reads` are the names that the kernel reads, `arguments` its arguments beyond those that every
    variant has.
    """

    score: Function | None
    score_call: str
    mask: Function | None
    logit: str
    shown: str
    clamps_k: bool
    scheduled: bool
    natural: bool
    without_fma: bool
    precision: str
    q_offset: str
    prologue: tuple[str, ...]
    epilogue: tuple[str, ...]
    row_shift: bool
    sink: bool
    reads: frozenset[str]
    arguments: tuple[str, ...]

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the kernel calls."""
        return tuple(f for f in (self.score, self.mask) if f is not None)

    @property
    def scaled(self) -> bool:
        """Whether logits are scaled dot products."""
        return self.score is None

    @property
    def softmax_function(self) -> str:
        """The name of the function of the device that makes a step of the softmax."""
        return f"online_softmax{self._form}"

    @property
    def softmax(self) -> str:
        """The call of it."""
        logits = self._logits
        precision = "" if self.precision == "ieee" else ", TF32=True"
        return f"{self.softmax_function}({logits}, v_tile, acc, m, l{precision})"

    @property
    def weights(self) -> str:
        """The call of the same function up to its product, which is the kernel's own where it drops weights."""
        return f"softmax_weights{self._form}({self._logits}, m, l)"

    @property
    def _form(self) -> str:
        return "_natural" if self.natural else "_scaled" if self.scaled else ""

    @property
    def _logits(self) -> str:
        return "qk, qk_scale" if self.scaled else "x"


def online_softmax(
    facts: Facts, found: Pairs, prologue: Prologue, more: frozenset[str] = frozenset()
) -> OnlineSoftmax:  # fmt: skip
    """Work these holes out, when the prologue has all that the loop needs; `more` are names that the kernel reads."""
    variant, epilogue = facts.variant, prologue.fork()
    row_shift = found.row_shift(epilogue)
    reads = prologue.reads | found.reads | more
    spread = "tl.zeros([BM, BN], tl.float32) + " if found.spread else ""
    return OnlineSoftmax(
        score=found.score,
        score_call="" if found.score is None else spread + found.score.call,
        mask=found.mask,
        logit=found.logit,
        shown=found.shown.result,
        clamps_k=found.clamps_k,
        scheduled=facts.uses_schedule,
        natural=found.natural,
        without_fma=facts.logits.without_fma,
        precision="tf32" if variant.allow_tf32 else "ieee",
        q_offset=q_offset(facts),
        prologue=prologue.lines,
        epilogue=(*epilogue.lines, *row_shift),
        row_shift=bool(row_shift),
        sink=variant.sink,
        reads=frozenset(reads),
        arguments=extra_arguments(variant, reads | ({"sinks_ptr"} if variant.sink else set())),
    )
