"""Specs that once came out wrong, or not at all, each for a reason of its own; every suite runs them."""

from __future__ import annotations

from typing import Any


def _tensor(*shape: str | int, dtype: str = "float32", grad: bool = False) -> dict[str, Any]:
    return {"shape": [*shape], "dtype": dtype, **({"grad": True} if grad else {})}


def _runtime(value: float) -> dict[str, Any]:
    return {"value": value, "runtime": True}


_TABLE = {"rpb": _tensor("heads", 9, grad=True)}
_OFFSETS = {"off": _tensor("batch", dtype="int32"), "lo": _tensor("heads", dtype="int32")}
_SIGNED = {"t": _tensor("kv_len", dtype="int32"), "u": _tensor("kv_len", dtype="int32")}
_PAD = {"pad": _tensor("batch", "kv_len")}

# Minima and maxima of negated integers, which an assembler gets wrong.
NEGATIONS: dict[str, dict[str, Any]] = {
    "neighbourhoods of a grid": {
        "params": {"W": 16, "r": 3},
        "let": {"cx": "clamp(q // W, r, W - 1 - r)", "cy": "clamp(q % W, r, W - 1 - r)"},
        "mask": "(abs(cx - k // W) <= r) & (abs(cy - k % W) <= r)",
    },
    "distances on a grid": {
        "params": {"W": 16, "r": 3},
        "mask": "(abs(q // W - k // W) <= r) & (abs(q % W - k % W) <= r)",
    },
    "extremes of negated inputs": {
        "inputs": _SIGNED,
        "align": "top_left",
        "mask": "max(max(t[k], -u[q]), -t[k]) <= 3 + q",
        "score": "score + 0.01 * min(min(t[k], -u[q]), q - k)",
    },
    "a negated index": {"inputs": {**_TABLE, "t": _tensor("kv_len", dtype="int32")}, "score": "score + rpb[h, -t[k]]"},
    "negated bounds": {"inputs": _OFFSETS, "mask": "(k >= -off[b]) & (k + lo[h] >= 0) & (k <= q - lo[h])"},
    "the nearest of several negated bounds": {
        "inputs": _OFFSETS,
        "mask": "(k >= max(max(-off[b], lo[h]), -lo[h] - off[b])) & (k <= min(min(-lo[h], q), 3 * -off[b]))",
    },
}  # fmt: skip

# Derivatives of what is flat where something below it is steep.
STEEP: dict[str, dict[str, Any]] = {
    "a tanh of steep scores": {"softcap": 50.0, "score": "tanh((-0.103 * (kv_h - q)) ** 2 * abs(score))"},
    "a tanh that grows along the row": {"score": "0.5 * q * tanh(score)", "causal": True},
    "a tanh of a steep table": {"inputs": _TABLE, "score": "score + 20 * tanh(4 * rpb[h, (q + k) % 9])"},
}

# What is computed in front of one kernel's loop, and of another's.
HOISTED: dict[str, dict[str, Any]] = {
    "neighbourhoods of a grid whose width a call decides": {
        "params": {"W": _runtime(5)},
        "mask": "(abs(q // W - k // W) <= 1) & (abs(q % W - k % W) <= 1)",
    },
    "a table of quotients by what a call decides": {
        "inputs": {**_TABLE, **_OFFSETS},
        "params": {"s": _runtime(-3)},
        "mask": "(k // s >= q // s) | (k % off[b] == 1)",
        "score": "score + rpb[h, clamp((q - k) // s, -4, 4) + 4] + 0.1 * (q % lo[h])",
    },
    "dilated neighbourhoods with a table": {
        "inputs": _TABLE,
        "let": {"n": "(kv_len - q % 3 + 2) // 3", "centre": "min(max(q // 3, 2), n - 3)"},
        "mask": "(q % 3 == k % 3) & (abs(centre - k // 3) <= 2)",
        "score": "score + rpb[h, clamp(k // 3 - q // 3 + 4, 0, 8)]",
    },
    "a table of quotients, scaled by others": {
        "inputs": {**_TABLE, "gate": _tensor("heads", 5, grad=True)},
        "score": "score + rpb[h, clamp(k // 7 - q // 5, 0, 8)] * gate[h, clamp(q // 5 - k // 7, 0, 4)]",
    },
}

