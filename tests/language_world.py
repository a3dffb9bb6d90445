"""One small problem for the tests of the language: names, inputs, and values for them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from flashgen.errors import Location
from flashgen.lang import check
from flashgen.lang.nodes import Expr, Type, const, var
from flashgen.lang.scope import Scope, TensorType

AT = Location("v.yaml", 3, 8)
SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 5, "kv_len": 7, "head_dim": 8, "docs": 3}
RUNTIME = {"cap": 1.5, "n": 3, "flag": True}

_INTS = ("b", "h", "kv_h", "q", "k", *SIZES)
SCOPE = Scope(
    names={
        **{name: var(name, Type.INT) for name in _INTS},
        "score": var("score", Type.FLOAT),
        "cap": var("cap", Type.FLOAT),
        "n": var("n", Type.INT),
        "flag": var("flag", Type.BOOL),
        "W": const(3),
        "half": const(0.5),
    },
    tensors={
        "doc": TensorType(Type.INT, 2),
        "off": TensorType(Type.INT, 1),
        "rel": TensorType(Type.FLOAT, 2),
        "keep": TensorType(Type.BOOL, 2),
        "gain": TensorType(Type.FLOAT, 0),
        "shift": TensorType(Type.INT, 0),
    },
)
# Multiples of a quarter, so that comparisons of them are exact in every precision.
TENSORS: dict[str, Any] = {
    "doc": [[0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 2]],
    "off": [0, 4, -2],
    "gain": 1.75,
    "shift": -3,
    "rel": [[-0.5, 1.25, 3.0], [0.0, -2.75, 0.25], [1.0, 1.5, -1.5], [7.25, 0.75, -0.25]],
    "keep": [[True, False, True, True, False, True, True], [False, True, True, False, True, True, False]],
}


def compile(text: str, want: Type | None = None) -> Expr:
    return check.expression(text, SCOPE, AT, want=want)


@st.composite
def pairs(draw: st.DrawFn) -> dict[str, bool | int | float]:
    """A (query, key) pair: a value for every variable of the scope."""
    h = draw(st.integers(0, SIZES["heads"] - 1))
    row = draw(st.integers(0, SIZES["q_len"] - 1))
    return {
        **SIZES,
        **RUNTIME,
        "b": draw(st.integers(0, SIZES["batch"] - 1)),
        "h": h,
        "kv_h": h // 2,
        "q": row + SIZES["kv_len"] - SIZES["q_len"],
        "k": draw(st.integers(0, SIZES["kv_len"] - 1)),
        "score": draw(st.integers(-64, 64)) / 16,
    }
