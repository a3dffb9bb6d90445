"""Schedules are exact: a tile is skipped only if no pair in it is visible, and runs unmasked only if all are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from expression_strategies import expressions
from gallery import NAMES, VARIANTS
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from test_random_expressions import JOINED, MASK_SCOPE, variant_of

from flashgen.codegen import generate, load_module, uses_schedule
from flashgen.lang.evaluate import evaluator
from flashgen.lang.nodes import Type
from flashgen.lang.traversal import variables
from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.spec import load
from flashgen.spec.variant import Sample, Variant

NONE, MIXED, FULL = range(3)

SPECS = {
    "two windows": {"mask": "(abs(q - k) <= 20) | (abs(q - k - 60) <= 5)"},
    "blocks on a diagonal": {"mask": "q // 32 == k // 32"},
    "by head": {"mask": "(h == 0) | (k % 3 == 0)"},
    "by batch": {"mask": "(k + 32 * b) // 64 != q // 64"},
    "top left": {"mask": "(k // 40) != (q // 40)", "align": "top_left"},
    "documents, not causal": {
        "mask": "doc[b, q] == doc[b, k]",
        "inputs": {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}},
    },
    "nested": {
        "mask": "near[h, doc[b, k]] > q - k",
        "inputs": {
            "near": {"shape": ["heads", "docs"], "dtype": "int64"},
            "doc": {"shape": ["batch", "kv_len"], "dtype": "uint8"},
        },
    },
}


def visible(variant: Variant, problem: Problem, call: Call) -> torch.Tensor:
    """bool [batch, heads, q_len, kv_len], pair by pair."""
    p = problem
    sizes = {"heads": p.heads, "kv_heads": p.kv_heads, "q_len": p.q_len, "kv_len": p.kv_len, "head_dim": p.head_dim}
    for tensor in variant.inputs:
        sizes |= {d.binds: call.inputs[tensor.name].shape[axis] for axis, d in enumerate(tensor.dims) if d.binds}
    tensors = {name: tensor.tolist() for name, tensor in call.inputs.items()}
    shift = p.kv_len - p.q_len if variant.align == "bottom_right" else 0

    shown, given = evaluator(variant.mask), {**sizes, **call.params}

    def pair(b: int, h: int, row: int, k: int) -> bool:
        at = {"b": b, "h": h, "kv_h": h // (p.heads // p.kv_heads), "q": row + shift, "k": k}
        return bool(shown(given | at, tensors))

    # What does not tell batch elements or heads apart is evaluated for the first alone.
    named = variables(variant.mask)
    batch, heads = p.batch if "b" in named else 1, p.heads if named & {"h", "kv_h"} else 1
    rows = [
        [[[pair(b, h, row, k) for k in range(p.kv_len)] for row in range(p.q_len)] for h in range(heads)]
        for b in range(batch)
    ]
    return torch.tensor(rows).expand(p.batch, p.heads, -1, -1)


def expected_states(seen: torch.Tensor, BM: int, BN: int) -> torch.Tensor:
    """The class of each tile; a tile that reaches past the last key needs the mask whatever it shows."""
    batch, heads, q_len, kv_len = seen.shape
    states = torch.empty(batch, heads, -(-q_len // BM), -(-kv_len // BN), dtype=torch.long)
    for i, row in enumerate(range(0, q_len, BM)):
        for j, start in enumerate(range(0, kv_len, BN)):
            tile = seen[:, :, row : row + BM, start : start + BN].flatten(2)
            full = tile.all(-1) & (start + BN <= kv_len)
            states[:, :, i, j] = torch.where(full, FULL, torch.where(tile.any(-1), MIXED, NONE))
    return states


def planned_states(plan: object, shape: torch.Size) -> torch.Tensor:
    """The class of each tile as a plan's lists have it; each tile may stand in one list, once."""
    counts, tiles = plan.counts.tolist(), plan.tiles.tolist()  # type: ignore[attr-defined]
    states = torch.full(plan.tiles.shape, NONE)  # type: ignore[attr-defined]
    for b, heads in enumerate(tiles):
        for h, rows in enumerate(heads):
            for i, row in enumerate(rows):
                mixed, full, _ = counts[b][h][i]
                listed = row[:mixed] + row[len(row) - full :]
                assert len(set(listed)) == len(listed) <= len(row)
                states[b, h, i, row[:mixed]] = MIXED
                states[b, h, i, row[len(row) - full :]] = FULL
    return states.expand(shape)