# Runtime params whose values a compiler would make a kernel for.
RUNTIME: dict[str, dict[str, Any]] = {
    f"a runtime param of {value}": {
        "params": {"stage": _runtime(value), "gain": _runtime(float(value)), "flag": _runtime(value > 0)},
        "mask": "k <= q + stage if flag else q - stage <= k",
        "score": "score + 0.01 * (q - stage) * gain + 0.1 * (stage // 3) - gain * (k % (stage + 2))",
    }
    for value in (0, 1, 16, -5)
}

# Sums of large terms that cancel, and scores near the least float32.
_LOGF = {"logf": {**_tensor("batch", "heads", "kv_len"), "grad": True}}
_BITS = {"pad": _tensor("batch", "kv_len", dtype="bool")}
ADDITIVE: dict[str, dict[str, Any]] = {
    "BERT's mask": {"inputs": _PAD, "score": "score + (1.0 - pad[b, k]) * -10000.0"},
    "a mask and a table of pairs": {
        "inputs": {**_PAD, "pair": _tensor(1, "heads", "kv_len", "kv_len", grad=True)},
        "align": "top_left",
        "score": "score + 1e9 * (pad[b, k] - 1.0) + pair[0, h, q, k]",
    },
    "the least float32": {
        "inputs": {"pad": {**_tensor("batch", "kv_len"), "range": [0.0, 1.0]}},
        "score": "score + (1.0 - pad[b, k]) * -3.4028234663852886e38",
    },
    "the least float32 by a bool": {"inputs": _BITS, "score": "score + (1 - pad[b, k]) * -3.4028234663852886e38"},
    "the least float32, where": {
        "inputs": _BITS,
        "causal": True,
        "score": "score if pad[b, k] else -3.4028234663852886e38",
    },
    "minus 1e9, for whole rows": {"inputs": _BITS, "causal": True, "score": "score - 1e9 * (1 - pad[b, k])"},
    "a sink beside a bias of pairs": {
        "inputs": {"pair": _tensor("batch", "heads", "kv_len", "kv_len", grad=True)},
        "align": "top_left",
        "sink": "learned",
        "score": "score + pair[b, h, q, k]",
    },
    "logarithms of gates": {"inputs": _LOGF, "causal": True, "score": "score + (logf[b, h, q] - logf[b, h, k])"},
    "large logarithms of gates": {
        "inputs": _LOGF,
        "causal": True,
        "score": "score + ((logf[b, h, q] - 20000.0) - (logf[b, h, k] - 20000.0))",
    },
}

# What is read of other elements of the batch than a program's own, which packed sequences do not have, or could be.
BATCHES: dict[str, dict[str, Any]] = {
    "elements of other heads' numbers": {
        "inputs": {
            "doc": _tensor("batch", "kv_len", dtype="int32"),
            "ids": _tensor("batch", "q_len", dtype="int32"),
            "rel": _tensor("batch", "kv_len", grad=True),
        },
        "let": {"row": "q - kv_len + q_len"},
        "score": "score + rel[h % 2, k] * rel[b // 2, q]",
        "mask": "(doc[h, q] <= doc[b // 2, k] + 2) & (ids[b, row] + 1 >= doc[b, k] - 2) & (doc[0, k] < 100)",
    },
    "a bound of rows that the first sequence has": {
        "inputs": {"far": {**_tensor("batch", "kv_len", dtype="int32"), "range": [0, 60]}},
        "align": "top_left",
        "mask": "q <= far[0, k]",
    },
    "a row of a block mask for each query": {"block_sparse": {"block_q": 1, "block_kv": 5}},
    "a column of a block mask for each key": {"block_sparse": {"block_q": 16, "block_kv": 1}, "align": "top_left"},
}

