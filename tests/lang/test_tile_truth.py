from __future__ import annotations

from itertools import product

import pytest
from expression_strategies import expressions
from hypothesis import event, given
from hypothesis import strategies as st
from language_world import RUNTIME, SCOPE, SIZES, TENSORS, compile, pairs
from mask_strategies import drawn

from flashgen.lang.evaluate import evaluate, evaluator
from flashgen.lang.fold import nothing
from flashgen.lang.nodes import Expr, Op, Reduction, Type, const
from flashgen.lang.reductions import joined
from flashgen.lang.scope import Scope
from flashgen.lang.tiles import tile_truth
from flashgen.lang.traversal import substitute, transform, variables

MASK_SCOPE = Scope({name: node for name, node in SCOPE.names.items() if name != "score"}, SCOPE.tensors)
Tile = tuple[range, range]


@st.composite
def tiles(draw: st.DrawFn) -> Tile:
    """Queries, some of them in front of the first key, and keys."""
    q_first, k_first = draw(st.integers(-3, SIZES["kv_len"] - 1)), draw(st.integers(0, SIZES["kv_len"] - 1))
    q_last = draw(st.integers(q_first, SIZES["kv_len"] - 1))
    k_last = draw(st.integers(k_first, SIZES["kv_len"] - 1))
    return range(q_first, q_last + 1), range(k_first, k_last + 1)


def written_out(expr: Expr, at: dict) -> Expr:
    """The expression without reductions, whose lengths are known here."""

    def out(node: Expr) -> Expr:
        if not isinstance(node, Reduction):
            return node
        count = int(evaluate(node.index.length, at, TENSORS))
        terms = [substitute(node.term, {node.index: const(i)}) for i in range(count)]
        return joined(node.name, terms) if terms else nothing(node.name, node.type)

    return transform(expr, out)


def at_corners(expr: Expr, tile: Tile, at: dict) -> bool | int | float:
    """What the kernel would find: reductions over the tile's rows or columns, corners elsewhere."""

    def reduced(node: Expr) -> Expr:
        if not isinstance(node, Op) or node.name not in ("tile_min", "tile_max"):
            return node
        values = [evaluate(node.args[0], {**at, "q": q, "k": k}, TENSORS) for q in tile[0] for k in tile[1]]
        return const(min(values) if node.name == "tile_min" else max(values))

    corners = {"q_first": tile[0][0], "q_last": tile[0][-1], "k_first": tile[1][0], "k_last": tile[1][-1]}
    plain = transform(written_out(expr, at), reduced)
    assert not variables(plain) & {"q", "k"}
    return evaluate(plain, {**at, **corners}, TENSORS)


def check(mask: Expr, tile: Tile, at: dict) -> None:
    truth = tile_truth(mask)
    shown = [evaluate(mask, {**at, "q": q, "k": k}, TENSORS) for q in tile[0] for k in tile[1]]
    every, some = at_corners(truth.every, tile, at), at_corners(truth.some, tile, at)
    event("doubt" if some and not every else "decided")
    if every:
        assert all(shown)
    if not some:
        assert not any(shown)


@given(text=drawn("mask"), tile=tiles(), at=pairs())
def test_what_tiles_say_of_a_mask_of_positions_is_true(text: str, tile: Tile, at: dict) -> None:
    check(compile(text, Type.BOOL), tile, at)


@given(text=expressions(Type.BOOL, MASK_SCOPE), tile=tiles(), at=pairs())
def test_what_tiles_say_of_any_mask_is_true(text: str, tile: Tile, at: dict) -> None:
    check(compile(text, Type.BOOL), tile, at)


@pytest.mark.parametrize("compare", ["<= 1.5", "> 0.75", "== 1.5", "!= 0.5"])
@pytest.mark.parametrize(
    "value",
    [
        "0.5 * q - 0.25 * k", "0.5 * q + 0.25 * k", "abs(0.5 * q - k)", "-(k - 0.5 * q)", "min(0.5 * q, 1.0 * k)",
        "max(0.5 * q, 3.0 - k)", "(0.5 * q - k) * (0.25 * k - 1.0)", "min(q - k, 2) * 0.5", "abs(2.5 - (q + k)) * 0.5",
        "max(q % 3, k % 2) * 0.75", "(q // 2 - k // 3) * 0.25", "rel[h, q] - 0.5 * k", "rel[h, k] - rel[h, q]",
    ],
)  # fmt: skip
def test_what_tiles_say_of_each_operation_is_true(value: str, compare: str) -> None:
    """Of tiles of some sizes."""
    mask, at = compile(f"{value} {compare}", Type.BOOL), {**SIZES, **RUNTIME, "b": 1, "h": 2, "kv_h": 1}
    shows = evaluator(mask)
    shown = {(q, k): shows({**at, "q": q, "k": k}, TENSORS) for q in range(7) for k in range(7)}
    truth = tile_truth(mask)
    decided = 0
    for q, k, height, width in product((0, 1, 3, 4), (0, 1, 3, 4), (1, 3), (1, 3)):
        tile = range(q, q + height), range(k, k + width)
        inside = [shown[place] for place in product(*tile)]
        every, some = (at_corners(each, tile, at) for each in (truth.every, truth.some))
        assert not every or all(inside), tile
        assert some or not any(inside), tile
        decided += every or not some
    assert decided


@pytest.mark.parametrize(
    "text",
    [
        "(q - k) % 3 < 2",
        "(q - k) % 4 == 0",
        "abs(q - k) % 3 != 1",
        "(q - 2 * k) // 3 > n",
        "(q - 2 * k) // -3 > n - 4",
        "(q + k) % -3 < -1",
        "k // -2 + q > n",
        "(q - k) * (q + k) < 9",
        # Beyond 64 bits.
        "(q - k) * 2**62 + q >= 0",
        "k * 2**61 + q >= 0",
        # Infinity times 0.
        "q * k * 1e308 * 10.0 * (k - 1) > -1.0",
    ],
)
@given(tile=tiles(), at=pairs())
def test_what_tiles_say_of_arithmetic_along_both_axes_is_true(text: str, tile: Tile, at: dict) -> None:
    check(compile(text, Type.BOOL), tile, at)


@pytest.mark.parametrize(
    "text",
    [
        "k <= q",
        "abs(q - k) <= W",
        "(q - k < 4) & (k <= q)",
        "k < n",
        "keep[b, k]",
        "doc[b, q] <= doc[b, k]",
        "keep[b, q] | (k < 2)",
    ],
)
@given(tile=tiles(), at=pairs())
def test_corners_decide_masks_that_are_monotone(text: str, tile: Tile, at: dict) -> None:
    mask = compile(text, Type.BOOL)
    truth = tile_truth(mask)
    shown = [evaluate(mask, {**at, "q": q, "k": k}, TENSORS) for q in tile[0] for k in tile[1]]
    assert at_corners(truth.every, tile, at) == all(shown)
    assert at_corners(truth.some, tile, at) == any(shown)


@given(tile=tiles(), at=pairs())
def test_far_from_the_diagonal_a_dilated_tile_is_known_to_be_empty(tile: Tile, at: dict) -> None:
    truth = tile_truth(compile("((q - k) % 2 == 0) & (q - k >= 0)", Type.BOOL))
    assert at_corners(truth.some, tile, at) <= (tile[0][-1] >= tile[1][0])


def test_a_mask_free_of_positions_is_its_own_answer() -> None:
    truth = tile_truth(compile("flag & (n > 2)", Type.BOOL))
    assert truth.every is truth.some is compile("flag & (n > 2)")