def check(module: ModuleType, call: Call, seen: torch.Tensor, BM: int, BN: int) -> torch.Tensor:
    """The states of the plan, after comparing them with the brute-force ones."""
    plan = module.plan(call.q, call.k, call.v, **call.keywords, config=Config(BM, BN, 4, 1))
    states = expected_states(seen, BM, BN)
    assert torch.equal(planned_states(plan, states.shape), states)
    return states


def check_use(module: ModuleType, call: Call) -> None:
    """A plan that is given changes nothing."""
    config, arguments = Config(32, 32, 4, 1), (call.q, call.k, call.v)
    plan = module.plan(*arguments, **call.keywords, config=config)
    out, lse = module.attention(*arguments, **call.keywords, config=config, return_lse=True)
    again, lse_again = module.attention(*arguments, **call.keywords, plan=plan, return_lse=True)
    assert torch.equal(out, again) and torch.equal(lse, lse_again)


@pytest.mark.parametrize("name", [name for name in NAMES if uses_schedule(VARIANTS[name])])
def test_the_gallery(gallery_module, name: str) -> None:
    variant = VARIANTS[name]
    # More than the hints ask for, so that short lengths have something of everything.
    denser = tuple((name, Sample(segments=3) if s.segments else Sample(density=0.2)) for name, s in variant.samples)
    variant = Variant(**{**vars(variant), "samples": denser})
    problem = Problem(2, 2, 1, 70, 290, 16, 16, "float32")
    call = make_inputs(variant, problem)
    states = check(gallery_module(name), call, visible(variant, problem, call), 32, 32)
    assert len(states.unique()) > 1
    check_use(gallery_module(name), call)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(70, 170), (170, 70)])
def test_masks_of_all_kinds(name: str, q_len: int, kv_len: int, tmp_path: Path) -> None:
    variant = load({"name": "planned", **SPECS[name]})
    assert uses_schedule(variant)
    module = load_module(generate(variant, tmp_path))
    problem = Problem(2, 2, 2, q_len, kv_len, 16, 16, "float32")
    call = make_inputs(variant, problem)
    seen = visible(variant, problem, call)
    sizes = [(32, 32), (64, 32)] if q_len < kv_len else [(32, 64)]
    states = [check(module, call, seen, BM, BN).flatten() for BM, BN in sizes]
    assert len(torch.cat(states).unique()) > 1
    check_use(module, call)


FLOATS_OF_KEYS_AND_QUERIES = {
    "before": "x[b, k] < y[b, q]",
    "not from then on": "not (x[b, k] >= y[b, q])",
    "alike": "x[b, k] != y[b, q]",
    "not too far": "not (abs(x[b, k] - y[b, q]) > 200)",
    "product": "x[b, k] * y[b, q] > -1.0",
    "sum of products": "sum(i, 2, wide[b, k, i] * y[b, q]) < 1e9",
}


