"""The problems that a kernel is proven on: one table for each level."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import Any

from flashgen.lang.nodes import Const, walk
from flashgen.problems.dropped import Dropout
from flashgen.problems.elements import has_elements
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.spec.variant import Param, Variant

# Constants up to this one get a case that is longer than they are.
LONGEST_REACH = 8192
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
    out the inputs that have a default; `broadcast` gives size 1 to the dimensions that may have it. `lengths` packs
    sequences of so many queries and keys each; behind the last lie as many as `rest` says that belong to none.
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
    Case("more queries than keys", _problem("1 2/2 101x67 64/48", "float32"), _SMALL, return_max=True),
    Case("one query", _problem("2 4/1 1x131 64/64", "float16"), _WIDE),
    Case("length 1", _problem("1 1/1 1x1 64/64", "bfloat16"), _SMALL),
    Case("whole tiles", _problem("1 2/1 128x128 64/64", "bfloat16"), _WIDE, layout="bshd", return_max=True),
    Case("large scores", _problem("2 2/2 71x91 40/40", "float32"), _TALL, gain=100.0),
    Case(
        "scores far below zero",
        _problem("1 2/2 45x50 64/64", "float32"),
        _SMALL,
        return_max=True,
        gain=100.0,
        below=True,
    ),
    Case("large scores, 16 bits", _problem("1 2/2 40x90 64/64", "bfloat16"), _WIDE, return_max=True, gain=100.0),
    Case("decode", _problem("2 4/1 1x700 64/64", "bfloat16"), return_max=True),
    Case("decode, several queries", _problem("1 4/2 7x530 40/24", "float32"), layout="bshd", return_max=True),
    Case("negative scale", _problem("1 2/2 40x45 24/72", "float16"), _SMALL, scale=-0.3, return_max=True),
)


def _packed(name: str, lengths: tuple[tuple[int, int], ...], problem: str, dtype: str, **more: Any) -> Case:
    """Sequences of these lengths one after the other; the problem is "heads/kv_heads head_dim/v_head_dim"."""
    heads, dims = problem.split()
    longest = "x".join(str(max(own[side] for own in lengths)) for side in (0, 1))
    case = Case(name, _problem(f"{len(lengths)} {heads} {longest} {dims}", dtype), _SMALL, lengths=lengths)
    return replace(case, **more)


# None, one, about a tile and several, with as many queries as keys, fewer and more, and none of either.
_RAGGED = ((0, 0), (1, 1), (15, 15), (16, 100), (17, 16), (100, 17), (0, 20), (20, 0), (70, 90))

_PACKED = (
    _packed("packed", _RAGGED, "4/2 40/40", "float32", return_max=True),
    _packed("packed, 16 bits", ((1, 33), (64, 64), (0, 7), (5, 5)), "2/1 64/48", "bfloat16", rest=(70, 9)),
    _packed("packed, large scores", ((40, 50), (20, 10)), "2/2 40/40", "float32", gain=100.0),
)

# Lengths, grouping, head dims, layouts and dtypes: every pair of values of the last four meets (an orthogonal array).
_PAIRWISE = (
    Case("pairs 1", _problem("1 4/1 1x193 40/40", "float32")),
    Case("pairs 2", _problem("2 4/2 17x100 40/64", "float16"), layout="bshd"),
    Case("pairs 3", _problem("1 4/4 100x17 40/40", "bfloat16")),
    Case("pairs 4", _problem("1 4/1 128x128 64/64", "float16"), layout="bshd"),
    Case("pairs 5", _problem("1 4/2 193x193 64/64", "bfloat16"), return_max=True),
    Case("pairs 6", _problem("1 4/4 193x128 64/80", "float32"), layout="bshd"),
    Case("pairs 7", _problem("1 4/1 100x193 80/80", "bfloat16"), layout="bshd"),
    Case("pairs 8", _problem("2 4/2 17x1 80/80", "float32")),
    Case("pairs 9", _problem("1 4/4 128x100 80/40", "float16")),
)

# What the decode kernel serves: groups of one, of 8 and of more rows than a tile has, wide heads.
_DECODE = (
    Case("decode, one head each", _problem("1 3/3 16x513 20/40", "float16")),
    Case("decode, a group of 8", _problem("1 8/1 5x1500 32/32", "bfloat16"), layout="bshd"),
    Case("decode, a group of 32", _problem("1 32/1 3x600 16/16", "float32")),
    Case("decode, wide heads", _problem("1 2/1 1x520 256/256", "bfloat16")),
    Case("decode, large scores", _problem("1 4/2 2x1025 64/64", "bfloat16"), gain=100.0),
    Case("decode, negative scale", _problem("1 4/2 3x600 24/72", "float16"), scale=-0.3),
)

_DIMS = tuple(
    Case(f"head_dim {d}/{v_d}", _problem(f"1 2/1 50x70 {d}/{v_d}", dtype))
    for d, v_d, dtype in ((1, 1, "float32"), (16, 256, "bfloat16"), (256, 16, "float16"), (96, 96, "float32"))
)

_LONG = (
    Case("long", _problem("2 8/2 2048x2048 128/128", "bfloat16")),
    Case("long, odd", _problem("1 4/4 4097x4097 64/64", "float16"), layout="bshd", return_max=True),
    Case("long, fewer queries", _problem("1 4/1 777x5003 128/128", "bfloat16")),
    Case("long, more queries", _problem("1 4/2 3001x1500 64/128", "float16")),
    Case("long, float32", _problem("1 2/2 1531x2000 64/64", "float32")),
    Case("long, large scores", _problem("1 4/4 2048x2048 64/64", "bfloat16"), gain=100.0),
)

_FUSED = Backward(kv=Config(32, 32, 4, 1, fuse_dq=1), q=_SMALL)
_APART = Backward(kv=Config(32, 32, 4, 1, fuse_dq=0), q=_SMALL)
_UNEVEN = Backward("transposed", kv=Config(32, 64, 4, 1, fuse_dq=0), q=Config(64, 32, 4, 1))
_COARSE = Backward(kv=Config(64, 128, 4, 1, fuse_dq=0), q=Config(64, 128, 4, 1))
_EXPANDED = replace(_FUSED, d_out="expanded", lse=False, deterministic=True)

_PACKED_GRADIENTS = (
    _packed("gradients, packed", _RAGGED, "4/2 40/56", "float32", backward=_FUSED),
    _packed(
        "gradients, packed, 16 bits", ((33, 1), (0, 7), (45, 64)), "2/1 64/64", "bfloat16", rest=(66, 70),
        backward=replace(_APART, d_out="expanded", deterministic=True),
    ),
)  # fmt: skip

# Head dims that share one tile width, and sizes whose strides are multiples of 16 where those of others are, so that a
# GPU compiles each dtype once.
_GRADIENTS = (
    Case("gradients", _problem("2 4/2 45x61 40/56", "float32"), _SMALL, backward=_FUSED),
    Case("gradients, more queries", _problem("2 2/2 75x37 56/40", "float32"), _SMALL, backward=_EXPANDED),
    Case("gradients, one query", _problem("2 4/1 1x67 64/64", "float16"), _SMALL, backward=_APART),
    Case("gradients, length 1", _problem("1 2/1 1x1 64/64", "bfloat16"), _SMALL, backward=_FUSED),
    Case("gradients, whole tiles", _problem("1 2/1 64x64 64/64", "bfloat16"), _SMALL, "bshd", backward=_UNEVEN),
    Case("gradients, large scores", _problem("2 2/2 41x51 40/40", "float32"), _SMALL, gain=100.0, backward=_FUSED),
    Case("gradients, saturation", _problem("1 2/1 48x50 64/48", "bfloat16"), _SMALL, gain=20.0, backward=_APART),
    Case("gradients, negative scale", _problem("1 2/2 40x35 48/64", "float16"), _SMALL, scale=-0.3, backward=_FUSED),
)


def cases_for(variant: Variant, level: str, gpu: bool, scheduled: bool) -> tuple[Case, ...]:
    """The cases of a level. `gpu`: leave tile sizes to the module and go to sizes that an interpreter cannot."""
    cases = [*_QUICK, *_PACKED, *_reach(variant), *_own(variant, _QUICK[0], scheduled)]
    if variant.dropout is not None:
        # Without dropout few queries are another kernel's.
        decoding = [case for case in cases if case.name.startswith("decode")]
        cases += [replace(case, name=f"{case.name}, without dropout", drops=False) for case in decoding]
    if level == "full":
        cases += [*_PAIRWISE, *_DECODE, *_DIMS, *(_LONG if gpu else ()), *(_tuned(variant) if gpu else ())]
    return _seeded(variant, cases, gpu)


def gradient_cases_for(variant: Variant, level: str, gpu: bool, scheduled: bool) -> tuple[Case, ...]:
    """The cases of a level that prove gradients; at the full level on a GPU, all the others' problems too."""
    reach = [replace(case, name=f"gradients, {case.name}", backward=_COARSE) for case in _reach(variant)]
    cases = [*_GRADIENTS, *_PACKED_GRADIENTS, *reach, *_own(variant, _GRADIENTS[0], scheduled)]
    if level == "full":
        cases += _backward(cases_for(variant, level, gpu, scheduled) if gpu else _DIMS)
    return _seeded(variant, cases, gpu)


