"""A mask by its parts hides the pairs that the whole mask hides, in every tile, also where a part is not asked."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from flashgen.analysis.facts import facts_of
from flashgen.codegen.kernels.forward import forward_view
from flashgen.codegen.kernels.forward_sm90 import ForwardSm90View, forward_sm90_view
from flashgen.spec import load

MASKS = {
    "nothing": "true",
    "window": "(k <= q) & (q - k < 37)",
    "both sides": "abs(q - k) <= 20",
    "ahead": "k <= q + 5",
    "up to a key": "k < 45",
    "prefix": "k <= max(q, 44)",
    "behind and dilated": "(k <= q) & ((q - k) % 4 == 0)",
    "down and up": "(k <= q) & (k >= 50 - q)",
}
LENGTHS = [(1, 1), (64, 64), (150, 150), (150, 64), (40, 150), (129, 97), (16, 200)]
ROWS, BN = 16, 32
GL = SimpleNamespace(maximum=np.maximum, minimum=np.minimum, where=np.where, max=np.max, min=np.min)


def view_of(mask: str, align: str = "bottom_right") -> ForwardSm90View:
    variant = load({"name": "some", "description": "Some.", "mask": mask, "align": align})
    facts = facts_of(variant)
    return forward_sm90_view(facts, forward_view(facts).functions)


def shown(view: ForwardSm90View, row0: int, start: int, q_len: int, kv_len: int) -> np.ndarray:
    """Which pairs of a tile the kernel's own tests leave, [rows, keys], the statements before them run on numbers."""
    names = {"gl": GL, "clip": int, "_visible": None, "row0": row0, "q_len": q_len, "kv_len": kv_len}
    names |= {"ROWS": ROWS, "BN": BN, "start": start, "scale": 1.0}
    offset = eval(view.q_offset, {}, names) if view.q_offset else 0  # noqa: S307
    names["q"] = (np.minimum(row0 + np.arange(ROWS), q_len - 1) + offset)[:, None]
    names["k"] = (start + np.arange(BN))[None, :]
    names |= {"masked_keys": lambda *_, keys=names["k"]: keys, "col_layout": None, "col": names["k"]}
    if not view.mixed.reads_k:
        del names["k"]
    names |= {name: names["q"][index, 0] for name, index in (("q_first", 0), ("q_last", -1))}
    exec("\n".join(view.prologue), names)  # noqa: S102 - the kernel's own lines, on numbers
    for function in view.functions:
        body = "\n    ".join((*function.lines, f"return {function.result}")).replace("tl.", "gl.")
        exec(f"def {function.name}({', '.join(function.names)}):\n    {body}", names)  # noqa: S102
    left = np.ones((ROWS, BN), bool)
    for test in view.mixed.tests:
        if not test.tile or eval(test.tile, names):  # noqa: S307
            left &= eval(test.pair, names)  # noqa: S307
    return left


@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_parts_that_are_asked_say_what_the_mask_says(mask: str, align: str) -> None:
    view = view_of(mask, align)
    rule = compile(mask.replace("true", "k >= 0").replace("max(", "np.maximum("), "mask", "eval")
    for q_len, kv_len in LENGTHS:
        offset = kv_len - q_len if align == "bottom_right" else 0
        for row0 in range(0, q_len, ROWS):
            rows = np.minimum(row0 + np.arange(ROWS), q_len - 1)[:, None] + offset
            for start in range(0, kv_len, BN):
                keys = start + np.arange(BN)[None, :]
                expected = eval(rule, {"np": np, "abs": np.abs, "q": rows, "k": keys}) & (keys < kv_len)  # noqa: S307
                got = shown(view, row0, start, q_len, kv_len)
                # Keys beyond the last are told apart only where the mask itself may show them.
                assert np.array_equal(got & (keys < kv_len), expected & np.ones_like(got))
                assert "kv_len" in str(view.mixed.tests) or not (got & (keys >= kv_len)).any()


def test_one_bound_is_asked_of_every_mixed_tile() -> None:
    (test,) = view_of("k <= q").mixed.tests
    assert test.tile == ""
    assert [test.tile != "" for test in view_of("(k <= q) & ((q - k) % 4 == 0)").mixed.tests] == [False, True]