@pytest.mark.parametrize("mask", FLOATS_OF_KEYS_AND_QUERIES.values(), ids=FLOATS_OF_KEYS_AND_QUERIES)
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_floats_that_have_no_place_in_an_order(mask: str, odd: float, tmp_path: Path) -> None:
    shapes = {"x": ["batch", "kv_len"], "y": ["batch", "q_len"], "wide": ["batch", "kv_len", 2]}
    inputs = {name: {"shape": shape, "dtype": "float32"} for name, shape in shapes.items() if name in mask}
    variant = load({"name": "planned", "mask": mask, "inputs": inputs})
    problem = Problem(2, 1, 1, 32, 96, 16, 16, "float32")
    call = make_inputs(variant, problem)
    for name, tensor in call.inputs.items():
        tensor.copy_(torch.arange(tensor.numel()).view_as(tensor) % 32 + (100 if name == "y" else 0))
        # Among other numbers, and alone in a tile.
        tensor[0, 5] = tensor[1, 32:64] = odd
    call.inputs["y"][0] = 0.0
    check(load_module(generate(variant, tmp_path)), call, visible(variant, problem, call), 16, 16)


SLOPES = {
    "one": "abs(k - 3) * c[h] <= q",
    "two that cancel": "k * c[h] - k * c[h] <= q",
    "of a call": "k * rate <= q",
    "of queries": "(q - 40) * c[h] < k",
}


@pytest.mark.parametrize("mask", SLOPES.values(), ids=SLOPES)
@pytest.mark.parametrize("slope", [float("nan"), float("inf"), -float("inf"), 0.5])
def test_positions_times_a_slope_that_may_be_anything(mask: str, slope: float, tmp_path: Path) -> None:
    """What is not finite for one position alone, as inf * 0, leaves doubt of the whole tile."""
    inputs = {"c": {"shape": ["heads"], "dtype": "float32"}} if "c[h]" in mask else {}
    params = {} if inputs else {"rate": {"value": 1.0, "runtime": True}}
    variant = load({"name": "sloped", "mask": mask, "inputs": inputs, "params": params})
    problem = Problem(1, 1, 1, 48, 64, 16, 16, "float32")
    call = make_inputs(variant, problem)
    for tensor in call.inputs.values():
        tensor.fill_(slope)
    call.params.update(dict.fromkeys(params, slope))
    check(load_module(generate(variant, tmp_path)), call, visible(variant, problem, call), 16, 16)


def test_products_of_finite_numbers_that_are_not(tmp_path: Path) -> None:
    """In float32 4 * 1e38 is infinite, and infinity less itself hides a pair."""
    inputs = {name: {"shape": ["heads"], "dtype": "float32"} for name in ("c", "d")}
    variant = load({"name": "sloped", "mask": "k * c[h] - k * d[h] <= q", "inputs": inputs})
    call = make_inputs(variant, Problem(1, 1, 1, 64, 64, 16, 16, "float32"))
    for tensor in call.inputs.values():
        tensor.fill_(1e38)
    seen = (torch.arange(64) < 4).expand(1, 1, 64, 64)
    assert check(load_module(generate(variant, tmp_path)), call, seen, 16, 16).unique().tolist() == [NONE, MIXED]


_ROWS, _KEYS = torch.arange(64.0)[:, None], torch.arange(64.0)
_UNDEFINED = ((_ROWS - _KEYS) * 1e37 - (_ROWS + _KEYS) * 1e37).isnan()
OVERFLOWS = {
    "a cosine of infinity": ("cos(k * 1e38) < q + 2.0", _KEYS < 4),
    "infinity times nothing": ("k * 1e38 * 0.0 < q + 2.0", _KEYS < 4),
    "a bound of infinity less itself": ("clamp((q - k) * c[h] - (q + k) * c[h], -1.0, 1.0) < 2.0", ~_UNDEFINED),
    "not that": ("not (clamp((q - k) * c[h] - (q + k) * c[h], -1.0, 1.0) < 2.0)", _UNDEFINED),
}