def _seeded(variant: Variant, cases: Iterable[Case], gpu: bool) -> tuple[Case, ...]:
    """Cases with seeds of their own, those whose inputs have elements; on a GPU with the module's configs."""
    seeded = [replace(case, seed=seed, params=_within(variant, case)) for seed, case in enumerate(cases)]
    called = [case for case in seeded if has_elements(variant, case.problem, dict(case.params))]
    return tuple(_without_configs(case) if gpu else case for case in called)


def _without_configs(case: Case) -> Case:
    backward = case.backward and replace(case.backward, kv=None, q=None)
    return replace(case, config=None, backward=backward)


def _own(variant: Variant, base: Case, scheduled: bool) -> list[Case]:
    """What a variant's params, inputs and schedule ask for, on the problem of `base`."""
    prefix = "gradients, " if base.backward else ""
    cases = _params(variant, base)
    if variant.dropout is not None:
        cases.append(replace(base, name="without dropout", drops=False))
    if any(i.default for i in variant.inputs):
        cases.append(replace(base, name="default inputs", defaults=True))
    if any(dim.may_be_one for i in variant.inputs for dim in i.dims):
        cases.append(replace(base, name="broadcast inputs", broadcast=True))
    if scheduled:
        cases.append(replace(base, name="planned", planned=True))
    return [replace(case, name=prefix + case.name) for case in cases]


