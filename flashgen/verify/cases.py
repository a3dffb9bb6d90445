"""The problems that a kernel is proven on: one table for each level."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle, product

from flashgen.problems.elements import has_elements
from flashgen.runtime import Config
from flashgen.spec.variant import Variant
from flashgen.verify.case import SMALL, Backward, Case, along, packed_case, problem_of
from flashgen.verify.params import Params, all_others, other_values
from flashgen.verify.reach import lengths_past

_WIDE, _TALL = Config(32, 64, 4, 1), Config(64, 32, 4, 2)

_QUICK = (
    Case("odd lengths", problem_of("2 4/2 83x109 40/40", "float32"), SMALL),
    Case("more queries than keys", problem_of("1 2/2 101x67 64/48", "float32"), SMALL, return_max=True),
    Case("one query", problem_of("2 4/1 1x131 64/64", "float16"), _WIDE),
    Case("length 1", problem_of("1 1/1 1x1 64/64", "bfloat16"), SMALL),
    Case("whole tiles", problem_of("1 2/1 128x128 64/64", "bfloat16"), _WIDE, layout="bshd", return_max=True),
    Case("large scores", problem_of("2 2/2 71x91 40/40", "float32"), _TALL, gain=100.0),
    Case(
        "scores far below zero",
        problem_of("1 2/2 45x50 64/64", "float32"),
        SMALL,
        return_max=True,
        gain=100.0,
        below=True,
    ),
    Case("large scores, 16 bits", problem_of("1 2/2 40x90 64/64", "bfloat16"), _WIDE, return_max=True, gain=100.0),
    Case("decode", problem_of("2 4/1 1x700 64/64", "bfloat16"), return_max=True),
    Case("decode, several queries", problem_of("1 4/2 7x530 40/24", "float32"), layout="bshd", return_max=True),
    # The first tile ends amid a query that stands on the first of a tile of keys.
    Case("decode, several tiles of rows", problem_of("1 6/1 7x546 24/16", "float32")),
    Case("negative scale", problem_of("1 2/2 40x45 24/72", "float16"), SMALL, scale=-0.3, return_max=True),
)

# None, one, about a tile and several, with as many queries as keys, fewer and more, and none of either.
_RAGGED = ((0, 0), (1, 1), (15, 15), (16, 100), (17, 16), (100, 17), (0, 20), (20, 0), (70, 90))

_PACKED = (
    packed_case("packed", _RAGGED, "4/2 40/40", "float32", return_max=True),
    packed_case("packed, 16 bits", ((1, 33), (64, 64), (0, 7), (5, 5)), "2/1 64/48", "bfloat16", rest=(70, 9)),
    packed_case("packed, large scores", ((40, 50), (20, 10)), "2/2 40/40", "float32", gain=100.0),
)

# What packed sequences are where a variant's params, inputs and schedule ask for more.
_PACKED_OWN = packed_case("packed", ((40, 50), (0, 7), (20, 10)), "2/2 40/40", "float32")

# Lengths, grouping, head dims, layouts and dtypes: every pair of values of the last four meets (an orthogonal array).
_PAIRWISE = (
    Case("pairs 1", problem_of("1 4/1 1x193 40/40", "float32")),
    Case("pairs 2", problem_of("2 4/2 17x100 40/64", "float16"), layout="bshd"),
    Case("pairs 3", problem_of("1 4/4 100x17 40/40", "bfloat16")),
    Case("pairs 4", problem_of("1 4/1 128x128 64/64", "float16"), layout="bshd"),
    Case("pairs 5", problem_of("1 4/2 193x193 64/64", "bfloat16"), return_max=True),
    Case("pairs 6", problem_of("1 4/4 193x128 64/80", "float32"), layout="bshd"),
    Case("pairs 7", problem_of("1 4/1 100x193 80/80", "bfloat16"), layout="bshd"),
    Case("pairs 8", problem_of("2 4/2 17x1 80/80", "float32")),
    Case("pairs 9", problem_of("1 4/4 128x100 80/40", "float16")),
)

# What the decode kernel serves: groups of one, of 8 and of more rows than a tile has, wide heads.
_DECODE = (
    Case("decode, one head each", problem_of("1 3/3 16x513 20/40", "float16")),
    Case("decode, a group of 8", problem_of("1 8/1 5x1500 32/32", "bfloat16"), layout="bshd"),
    Case("decode, a group of 32", problem_of("1 32/1 3x600 16/16", "float32")),
    Case("decode, wide heads", problem_of("1 2/1 1x520 256/256", "bfloat16")),
    Case("decode, large scores", problem_of("1 4/2 2x1025 64/64", "bfloat16"), gain=100.0),
    Case("decode, negative scale", problem_of("1 4/2 3x600 24/72", "float16"), scale=-0.3),
)

_DIMS = tuple(
    Case(f"head_dim {d}/{v_d}", problem_of(f"1 2/1 50x70 {d}/{v_d}", dtype))
    for d, v_d, dtype in ((1, 1, "float32"), (16, 256, "bfloat16"), (256, 16, "float16"), (96, 96, "float32"))
)

_LONG = (
    Case("long", problem_of("2 8/2 2048x2048 128/128", "bfloat16")),
    Case("long, odd", problem_of("1 4/4 4097x4097 64/64", "float16"), layout="bshd", return_max=True),
    Case("long, fewer queries", problem_of("1 4/1 777x5003 128/128", "bfloat16")),
    Case("long, more queries", problem_of("1 4/2 3001x1500 64/128", "float16")),
    Case("long, float32", problem_of("1 2/2 1531x2000 64/64", "float32")),
    Case("long, large scores", problem_of("1 4/4 2048x2048 64/64", "bfloat16"), gain=100.0),
)

_FUSED = Backward(kv=Config(32, 32, 4, 1, fuse_dq=1), q=SMALL)
_APART = Backward(kv=Config(32, 32, 4, 1, fuse_dq=0), q=SMALL)
_UNEVEN = Backward("transposed", kv=Config(32, 64, 4, 1, fuse_dq=0), q=Config(64, 32, 4, 1))
_COARSE = Backward(kv=Config(64, 128, 4, 1, fuse_dq=0), q=Config(64, 128, 4, 1))
_EXPANDED = replace(_FUSED, d_out="expanded", lse=False, deterministic=True)

_PACKED_GRADIENTS = (
    packed_case("gradients, packed", _RAGGED, "4/2 40/56", "float32", backward=_FUSED),
    packed_case(
        "gradients, packed, 16 bits", ((33, 1), (0, 7), (45, 64)), "2/1 64/64", "bfloat16", rest=(66, 70),
        backward=replace(_APART, d_out="expanded", deterministic=True),
    ),
)  # fmt: skip

# Head dims that share one tile width, and sizes whose strides are multiples of 16 where those of others are, so that a
# GPU compiles each dtype once.
_GRADIENTS = (
    Case("gradients", problem_of("2 4/2 45x61 40/56", "float32"), SMALL, backward=_FUSED),
    Case("gradients, more queries", problem_of("2 2/2 75x37 56/40", "float32"), SMALL, backward=_EXPANDED),
    Case("gradients, one query", problem_of("2 4/1 1x67 64/64", "float16"), SMALL, backward=_APART),
    Case("gradients, length 1", problem_of("1 2/1 1x1 64/64", "bfloat16"), SMALL, backward=_FUSED),
    Case("gradients, whole tiles", problem_of("1 2/1 64x64 64/64", "bfloat16"), SMALL, "bshd", backward=_UNEVEN),
    Case("gradients, large scores", problem_of("2 2/2 41x51 40/40", "float32"), SMALL, gain=100.0, backward=_FUSED),
    Case("gradients, saturation", problem_of("1 2/1 48x50 64/48", "bfloat16"), SMALL, gain=20.0, backward=_APART),
    Case("gradients, negative scale", problem_of("1 2/2 40x35 48/64", "float16"), SMALL, scale=-0.3, backward=_FUSED),
)


# A GPU's own kernels have tiles of up to 192 queries and 128 keys: shorter calls are all masked. Head dimensions, dtype
# and strides are those of other cases, whose kernels are compiled anyhow.
_FULL_TILES = Case("full tiles", problem_of("1 2/1 304x400 64/64", "bfloat16"), return_max=True)
_FULL_TILES_OF_GRADIENTS = (
    replace(_FULL_TILES, name="gradients, full tiles", return_max=False, backward=Backward()),
    packed_case(
        "gradients, packed, full tiles", ((304, 400), (0, 0), (144, 272)), "2/1 64/64", "bfloat16",
        backward=Backward(deterministic=True),
    ),
)  # fmt: skip

# Few queries, which another kernel has, with other values of runtime params.
_DECODED = Case("decode, other params", problem_of("1 4/2 3x520 16/16", "float32"))


def cases_for(variant: Variant, level: str, gpu: bool, scheduled: bool) -> tuple[Case, ...]:
    """The cases of a level. `gpu`: leave tile sizes to the module and go to sizes that an interpreter cannot."""
    cases = [*_QUICK, *_PACKED, *_reach(variant), *_decode_reach(variant)]
    cases += _own(variant, _QUICK[0], _PACKED_OWN, scheduled, gpu)
    if gpu:
        cases.append(_FULL_TILES)
    if others := all_others(variant, _DECODED.problem):
        cases.append(replace(_DECODED, params=others))
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
    # dQ comes from one kernel in the dense cases, and from another in the packed ones.
    own = _own(variant, _GRADIENTS[0], replace(_PACKED_OWN, backward=_APART), scheduled, gpu)
    cases = [*_GRADIENTS, *_PACKED_GRADIENTS, *reach, *own]
    cases += _FULL_TILES_OF_GRADIENTS if gpu else ()
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


# Where few queries have a mask without limits, keys are walked in chunks: with as many heads as here each program has
# all keys of one, more than a chunk.
_IN_CHUNKS = Case("decode, keys in chunks", problem_of("2 8/8 1x1100 16/16", "float32"))


def _own(variant: Variant, dense: Case, packed: Case, scheduled: bool, gpu: bool) -> list[Case]:
    """What a variant's params, inputs and schedule ask for, on these problems."""
    cases = [*_params(variant, dense), *_asked(variant, dense, scheduled)]
    cases += [replace(case, name=f"packed, {case.name}") for case in _packed(variant, packed, scheduled)]
    if scheduled:
        cases += _in_stretches(variant, dense.backward, gpu)
        cases += [] if dense.backward else [_IN_CHUNKS]
    prefix = "gradients, " if dense.backward else ""
    return [replace(case, name=prefix + case.name) for case in cases]