@pytest.mark.parametrize(("mask", "seen"), OVERFLOWS.values(), ids=OVERFLOWS)
def test_what_float32_does_not_hold_on_the_way_to_small_numbers(mask: str, seen: torch.Tensor, tmp_path: Path) -> None:
    """Its cosine is NaN, and so is what a bound seems to keep in order."""
    inputs = {"c": {"shape": ["heads"], "dtype": "float32"}} if "c[h]" in mask else {}
    variant = load({"name": "planned", "mask": mask, "inputs": inputs})
    call = make_inputs(variant, Problem(1, 1, 1, 64, 64, 16, 16, "float32"))
    for tensor in call.inputs.values():
        tensor.fill_(1e37)
    check(load_module(generate(variant, tmp_path)), call, seen.expand(1, 1, 64, 64), 16, 16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planned")


@settings(max_examples=settings().max_examples // 6, suppress_health_check=[HealthCheck.too_slow])
@given(
    drawn=expressions(Type.BOOL, MASK_SCOPE),
    joined=st.sampled_from(JOINED),
    align=st.sampled_from(["bottom_right", "top_left"]),
)
def test_random_masks(folder: Path, drawn: str, joined: str, align: str) -> None:
    variant = variant_of("score", joined.format(drawn), align)
    assume(uses_schedule(variant))
    problem = Problem(2, 2, 1, 50, 70, 16, 16, "float32")
    call = make_inputs(variant, problem)
    check(load_module(generate(variant, folder)), call, visible(variant, problem, call), 32, 32)


@pytest.mark.parametrize("lengths", [(20, 20), (20, 32), (32, 9)], ids=str)
def test_rows_behind_the_last_query_of_a_full_tile_give_keys_no_gradient(
    tmp_path: Path, lengths: tuple[int, int]
) -> None:
    """Their scores are 0, where this one has no slope."""
    tensor = {"shape": ["batch", "kv_len"], "dtype": "int32"}
    spec = {"name": "roots", "inputs": {"doc": tensor}, "score": "sqrt(abs(score))", "mask": "doc[b, k] != q % 64 + 1"}
    module = load_module(generate(load(spec), tmp_path))
    random = torch.Generator().manual_seed(0)
    q, k, v, d_out = (torch.randn(sum(lengths), 2, 16, generator=random) for _ in range(4))
    # All tiles of the first keys are full, those of the others mixed.
    doc = torch.cat([(torch.arange(length) > 15) * 2 for length in lengths]).int()
    ends = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32)
    config = "BM=16 BN=16 num_warps=4 num_stages=1"
    options = {"config": config, "backward_config": {"backward_kv": f"{config} fuse_dq=0", "backward_q": config}}

    def gradients(tensors: list[torch.Tensor], attend: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        leaves = [each.clone().requires_grad_() for each in tensors]
        return torch.autograd.grad(attend(*leaves), leaves, d_out.to(tensors[0].dtype))

    def packed(*leaves: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = module.attention_varlen(*leaves, ends, ends, *[max(lengths)] * 2, doc=doc, **options)
        return out

    def one_by_one(attend: Callable[..., torch.Tensor], *leaves: torch.Tensor) -> torch.Tensor:
        parts = (each.transpose(0, 1)[None].split(lengths, 2) for each in leaves)
        outs = [attend(*own) for own in zip(*parts, doc[None].split(lengths, 1), strict=True)]
        return torch.cat(outs, 2)[0].transpose(0, 1)

    def dense(*leaves: torch.Tensor) -> torch.Tensor:
        return one_by_one(lambda q, k, v, doc: module.attention(q, k, v, doc=doc, **options), *leaves)

    def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, doc: torch.Tensor) -> torch.Tensor:
        hidden = doc[:, None, None, :] == torch.arange(q.shape[2])[:, None] + 1
        return (q @ k.mT / 4).abs().sqrt().masked_fill(hidden, -torch.inf).softmax(-1) @ v

    wanted = gradients([each.double() for each in (q, k, v)], lambda *leaves: one_by_one(eager, *leaves))
    for attend in (packed, dense):
        for found, right in zip(gradients([q, k, v], attend), wanted, strict=True):
            torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)