# Reductions whose lengths a call decides, in each place where a value of a pair, a row or a column may stand.
OF_A_CALL: dict[str, dict[str, Any]] = {
    "chosen blocks, as many as an input has": {
        "inputs": {
            "chosen": {**_tensor("batch", "heads", "(kv_len + 7) // 8", "top", dtype="int32"), "range": [-1, 9]}
        },
        "align": "top_left",
        "mask": "any(i, top, chosen[b, h, q // 8, i] == k // 8)",
    },
    "products of parts, as many as a call says": {
        "params": {"r": _runtime(3)},
        "inputs": {
            "qr": _tensor("batch", "heads", "kv_len", "r"),
            "kr": _tensor("batch", "kv_len", "r"),
            "gain": _tensor("heads", grad=True),
        },
        "causal": True,
        "score": "score + gain[h] * sum(i, r, qr[b, h, q, i] * kr[b, k, i])",
    },
    "reductions in reductions": {
        "params": {"n": _runtime(2)},
        "inputs": {"a": {**_tensor("batch", "kv_len", "m", dtype="int8"), "range": [0, 3]}},
        "let": {"hits": "sum(i, m, any(j, n, a[b, q, i] == a[b, k, j]))"},
        "score": "score + 0.5 * tanh(score) * hits",
        "mask": "(hits > 0) | all(i, n - 2, k == q)",
    },
    "reductions of rows, of columns and of neither": {
        "params": {"n": _runtime(3)},
        "inputs": {
            "t": {**_tensor("batch", "kv_len", "n", dtype="int32"), "range": [-2, 2]},
            "w": _tensor("heads", "n"),
        },
        "score": "score * sum(i, n, w[h, i] * w[h, i]) + 0.1 * sum(i, n, t[b, k, i] * (i + 1)) + sum(i, n, cos(q * i))",
        "mask": "(k <= q + sum(i, n, t[b, q, i])) & any(i, n, t[b, k, i] > 0)",
    },
    "more terms than are written out": {
        "score": "score + 0.01 * sum(i, 257, (q + i) % 7 == k % 7)",
        "mask": "all(i, 13, all(j, 20, q - k != 2 * i + j - 5))",
    },
}

# Tables of pairs whose sizes only a call knows: whether each pair has an element of its own is asked of the call.
PAIRS_OF_A_CALL: dict[str, dict[str, Any]] = {
    "a table of pairs with a named dimension": {
        "inputs": {"bias": _tensor("n", "kv_len", grad=True)},
        "causal": True,
        "score": "score + bias[k, q]",
    },
    "a table of blocks that short sequences have none of": {
        "inputs": {"bias": _tensor("heads", "kv_len // 64", grad=True)},
        "score": "score + bias[h, k // 64]",
    },
    "a table of pairs as large as a runtime param": {
        "params": {"size": _runtime(64)},
        "inputs": {"bias": _tensor("heads", "size", "size", grad=True)},
        "score": "score + bias[h, k, q]",
    },
}

# Divisions of floats of which the last bit decides: a GPU's own says that 41 / 41 is less than 1.
QUOTIENTS: dict[str, dict[str, Any]] = {
    "blocks by floors of quotients": {"mask": "(floor(q / 41) == floor(k / 41)) | (k / 47 <= 1)"},
    "a table by a floor of a quotient": {
        "inputs": _TABLE,
        "causal": True,
        "score": "score + rpb[h, floor((q - k) / 41) % 9]",
    },
    "a bound that a quotient of a column meets": {"mask": "q * 0.5 // 41 >= k / 82", "align": "top_left"},
}