def _packed(variant: Variant, base: Case, scheduled: bool) -> list[Case]:
    """The same of packed sequences, for which one case has other values of all params."""
    others = all_others(variant, base.problem)
    cases = [replace(base, name="other params", params=others)] if others else []
    return cases + _asked(variant, base, scheduled)


def _asked(variant: Variant, base: Case, scheduled: bool) -> list[Case]:
    """`base` for each thing that dropout, inputs and a schedule let a caller say."""
    cases: list[Case] = []
    if variant.dropout is not None:
        cases.append(replace(base, name="without dropout", drops=False))
    if any(i.default for i in variant.inputs):
        cases.append(replace(base, name="default inputs", defaults=True))
    if any(dim.may_be_one for i in variant.inputs for dim in i.dims):
        cases.append(replace(base, name="broadcast inputs", broadcast=True))
    if scheduled:
        cases.append(replace(base, name="planned", planned=True))
    return cases


def _in_stretches(variant: Variant, backward: Backward | None, gpu: bool) -> list[Case]:
    """Where inputs decide which tiles need the mask: while their values change from key to key each tile needs it."""
    if not any(along(dim) for tensor in variant.inputs for dim in tensor.dims):
        return []
    # Of a stretch some tiles lie inside, also those of a GPU, which are larger. Some of these end behind the last
    # query: of a dense sequence, and of a packed one where the longest fills its tiles.
    n = 4 if gpu else 1
    dense = Case("inputs in stretches", problem_of(f"2 1/1 {170 * n}x{290 * n} 24/24", "float32"), SMALL, stretches=3)
    packed = packed_case("packed, inputs in stretches", ((100 * n, 170 * n), (128 * n, 90 * n)), "2/1 24/24", "float32")
    cases = dense, replace(packed, stretches=2)
    return [replace(case, backward=backward and _APART) for case in cases]


