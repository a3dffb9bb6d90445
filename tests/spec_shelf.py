"""Small specs that ask something of the language which the gallery does not, by what they ask."""

from __future__ import annotations

import math
from typing import Any

Spec = dict[str, Any]


def _runtime(value: bool | int | float) -> dict[str, Any]:
    return {"value": value, "runtime": True}


def doubling(levels: int, first: str, step: str, rest: Spec) -> Spec:
    """A spec with lets a0, a1, ... of which each is a step from the one before it; `rest` reads the last as {a}."""
    lets = {"a0": first}
    for i in range(1, levels):
        lets[f"a{i}"] = step.format(p=f"a{i - 1}", i=i)
    last = f"a{levels - 1}"
    return {"let": lets} | {k: v.format(a=last) if isinstance(v, str) else v for k, v in rest.items()}


SPECS: dict[str, Spec] = {
    "a row's term reads a named dimension": {
        "inputs": {"t": {"shape": ["heads", "n"], "dtype": "int32"}},
        "mask": "t[h, 0] < k",
        "score": "score + 0.1 * (q // n)",
    },
    "named dimensions everywhere": {
        "inputs": {
            "t": {"shape": ["heads", "n"], "dtype": "float32", "grad": True},
            "u": {"shape": ["m", "n"], "dtype": "int32"},
        },
        "mask": "(k % n <= q % m) & (u[q % m, 0] < k + m)",
        "score": "score * (1 + 0.01 * m) + t[h, k % n] + 0.1 * (q // n)",
    },
    "scalars of the caller's": {
        "inputs": {
            "tau": {"shape": [], "dtype": "float32", "grad": True},
            "ahead": {"shape": [], "dtype": "int64"},
            "on": {"shape": [], "dtype": "bool"},
        },
        "mask": "k <= q + ahead",
        "score": "score * tau + 0.1 * tau * (q - k) if on else score / tau",
    },
    "terms over a short axis": {
        "params": {"R": 3, "top": 4},
        "inputs": {
            "qr": {"shape": ["batch", "heads", "kv_len", "R"], "dtype": "float32", "grad": True},
            "kr": {"shape": ["batch", "kv_len", "R"], "dtype": "float32", "grad": True},
            "chosen": {"shape": ["heads", "(kv_len + 15) // 16", "top"], "dtype": "int32"},
        },
        "score": "score + sum(i, R, qr[b, h, q, i] * kr[b, k, i])",
        "mask": "any(i, top, chosen[h, q // 16, i] == k // 16) | all(j, 2, (k + j) % 3 > 0)",
    },
    "a shape reads a runtime param": {
        "params": {"W": _runtime(5), "half": _runtime(2.5)},
        "inputs": {
            "rel": {"shape": ["heads", "2*W + 1"], "dtype": "float32", "grad": True},
            "on": {"shape": ["heads", "floor(half * 2)"], "dtype": "bool"},
        },
        "score": "score + rel[h, clamp(q - k, -W, W) + W]",
        "mask": "on[h, k % floor(half * 2)] | (k == 0)",
    },
    "a comparison beyond 32 bits": {"mask": "(q + k < 2147483648) & (k % 2 <= q)"},
    "a remainder beyond 32 bits": {"mask": "k <= q % 4294967296"},
    "a remainder beyond 32 bits, no power of two": {"mask": "k <= (q - 40) % 4294967297"},
    "a quotient beyond 32 bits": {"mask": "k >= (q - 40) // 4294967296 + 3"},
    "unsigned 32 bits": {"mask": "where(k % 3 == 0, 2147483648, 3000000000) > q + 2147483648 - 5 + k"},
    "bits beyond 32": {"mask": "((k | 4294967296) & 6442450944) == 4294967296"},
    "bounds beyond 32 bits": {"mask": "(k < 2147483648) & (k > -2147483649 + q)"},
    "constants at the end of 64 bits": {"mask": "k - 9223372036854775807 < q"},
    "the least integer": {"mask": "min(k, -9223372036854775808) + k <= q + -9223372036854775808"},
    "a sum that wraps": {"mask": "k + 9223372036854775807 < q"},
    "a product that wraps": {"mask": "k < kv_len ** 40", "score": "score + 0.01 * (kv_len ** 40 % 7)"},
    "a difference that wraps": {"mask": "(q - 3) * 4611686018427387904 <= k"},
    "an infinite param": {"params": {"low": -math.inf}, "score": "where(k <= q, score, low)"},
    "an infinite param at run time": {
        "params": {"low": _runtime(-math.inf), "high": _runtime(math.inf)},
        "score": "where(k <= q, min(score, high), low)",
    },
    "an infinite constant": {"score": "where((k <= q) | (k == 0), score, -1.0 / 0.0)"},
    "a division by zero that is not taken": {"mask": "where(k >= 0, k <= q, 1.0 / (kv_len - kv_len % 2048) > 0.5)"},
    "a remainder by a param of zero": {"params": {"z": _runtime(0.0)}, "score": "where(k >= 0, score, 1.0 / z)"},
    "floats beyond float32": {"score": "min(score * (1 + 1e-300), 1e300) + 1e-40 * k"},
    "many runtime params": {
        "params": {f"p{i}": _runtime((0.01 * i, i, bool(i % 2))[i % 3]) for i in range(64)},
        "score": "score + " + " + ".join(f"where(p{i}, 0.01, 0.02)" if i % 3 == 2 else f"p{i}" for i in range(64)),
        "mask": "k <= q + p1 + p61",
    },
    "lets that double, of rows": doubling(
        12, "0.01 * q", "{p} * 0.5 + sqrt(abs({p}) * 0.25)", {"score": "score * (1 + {a})"}
    ),
    "lets that double, by choice": doubling(
        12, "score", "where(k % {i} == 0, {p} + 0.1, {p} * 0.95 + {p} * 0.01)", {"score": "{a}"}
    ),
    "lets that double, extrema": doubling(
        12, "q - k", "max({p} - 1, min({p}, k - {i}))", {"score": "score + 0.01 * {a}", "mask": "{a} > -9"}
    ),
    "lets that double, learned": doubling(
        12,
        "score + t[h, q % n]",
        "{p} * 0.5 + tanh({p} + t[h, (k + {i}) % n])",
        {"inputs": {"t": {"shape": ["heads", "n"], "dtype": "float32", "grad": True}}, "score": "{a}"},
    ),
    "lets that double, gathers": doubling(
        12,
        "u[q % m]",
        "u[({p} + {p} + {i}) % m]",
        {"inputs": {"u": {"shape": ["m"], "dtype": "int32"}}, "mask": "{a} <= k"},
    ),
    "lets that double, logic": doubling(
        12, "k <= q", "({p} & (k % {i} < 5)) | ({p} ^ (k > {i}))", {"mask": "{a} | (k == 0)"}
    ),
    "lets that double, integers that wrap": doubling(12, "q + k", "{p} * {p} + {i}", {"mask": "{a} % 5 < 3"}),
}
