"""What is said of where gradients go holds for every pair of a small problem, whatever the index."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from expression_strategies import expressions
from hypothesis import event, given
from hypothesis import strategies as st
from language_world import RUNTIME, SCOPE, SIZES, TENSORS, compile

from flashgen.lang.derivative import LoadSite, gradients
from flashgen.lang.evaluate import evaluate
from flashgen.lang.intervals import Ranges
from flashgen.lang.learned import Placement, Sharing, placement
from flashgen.lang.nodes import Expr, Gather, Type, const, gather, var
from flashgen.lang.show import show

DTYPES = {
    "doc": "int32",
    "off": "int8",
    "rel": "float32",
    "keep": "bool",
    "bias": "float32",
    "gain": "float32",
    "shift": "int64",
}
REL_SIZES = (var("heads", Type.INT), const(3))


def placed(text: str) -> Placement:
    ((_, (site,)),) = gradients(compile(f"score + rel[{text}]"), ["rel"]).sites
    return placement(site, REL_SIZES, Ranges(DTYPES, frozenset({"docs"})))


def places(q_len: int, kv_len: int, heads: int = 4, bottom_right: bool = True) -> Iterator[dict]:
    """Every pair of every head."""
    for b in range(SIZES["batch"]):
        for h in range(heads):
            for row in range(q_len):
                for k in range(kv_len):
                    yield {
                        **SIZES, **RUNTIME, "b": b, "h": h, "kv_h": h // 2, "k": k, "q_len": q_len, "kv_len": kv_len,
                        "q": row + (kv_len - q_len) * bottom_right, "score": (7 * row + 3 * k) / 4,
                    }  # fmt: skip


PLACES = list(places(SIZES["q_len"], SIZES["kv_len"]))


@pytest.mark.parametrize(
    ("index", "sharing", "offset", "by_distance", "uniform"),
    [
        ("h, 0", Sharing.ALL, "h * 3", None, None),
        ("kv_h, off[b] % 3", Sharing.ALL, "min(kv_h, heads - 1) * 3 + off[b] % 3", None, None),
        ("h, q % 3", Sharing.ROW, "h * 3 + q % 3", None, None),
        ("h, doc[b, k] % 3", Sharing.COLUMN, "h * 3 + doc[b, k] % 3", None, None),
        (
            "h, clamp(q - k, -1, 1) + 1",
            Sharing.DIAGONAL,
            "h * 3 + (clamp(q - k, -1, 1) + 1)",
            "h * 3 + clamp(q_first - k, -1, 1) + 1",
            "clamp(q_first - k_last, -1, 1) == clamp(q_last - k_first, -1, 1)",
        ),
        (
            "h, where(k > q, 2, min(abs(k - q), 1))",
            Sharing.DIAGONAL,
            "h * 3 + where(k > q, 2, min(abs(k - q), 1))",
            "h * 3 + where(k - q_first > 0, 2, min(abs(k - q_first), 1))",
            "where(q_last < k_first, 2, where(q_first < k_last, "
            "min(2, clamp(0, max(k_first - q_last, -(k_last - q_first)), 1)), "
            "clamp(0, max(k_first - q_last, -(k_last - q_first)), 1))) == "
            "where(q_last < k_first, 2, where(q_first < k_last, "
            "max(2, clamp(-(k_first - q_last), k_last - q_first, 1)), "
            "clamp(-(k_first - q_last), k_last - q_first, 1)))",
        ),
        (
            "h, clamp(q // 4 + k // 4, 0, 2)",
            Sharing.ANY,
            "h * 3 + clamp(q // 4 + k // 4, 0, 2)",
            None,
            "clamp(q_first // 4 + k_first // 4, 0, 2) == clamp(q_last // 4 + k_last // 4, 0, 2)",
        ),
        ("h, (doc[b, q] + k) % 3", Sharing.ANY, "h * 3 + (doc[b, q] + k) % 3", None, None),
        ("h, clamp(floor(score), 0, 2)", Sharing.ANY, "h * 3 + clamp(floor(score), 0, 2)", None, None),
    ],
)
def test_how_pairs_share_elements(
    index: str, sharing: Sharing, offset: str, by_distance: str | None, uniform: str | None
) -> None:
    found = placed(index)
    assert found.sharing is sharing
    assert show(found.offset) == offset
    assert found.by_distance is None or show(found.by_distance) == by_distance
    assert (None if found.uniform is None else show(found.uniform)) == uniform
    assert found.own is None


INDICES = st.one_of(
    expressions(Type.INT, SCOPE, depth=2),
    st.sampled_from([
        "q", "k", "q - k", "k - q + 1", "clamp(q - k, -1, 1) + 1", "abs(q - k)", "2 * (q - k) + off[h]", "q // 2", "h",
        "where(k > q, 1, 0) + min(abs(k - q), 2)", "floor(2.5 - (q - k) / 2)", "doc[b, q]",
        "where(q - k < 2, q - k, min(2 + floor(log((q - k) / 2.0) * gain), 3))", "floor(abs(q - k) / gain)",
        "floor(exp(0.3 * (k - q)))", "floor(sqrt(abs(q - k)))",
        "doc[b, q - k + 2]", "(q - k) % 3", "q // 3 - k // 3", "1", "(q - k) // 2 + h", "min(q, k)",
    ]),
)  # fmt: skip


@given(
    row=INDICES,
    column=INDICES,
    tile=st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 6), st.integers(0, 6)),
)
def test_what_is_said_of_an_index_is_true(row: str, column: str, tile: tuple[int, int, int, int]) -> None:
    found = placed(f"{row}, {column}")
    event(found.sharing.name)
    shared: dict[tuple, int] = {}
    for at in PLACES:
        indices = [evaluate(index, at, TENSORS) for index in found.site.gather.indices]
        inside = [min(max(index, 0), size - 1) for index, size in zip(indices, (4, 3), strict=True)]
        offset = inside[0] * 3 + inside[1]
        assert evaluate(found.offset, at, TENSORS) == offset
        q, k = at["q"], at["k"]
        if found.sharing is not Sharing.ANY:
            key = {"ALL": 0, "ROW": q, "COLUMN": k, "DIAGONAL": q - k}[found.sharing.name]
            assert shared.setdefault((at["b"], at["h"], key), offset) == offset
        if found.by_distance is not None:
            for shift in (-3, 0, 2):
                moved = at | {"q_first": q + shift, "k": k + shift}
                assert evaluate(found.by_distance, moved, TENSORS) == offset
    if found.uniform is not None:
        uniform_tiles_have_one_element(found, tile)


def uniform_tiles_have_one_element(found: Placement, tile: tuple[int, int, int, int]) -> None:
    (first_row, last_row), (first_key, last_key) = sorted(tile[:2]), sorted(tile[2:])
    shift = SIZES["kv_len"] - SIZES["q_len"]
    corners = {"q_first": first_row + shift, "q_last": last_row + shift, "k_first": first_key, "k_last": last_key}
    assert found.uniform is not None
    for at in PLACES:
        inside = first_row + shift <= at["q"] <= last_row + shift and first_key <= at["k"] <= last_key
        if inside and evaluate(found.uniform, at | corners, TENSORS):
            assert evaluate(found.offset, at, TENSORS) == evaluate(found.corner, at | corners, TENSORS)


B, H, KV_H, Q, K, BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN = (
    var(name, Type.INT) for name in ("b", "h", "kv_h", "q", "k", "batch", "heads", "kv_heads", "q_len", "kv_len")
)


def bias(indices: list[Expr], sizes: list[Expr], bottom_right: bool) -> Placement:
    read = gather("bias", tuple(indices), Type.FLOAT)
    assert isinstance(read, Gather)
    return placement(LoadSite(read, const(1.0)), sizes, Ranges(DTYPES, bottom_right=bottom_right))


ROW = compile("q - (kv_len - q_len)")
BIASES: dict[str, tuple[list[Expr], list[Expr], bool, str | None, str]] = {
    "own rows": ([B, H, ROW, K], [BATCH, HEADS, Q_LEN, KV_LEN], True, "True", ""),
    "positions": ([B, H, Q, K], [BATCH, HEADS, KV_LEN, KV_LEN], True, "kv_len >= q_len", ""),
    "positions as rows": (
        [B, H, Q, K], [BATCH, HEADS, Q_LEN, KV_LEN], True, "kv_len >= q_len and q_len >= kv_len", ""
    ),
    "top left": ([B, H, Q, K], [BATCH, HEADS, Q_LEN, KV_LEN], False, "True", ""),
    "no batch": ([H, ROW, K], [HEADS, Q_LEN, KV_LEN], True, "True", "batch"),
    "no heads": ([B, ROW, K], [BATCH, Q_LEN, KV_LEN], True, "True", "heads"),
    "neither": ([K, ROW], [KV_LEN, Q_LEN], True, "True", "heads"),
    "heads of keys": ([B, KV_H, ROW, K], [BATCH, KV_HEADS, Q_LEN, KV_LEN], True, "True", "heads"),
    "backwards": ([H, ROW, compile("kv_len - 1 - k")], [HEADS, Q_LEN, KV_LEN], True, "True", "batch"),
    "fixed size": ([B, H, Q, K], [BATCH, HEADS, const(5), const(6)], False, "5 >= q_len and 6 >= kv_len", ""),
    "heads beyond": ([B, H, Q, K], [BATCH, const(1), Q_LEN, KV_LEN], False, "1 >= heads", ""),
    "fixed heads": ([B, H, Q, K], [BATCH, const(2), Q_LEN, KV_LEN], False, "2 >= heads", ""),
    "groups": (
        [B, compile("h // 3"), ROW, K], [BATCH, HEADS, Q_LEN, KV_LEN], True, "heads - 1 >= (heads - 1) // 3", "heads"
    ),
    "strided groups": (
        [compile("b // 2"), ROW, compile("h % 3 + 1"), K], [const(1), Q_LEN, HEADS, KV_LEN], True,
        "0 >= (batch - 1) // 2 and heads - 1 >= min(3, heads)", "heads",
    ),
    "no groups": ([compile("b // (b + 1)"), ROW, K], [BATCH, Q_LEN, KV_LEN], True, "True", "heads"),
    "every other key": ([H, ROW, compile("k // 2")], [HEADS, Q_LEN, KV_LEN], True, None, ""),
    "sum": ([H, ROW, compile("q + k")], [HEADS, Q_LEN, compile("2 * kv_len")], True, None, ""),
    "by heads": ([H, ROW, compile("k + h")], [HEADS, Q_LEN, compile("kv_len + heads")], True, None, ""),
}  # fmt: skip


@pytest.mark.parametrize(("q_len", "kv_len"), [(3, 5), (5, 3), (4, 4), (1, 7)])
@pytest.mark.parametrize("name", BIASES)
def test_pairs_with_an_element_to_themselves(name: str, q_len: int, kv_len: int) -> None:
    indices, sizes, bottom_right, when, shared_by = BIASES[name]
    found = bias(indices, sizes, bottom_right)
    assert found.sharing is Sharing.ANY
    assert (found.own and show(found.own.when)) == when
    lengths = {"q_len": q_len, "kv_len": kv_len}
    if found.own is None or not evaluate(found.own.when, SIZES | lengths):
        return
    assert found.own.shared_by == shared_by
    all_places = list(places(q_len, kv_len, bottom_right=bottom_right))
    if name != "no groups":
        numbers = [*map(compile, found.own.told_apart), *(group.number for group in found.own.groups)]
        owners = [(*(evaluate(number, at) for number in numbers), at["q"], at["k"]) for at in all_places]
        offsets = [evaluate(found.offset, at) for at in all_places]
        assert len(set(owners)) == len(set(offsets)) == len(set(zip(owners, offsets, strict=True)))
    takes_turns = {"": lambda at: 0, "batch": lambda at: at["b"], "heads": lambda at: (at["b"], at["h"])}[shared_by]
    written = [(takes_turns(at), evaluate(found.offset, at)) for at in all_places]
    assert len(set(written)) == len(written)