def _backward(cases: Iterable[Case]) -> list[Case]:
    """The problems for gradients, each kind of loss in turn."""
    kinds = cycle((_FUSED, _EXPANDED, _UNEVEN))
    return [
        replace(case, name=f"{case.name}, gradients", config=SMALL, backward=kind)
        for case, kind in zip(cases, kinds, strict=False)
    ]


def _reach(variant: Variant) -> list[Case]:
    """Lengths past the largest integer of the expressions and shapes: a window of 1023 shows nothing at length 200, and
    an input [kv_len // 1000] has nothing there. Of packed sequences one is as long, behind a short one."""
    tiles = Config(64, 128, 4, 1)
    dense = [
        Case(name, problem_of(f"1 2/1 {q_len}x{kv_len} 32/32", "float32"), tiles)
        for name, (q_len, kv_len) in lengths_past(variant, 140).items()
    ]
    packed = [
        packed_case(f"packed, {name}", ((9, 17), own), "2/1 32/32", "float32", config=tiles)
        for name, own in lengths_past(variant, 70).items()
    ]
    return [*dense, *packed]


def _decode_reach(variant: Variant) -> list[Case]:
    """The same of few queries, which another kernel has, where that is past the keys of its other cases."""
    return [
        Case(f"decode, {name}", problem_of(f"1 2/1 {q_len}x{kv_len} 16/16", "float32"))
        for name, (q_len, kv_len) in lengths_past(variant, 3).items()
        if kv_len > 700
    ]


def _params(variant: Variant, base: Case) -> list[Case]:
    """Each runtime param at other values than the one in the spec."""
    return [
        replace(base, name=f"{param.name} = {value}", params=((param.name, value),))
        for param in variant.runtime_params
        for value in other_values(param, base.problem)
    ]


def _within(variant: Variant, case: Case) -> Params:
    """A case's params, with those that would reach past its keys brought inside: a longer prefix hides the mask."""
    given = dict(case.params)
    kv_len = case.problem.kv_len
    inside = max(1, kv_len // 3)
    large = {p.name: inside for p in variant.runtime_params if type(p.value) is int and p.value > kv_len}
    return tuple((large | given).items())


def _tuned(variant: Variant) -> list[Case]:
    """What the spec is tuned for."""
    return [
        Case(f"tuned for {dtype} {d}", problem_of(f"1 4/2 1000x1024 {d}/{d}", dtype))
        for dtype, d in product(variant.dtypes, variant.head_dims)
    ]