# Buckets of distances: near ones by themselves, far ones by a logarithm that is infinite for distance 0.
_BUCKETS = {"bias": _tensor(32, "heads", grad=True)}
BUCKETS: dict[str, dict[str, Any]] = {
    "buckets whose logarithm is rounded toward zero": {
        "inputs": _BUCKETS,
        "let": {
            "n": "abs(q - k)",
            "far": "log(n / 8) / 2.772588722239781 * 8",
            "large": "min(8 + where(far < 0, ceil(far), floor(far)), 15)",
        },
        "score": "score + bias[where(q < k, 16, 0) + where(n < 8, n, large), h]",
    },
    "buckets by a floor where a test says that it is one": {
        "inputs": _BUCKETS,
        "causal": True,
        "score": "score + bias[31 - (q - k if q - k <= 15 else min(16 + floor(log2((q - k) / 16) * 5.5), 31)), h]",
    },
    "floors above and below zero, rounded toward it": {
        "score": "score - 0.1 * where((q - k) / 7 < 0, ceil((q - k) / 7), floor((q - k) / 7))",
        "mask": "floor(sqrt(abs(q - k) + 0.5) * 3) % 4 != 2",
    },
}

# Integers of 32 bits beside constants that take more: a GPU shifts by 31 bits at most.
WIDE_DIVISORS: dict[str, dict[str, Any]] = {
    "floors by more than 32 bits hold": {
        "score": "score + 2.0 * ((q - k) // 4294967296)",
        "mask": "((k - 9) // 2147483648 == 0) | ((q - k) % 8589934592 <= 16) | (n // 1099511627776 > 0)",
        "let": {"n": "q * 1073741824 - k * 1024"},
    },
    "floats whose quotient rounds to the next integer": {
        "mask": "(q - k) * 1.0 % 0.1 < 0.05",
        "score": "score + 0.01 * ((q - k) * 1.0 // 0.1)",
    },
}

# What has no value, or no derivative, where it is hidden, and a gradient elsewhere.
UNDEFINED: dict[str, dict[str, Any]] = {
    "a learned factor of logarithms that hidden pairs do not have": {
        "inputs": {"r": _tensor("heads", grad=True)},
        "causal": True,
        "score": "score + r[h] * log(q - k + 1)",
    },
    "a learned table of roots that hidden pairs do not have": {
        "inputs": _TABLE,
        "mask": "k < q",
        "score": "score + rpb[h, (q + k) % 9] * sqrt(q - k)",
    },
    "a learned power of no distance": {
        "inputs": {"power": _tensor("heads", grad=True)},
        "causal": True,
        "score": "score - abs(q - k) ** power[h]",
    },
    "a learned quotient in a branch": {
        "inputs": {"r": _tensor("heads", grad=True)},
        "causal": True,
        "score": "score - (r[h] / (q - k) if k < q else 0.0)",
    },
    # Rows that do not exist, in the last tile, have products of 0.
    "a learned power of a score": {
        "inputs": {"power": _tensor("heads", grad=True) | {"range": [0.2, 0.9]}},
        "score": "score * abs(score) ** (power[h] - 1.0)",
    },
}

# Limits at the ends of int32, from where no tile more can be counted: none, for some rows and for some keys.
FAR: dict[str, dict[str, Any]] = {
    "a first key that is the last of int32": {
        "inputs": _BITS,
        "mask": "(k <= q) & (k >= where(pad[b, q], 2147483647, 3))",
    },
    "a first row that is the last of int32": {
        "inputs": _BITS,
        "align": "top_left",
        "mask": "(k <= q) & (q >= where(pad[b, k], 2147483647, 3))",
    },
    "an end of rows that is the first of int32": {
        "inputs": _BITS,
        "align": "top_left",
        "mask": "(k <= q) & (q < where(pad[b, k], -2147483648, 70))",
    },
}  # fmt: skip

_GROUPS = (
    NEGATIONS, STEEP, HOISTED, RUNTIME, ADDITIVE, BATCHES, OF_A_CALL, PAIRS_OF_A_CALL, QUOTIENTS, BUCKETS,
    WIDE_DIVISORS, UNDEFINED, FAR,
)  # fmt: skip
SPECS = {name: {"name": "hard", **spec} for group in _GROUPS for name, spec in group.items()}
