"""What the suite compares: generated kernels beside the best other ones, and variants and sizes beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flashgen.bench.candidates import CUDNN, DETERMINISTIC, FLASHGEN, FLEX
from flashgen.bench.flash_attention import FLASH_ATTENTION_4
from flashgen.bench.passes import BACKWARD, BOTH, FORWARD
from flashgen.problems.problem import Problem


@dataclass(frozen=True)
class Timed:
    """One pass of one candidate: `variant` is one of the gallery."""

    variant: str
    problem: Problem
    step: str = FORWARD
    candidate: str = FLASHGEN

    def __str__(self) -> str:
        p = self.problem
        heads = "" if p.heads == p.kv_heads else f", {p.heads} heads over {p.kv_heads}"
        return (
            f"{self.variant}, D{p.head_dim}, S{p.q_len}{heads}{', deterministic' * (self.candidate == DETERMINISTIC)}"
        )


@dataclass(frozen=True)
class Comparison:
    """How many times as fast `ours` is as `other`, both for their visible pairs."""

    ours: Timed
    other: Timed

    @property
    def beside(self) -> str:
        """The other one, as far as it differs."""
        ours, other = self.ours, self.other
        same = (ours.variant, ours.problem) == (other.variant, other.problem)
        return other.candidate if same else str(other)


def sizes(length: int, head_dim: int, batch: int = 2, heads: int = 16, kv_heads: int | None = None) -> Problem:
    """As many queries as keys, bfloat16."""
    return Problem(batch, heads, kv_heads or heads, length, length, head_dim, head_dim, "bfloat16")


PLAIN = ("full", "causal")
MODIFIED = ("sliding_window", "alibi", "softcap", "prefix_lm", "document", "block_sparse")
D128, D64, D256 = sizes(8192, 128), sizes(8192, 64, heads=32), sizes(8192, 256, heads=8)
GROUPED, SHORT = sizes(8192, 128, heads=32, kv_heads=8), sizes(2048, 128, batch=8)
LENGTHS = (sizes(512, 128, batch=32), SHORT, sizes(16384, 128, batch=1))


def beside(candidate: str, variants: tuple[str, ...], problem: Problem, step: str) -> tuple[Comparison, ...]:
    """The kernels of these variants and what another candidate has for them."""
    ours = (Timed(variant, problem, step) for variant in variants)
    return tuple(Comparison(each, Timed(each.variant, problem, step, candidate)) for each in ours)


def as_causal(variants: tuple[str, ...], problem: Problem, step: str) -> tuple[Comparison, ...]:
    """What a variant costs, beside plain causal attention."""
    return tuple(Comparison(Timed(each, problem, step), Timed("causal", problem, step)) for each in variants)


def deterministic(variants: tuple[str, ...], problem: Problem) -> tuple[Comparison, ...]:
    """What equal bits on every run cost."""
    return tuple(
        Comparison(Timed(each, problem, BACKWARD, DETERMINISTIC), Timed(each, problem, BACKWARD)) for each in variants
    )


def odd(*pairs: tuple[Problem, Problem]) -> tuple[Comparison, ...]:
    """Sizes that are not round, each beside the next one that is."""
    return tuple(Comparison(Timed(v, odd), Timed(v, even)) for v in PLAIN for odd, even in pairs)


def _forward(problem: Problem) -> tuple[Comparison, ...]:
    return (
        *beside(CUDNN, PLAIN, problem, FORWARD),
        *beside(FLEX, (*PLAIN, *MODIFIED, "relative_bias"), problem, FORWARD),
        *as_causal(("alibi", "prefix_lm", "softcap"), problem, FORWARD),
    )


def _backward(problem: Problem) -> tuple[Comparison, ...]:
    return (
        *beside(CUDNN, PLAIN, problem, BACKWARD),
        *beside(FLEX, (*PLAIN, *MODIFIED), problem, BACKWARD),
        *as_causal(("alibi", "prefix_lm", "softcap"), problem, BACKWARD),
        *deterministic((*PLAIN, *MODIFIED, "relative_bias"), problem),
    )


def _by_hand(step: str) -> tuple[Comparison, ...]:
    """Beside the fastest kernels that are written by hand."""
    lengths = (SHORT, D128, LENGTHS[-1], sizes(2048, 64, batch=8, heads=32), D64, sizes(16384, 64, batch=1, heads=32))
    grouped = (GROUPED, sizes(8192, 64, heads=32, kv_heads=8))
    return (
        *(each for problem in lengths for each in beside(FLASH_ATTENTION_4, PLAIN, problem, step)),
        *(each for problem in (*grouped, D256) for each in beside(FLASH_ATTENTION_4, ("causal",), problem, step)),
        *(each for problem in (D128, D64)
          for each in beside(FLASH_ATTENTION_4, ("sliding_window", "softcap"), problem, step)),
    )  # fmt: skip


# What is timed in the same rounds, each group of one pass.
GROUPS: Mapping[str, tuple[Comparison, ...]] = {
    "forward-d128": _forward(D128),
    "forward-d64": _forward(D64),
    "forward-sizes": (
        *(each for problem in LENGTHS for each in beside(CUDNN, PLAIN, problem, FORWARD)),
        *(each for problem in (GROUPED, D256) for each in beside(CUDNN, ("causal",), problem, FORWARD)),
    ),
    "odd": odd(
        (sizes(4000, 128), sizes(4096, 128)), (sizes(8191, 128), D128),
        (sizes(8192, 96), D128), (sizes(8192, 192, heads=8), D256),
    ),
    "backward-d128": _backward(D128),
    "backward-d64": _backward(D64),
    "backward-sizes": tuple(
        each for problem in (GROUPED, SHORT, D256) for each in beside(CUDNN, ("causal",), problem, BACKWARD)
    ),
    "learned": (
        *beside(FLEX, ("relative_bias",), D128, BOTH),
        *beside(FLEX, ("relative_bias",), D64, BOTH),
    ),
    "forward-by-hand": _by_hand(FORWARD),
    "backward-by-hand": _by_hand(BACKWARD),
}  # fmt: skip

# Beside what is not installed with torch: measured where they are asked for.
ASKED_FOR = ("forward-by-hand", "backward-by-hand")


def timed_in(comparisons: Sequence[Comparison]) -> list[Timed]:
    """What they time, each once."""
    return list(dict.fromkeys(each for pair in comparisons for each in (pair.ours, pair.other)))