def _backward(cases: Iterable[Case]) -> list[Case]:
    """The same problems for gradients, each kind of loss in turn."""
    kinds = cycle((_FUSED, _EXPANDED, _UNEVEN))
    return [
        replace(case, name=f"{case.name}, gradients", config=_SMALL, backward=kind)
        for case, kind in zip(cases, kinds, strict=False)
    ]


def _reach(variant: Variant) -> list[Case]:
    """Lengths past the largest integer of the expressions and shapes: a window of 1023 shows nothing at length 200, and
    an input [kv_len // 1000] has nothing there."""
    shapes = [dim.size for tensor in variant.inputs for dim in tensor.dims]
    constants = [node.value for node in walk(variant.score, variant.mask, *shapes) if isinstance(node, Const)]
    integers = [abs(n) for n in (*constants, *(p.value for p in variant.runtime_params)) if type(n) is int]
    reach = max((n for n in integers if n <= LONGEST_REACH), default=0)
    if reach < 50:
        return []
    long = 77 + (2 * reach if reach <= 256 else reach)
    few = min(long, 140)
    # Few queries suffice where they stand at the end of the keys. At the top they must come as far themselves, but then
    # few keys do: a score matrix of both takes minutes, and gigabytes.
    lengths = {"": (few, long)}
    if variant.align == "top_left" and long > few:
        lengths = {", along keys": (few, long), ", along queries": (long, few)}
    return [
        Case(f"reach {reach}{side}", _problem(f"1 2/1 {queries}x{keys} 32/32", "float32"), Config(64, 128, 4, 1))
        for side, (queries, keys) in lengths.items()
    ]


def _params(variant: Variant, base: Case) -> list[Case]:
    """Each runtime param at other values than the one in the spec."""
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
    inside = max(1, kv_len // 3)
    large = {p.name: inside for p in variant.runtime_params if type(p.value) is int and p.value > kv_len}
    return tuple((large | given).items())


def _tuned(variant: Variant) -> list[Case]:
    """What the spec is tuned for."""
    return [
        Case(f"tuned for {dtype} {d}", _problem(f"1 4/2 1000x1024 {d}/{d}", dtype))
        for dtype, d in product(variant.dtypes, variant.head_dims)
    ]
