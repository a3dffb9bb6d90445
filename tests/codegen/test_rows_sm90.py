"""The mask of the Hopper kernels for dK and dV, by rows that see a key and what else there is, hides what it should."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from flashgen.analysis.facts import facts_of
from flashgen.codegen.kernels.backward_kv_sm90 import BackwardKvSm90View, backward_kv_sm90_view
from flashgen.codegen.pairwise import make
from flashgen.runtime.device import arithmetic
from flashgen.runtime.device.sm90 import positions
from flashgen.spec import load

MASKS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "below": {"mask": "k <= q"},
    "window": {"mask": "(k <= q) & (q - k < 37)"},
    "both sides": {"mask": "abs(q - k) <= 20"},
    "up to a row": {"mask": "q < 45"},
    "prefix": {"mask": "(k <= q) | (k < 45)"},
    "documents": {
        "mask": "(k <= q) & (t[b, q] == t[b, k])",
        "inputs": {"t": {"shape": ["batch", "kv_len"], "dtype": "int32"}},
    },
    "a range by key": {"mask": "(q >= t[k]) & (q - k < 50)", "inputs": {"t": {"shape": ["kv_len"], "dtype": "int64"}}},
    "a window by head": {
        "mask": "(k <= q) & (q - k < t[h])",
        "inputs": {"t": {"shape": ["heads"], "dtype": "int32"}},
    },
    "dilated": {"mask": "(k <= q) & ((q - k) % 4 == 0)"},
    "with a score": {"mask": "k <= q", "score": "abs(score)"},
}
LENGTHS = [(1, 1), (64, 64), (110, 64), (40, 110), (97, 97)]
BM, BN = 16, 32
FAR = 1 << 40


class Pointer:
    """An address in a tensor: what the kernel's lines add to and load from."""

    def __init__(self, values: torch.Tensor, at: Any = 0) -> None:
        self.values, self.at = values, at

    def __add__(self, by: Any) -> Pointer:
        return Pointer(self.values, self.at + by)


def _both(function: Any) -> Any:
    return lambda a, b: function(torch.as_tensor(a), torch.as_tensor(b))


GL = SimpleNamespace(
    maximum=_both(torch.maximum), minimum=_both(torch.minimum), int64=torch.int64, int32=torch.int32,
    constexpr=int, where=lambda c, a, b: torch.where(c, torch.as_tensor(a), torch.as_tensor(b)),
    arange=lambda first, last, layout: torch.arange(first, last), load=lambda p: p.values.flatten()[p.at],
    cast=lambda x, dtype: torch.as_tensor(x, dtype=dtype),
)  # fmt: skip


def functions(module: ModuleType) -> str:
    """The texts of a module's functions, without decorators."""
    text = inspect.getsource(module)
    defined = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return "\n".join(ast.get_source_segment(text, node) or "" for node in defined)


DEVICE = f"{functions(arithmetic)}\n{functions(positions)}"


def shown(
    view: BackwardKvSm90View, start: int, col0: int, q_len: int, kv_len: int, values: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Which pairs the kernel's own lines leave of a tile, [keys, rows]."""
    cols = col0 + torch.arange(BN)
    rows = start + torch.arange(BM)
    names: dict[str, Any] = {"gl": GL, "tl": GL, "start": start, "BM": BM}
    names |= {"q_len": torch.tensor(q_len), "kv_len": torch.tensor(kv_len)}
    names |= {"row_layout": None, "cols": cols, "k": cols.clamp(max=kv_len - 1)[:, None], "scale": 1.0}
    names |= {name: torch.tensor(0) for name in ("b", "h", "begin_k")}
    names |= {"t_ptr": Pointer(values), "stride_t_0": kv_len}
    offset = eval(view.q_offset, {}, names) if view.q_offset else 0  # noqa: S307 - the kernel's own texts, on numbers
    names |= {"rows": rows, "q": (rows.clamp(max=q_len - 1) + offset)[None, :]}
    names["queries"] = names["q"]
    exec(DEVICE, names)  # noqa: S102 - the texts of the device
    for function in view.functions:
        body = "\n    ".join((*function.lines, f"return {function.result}"))
        exec(f"def {function.name}({', '.join(function.names)}):\n    {body}", names)  # noqa: S102
    exec("\n".join((*view.prologue, *view.seen.loads)), names)  # noqa: S102
    return eval(view.seen.shown, names).expand(BN, BM)  # noqa: S307


@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
@pytest.mark.parametrize("name", MASKS)
def test_a_mixed_tile_keeps_what_the_mask_shows(name: str, align: str) -> None:
    variant = load({"name": "some", "description": "Some.", "align": align, **MASKS[name]})
    view = backward_kv_sm90_view(facts_of(variant))
    for q_len, kv_len in LENGTHS:
        places = torch.arange(kv_len)
        values = places // 40 if name == "documents" else torch.where(places % 7 == 0, -FAR, places - 20)
        values = torch.where(places % 5 == 0, FAR, values) if name == "a range by key" else values
        values = torch.tensor([37]) if name == "a window by head" else values
        inputs = {"t": values[None] if name == "documents" else values} if variant.inputs else {}
        sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "q_len": q_len, "kv_len": kv_len, "head_dim": 16}
        zero = torch.zeros((), dtype=torch.int64)
        seen = make(variant, sizes, inputs).mask(zero, zero, torch.arange(q_len)[:, None], torch.arange(kv_len)[None])
        expected = torch.zeros(BN * (kv_len // BN + 1), BM * (q_len // BM + 1), dtype=torch.bool)
        expected[:kv_len, :q_len] = torch.as_tensor(seen).expand(q_len, kv_len).T
        for col0 in range(0, kv_len, BN):
            for start in range(0, q_len, BM):
                got = shown(view, start, col0, q_len, kv_len, values)
                # Rows beyond the last have a log-sum-exp of infinity; only a score of its own may need more.
                rows = BM if view.score else q_len - start
                assert torch.equal(got[:, :rows], expected[col0 : col0 + BN, start : start + BM][:, :rows])


def test_what_a_mask_reads_of_each_row_is_loaded_ahead() -> None:
    seen = {name: backward_kv_sm90_view(facts_of(load({"name": "some", **spec}))).seen for name, spec in MASKS.items()}
    assert [name for name, rows in seen.items() if rows.loads] == ["documents"]
    assert [name for name, rows in seen.items() if rows.rest] == ["documents", "dilated"]


def test_positions_that_are_at_hand_anyhow_are_compared_as_they_are() -> None:
    seen = backward_kv_sm90_view(facts_of(load({"name": "some", **MASKS["dilated"]}))).seen
    assert not seen.by_place
    assert not seen.lines
