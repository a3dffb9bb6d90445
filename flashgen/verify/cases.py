"""The problems that a kernel is proven on: one table for each level."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from flashgen.lang.nodes import Const, walk
from flashgen.problems import Problem
from flashgen.runtime import Config
from flashgen.spec.variant import Param, Variant

LEVELS = ("quick", "full")

# Constants up to this one get a case that is longer than they are.
LONGEST_REACH = 8192


@dataclass(frozen=True)
class Case:
    """One call to prove. None for config: what the module chooses. `gain` multiplies q, for large scores; `below`
    makes q positive and k negative, for scores below zero.

    `params` replaces values of runtime params; `planned` passes a schedule prepared by plan(); `defaults` leaves
    out the inputs that have a default; `broadcast` gives size 1 to the dimensions that may have it.
    """

    name: str
    problem: Problem
    config: Config | None = None
    layout: str = "bhsd"
    scale: float | None = None
    gain: float = 1.0
    below: bool = False
    params: tuple[tuple[str, bool | int | float], ...] = ()
    planned: bool = False
    defaults: bool = False
    broadcast: bool = False
    seed: int = 0


def _problem(text: str, dtype: str) -> Problem:
    """A problem from "batch heads/kv_heads q_len x kv_len head_dim/v_head_dim"."""
    batch, heads, lengths, dims = text.split()
    (h, kv_h), (q_len, kv_len), (d, v_d) = (
        (int(n) for n in part.replace("x", "/").split("/")) for part in (heads, lengths, dims)
    )
    return Problem(int(batch), h, kv_h, q_len, kv_len, d, v_d, dtype)


_SMALL, _WIDE, _TALL = Config(32, 32, 4, 1), Config(32, 64, 4, 1), Config(64, 32, 4, 2)

_QUICK = (
    Case("odd lengths", _problem("2 4/2 83x109 40/40", "float32"), _SMALL),
    Case("more queries than keys", _problem("1 2/2 101x67 64/48", "float32"), _SMALL),
    Case("one query", _problem("2 4/1 1x131 64/64", "float16"), _WIDE),
    Case("length 1", _problem("1 1/1 1x1 64/64", "bfloat16"), _SMALL),
    Case("whole tiles", _problem("1 2/1 128x128 64/64", "bfloat16"), _WIDE, layout="bshd"),
    Case("large scores", _problem("1 2/2 70x90 40/40", "float32"), _TALL, gain=100.0),
    Case("scores far below zero", _problem("1 2/2 45x50 64/64", "float32"), _SMALL, gain=100.0, below=True),
    Case("large scores, 16 bits", _problem("1 2/2 40x90 64/64", "bfloat16"), _WIDE, gain=100.0),
    Case("negative scale", _problem("1 2/2 40x45 24/72", "float16"), _SMALL, scale=-0.3),
)

# Lengths, grouping, head dims, layouts and dtypes: every pair of values of the last four meets (an orthogonal array).
_PAIRWISE = (
    Case("pairs 1", _problem("1 4/1 1x193 40/40", "float32")),
    Case("pairs 2", _problem("2 4/2 17x100 40/64", "float16"), layout="bshd"),
    Case("pairs 3", _problem("1 4/4 100x17 40/40", "bfloat16")),
    Case("pairs 4", _problem("1 4/1 128x128 64/64", "float16"), layout="bshd"),
    Case("pairs 5", _problem("1 4/2 193x193 64/64", "bfloat16")),
    Case("pairs 6", _problem("1 4/4 193x128 64/80", "float32"), layout="bshd"),
    Case("pairs 7", _problem("1 4/1 100x193 80/80", "bfloat16"), layout="bshd"),
    Case("pairs 8", _problem("2 4/2 17x1 80/80", "float32")),
    Case("pairs 9", _problem("1 4/4 128x100 80/40", "float16")),
)

_DIMS = tuple(
    Case(f"head_dim {d}/{v_d}", _problem(f"1 2/1 50x70 {d}/{v_d}", dtype))
    for d, v_d, dtype in ((1, 1, "float32"), (16, 256, "bfloat16"), (256, 16, "float16"), (96, 96, "float32"))
)

_LONG = (
    Case("long", _problem("2 8/2 2048x2048 128/128", "bfloat16")),
    Case("long, odd", _problem("1 4/4 4097x4097 64/64", "float16"), layout="bshd"),
    Case("long, fewer queries", _problem("1 4/1 777x5003 128/128", "bfloat16")),
    Case("long, more queries", _problem("1 4/2 3001x1500 64/128", "float16")),
    Case("long, float32", _problem("1 2/2 1531x2000 64/64", "float32")),
    Case("long, large scores", _problem("1 4/4 2048x2048 64/64", "bfloat16"), gain=100.0),
)


def cases_for(variant: Variant, level: str, gpu: bool, scheduled: bool) -> tuple[Case, ...]:
    """The cases of a level. `gpu`: leave tile sizes to the module and go to sizes that an interpreter cannot."""
    cases = [*_QUICK, *_reach(variant), *_params(variant)]
    if any(i.default for i in variant.inputs):
        cases.append(replace(_QUICK[0], name="default inputs", defaults=True))
    if any(dim.may_be_one for i in variant.inputs for dim in i.dims):
        cases.append(replace(_QUICK[0], name="broadcast inputs", broadcast=True))
    if scheduled:
        cases.append(replace(_QUICK[0], name="planned", planned=True))
    if level == "full":
        cases += [*_PAIRWISE, *_DIMS, *(_LONG if gpu else ()), *(_tuned(variant) if gpu else ())]
    return tuple(
        replace(case, seed=seed, config=None if gpu else case.config, params=_within(variant, case))
        for seed, case in enumerate(cases)
    )


def _reach(variant: Variant) -> list[Case]:
    """Lengths past the largest integer of the expressions: a window of 1023 shows nothing at length 200."""
    constants = [node.value for node in walk(variant.score, variant.mask) if isinstance(node, Const)]
    integers = [abs(n) for n in (*constants, *(p.value for p in variant.runtime_params)) if type(n) is int]
    reach = max((n for n in integers if n <= LONGEST_REACH), default=0)
    if reach < 50:
        return []
    keys = 77 + (2 * reach if reach <= 256 else reach)
    # Few queries suffice where they stand at the end of the keys; at the top they must come as far themselves.
    queries = min(keys, 140) if variant.align == "bottom_right" else keys
    return [Case(f"reach {reach}", _problem(f"1 2/1 {queries}x{keys} 32/32", "float32"), Config(64, 128, 4, 1))]


def _params(variant: Variant) -> list[Case]:
    """Each runtime param at other values than the one in the spec."""
    base = _QUICK[0]
    return [
        replace(base, name=f"{param.name} = {value}", params=((param.name, value),))
        for param in variant.runtime_params
        for value in _other_values(param, base.problem)
    ]


def _other_values(param: Param, problem: Problem) -> tuple[bool | int | float, ...]:
    if isinstance(param.value, bool):
        return (not param.value,)
    if isinstance(param.value, int):
        return param.value // 2, problem.kv_len // 2
    return param.value / 2, 2 * param.value


def _within(variant: Variant, case: Case) -> tuple[tuple[str, bool | int | float], ...]:
    """A case's params, with those that would reach past its keys brought inside: a longer prefix hides the mask."""
    given = dict(case.params)
    kv_len = case.problem.kv_len
    large = {p.name: kv_len // 3 for p in variant.runtime_params if type(p.value) is int and p.value > kv_len}
    return tuple((large | given).items())


def _tuned(variant: Variant) -> list[Case]:
    """What the spec is tuned for."""
    return [
        Case(f"tuned for {dtype} {d}", _problem(f"1 4/2 1000x1024 {d}/{d}", dtype))
        for dtype, d in product(variant.dtypes, variant.head_dims)
    ]
