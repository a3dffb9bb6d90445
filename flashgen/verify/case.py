"""One call to prove, dense or packed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flashgen.lang.traversal import variables
from flashgen.problems.dropped import Dropout
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.spec.variant import Dim, Variant

# The tiles of most cases: of short lengths too there are several.
SMALL = Config(32, 32, 4, 1)
# Of dropout, by turns.
PROBABILITIES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Backward:
    """Gradients to prove. `d_out` says how the gradient of out lies in memory: "dense", "transposed" (its last
    dimension not contiguous) or "expanded" (one number for all, as sum() gives).

    `lse`: a gradient of lse comes in beside it. `deterministic`: asked for, and two runs must agree in every bit.
    """

    d_out: str = "dense"
    lse: bool = True
    deterministic: bool = False
    kv: Config | None = None
    q: Config | None = None


@dataclass(frozen=True)
class Case:
    """One call to prove: its outputs, or with `backward` its gradients. None for a config: what the module chooses.

    `return_max`: the largest logits are among the outputs. `gain` multiplies q, for large scores; `below` makes q
    positive and k negative, for scores below zero.

    `params` replaces values of runtime params; `planned` passes a schedule prepared by plan(); `defaults` leaves
    out the inputs that have a default; `broadcast` gives size 1 to the dimensions that may have it; with `stretches`
    inputs have so many values along queries and keys, each for a stretch. `lengths` packs sequences of so many queries
    and keys each; behind the last lie as many as `rest` says that belong to none.
    `decoded`: the config is one of the decode kernel. `drops`: where the variant has dropout, weights are dropped.
    """

    name: str
    problem: Problem
    config: Config | None = None
    layout: str = "bhsd"
    scale: float | None = None
    return_max: bool = False
    gain: float = 1.0
    below: bool = False
    params: tuple[tuple[str, bool | int | float], ...] = ()
    planned: bool = False
    defaults: bool = False
    broadcast: bool = False
    stretches: int = 0
    seed: int = 0
    backward: Backward | None = None
    lengths: tuple[tuple[int, int], ...] = ()
    rest: tuple[int, int] = (0, 0)
    decoded: bool = False
    drops: bool = True

    def dropout(self, variant: Variant) -> Dropout | None:
        """What is dropped; None of a variant without dropout. The seed decides."""
        if variant.dropout is None:
            return None
        return Dropout(PROBABILITIES[self.seed % len(PROBABILITIES)] if self.drops else 0.0, self.seed)


def problem_of(text: str, dtype: str) -> Problem:
    """A problem from "batch heads/kv_heads q_len x kv_len head_dim/v_head_dim"."""
    batch, heads, lengths, dims = text.split()
    (h, kv_h), (q_len, kv_len), (d, v_d) = (
        (int(n) for n in part.replace("x", "/").split("/")) for part in (heads, lengths, dims)
    )
    return Problem(int(batch), h, kv_h, q_len, kv_len, d, v_d, dtype)


def packed_case(name: str, lengths: tuple[tuple[int, int], ...], problem: str, dtype: str, **more: Any) -> Case:
    """Sequences of these lengths one after the other; the problem is "heads/kv_heads head_dim/v_head_dim"."""
    heads, dims = problem.split()
    longest = "x".join(str(max(own[side] for own in lengths)) for side in (0, 1))
    case = Case(name, problem_of(f"{len(lengths)} {heads} {longest} {dims}", dtype), SMALL, lengths=lengths)
    return replace(case, **more)


def along(dim: Dim) -> bool:
    """Whether a dimension of an input goes along queries or keys, whose values come in stretches then."""
    return bool(variables(dim.size) & {"q_len", "kv_len"})
