"""What a spec means, in twelve hex digits: tuned records and generated modules refer to it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from flashgen.lang.nodes import Const, Expr, Gather, Index, Op, Reduction, Var
from flashgen.lang.traversal import walk
from flashgen.spec.variant import Variant

_FORMAT = 1


def digest(variant: Variant) -> str:
    """The first 12 hex digits of a SHA-256 over everything that changes what the kernels compute or accept.

    Names of lets, descriptions, tuning hints, the tuned dtypes and head dimensions, and the YAML's form are no part
    of it. Each node of the expressions is written once, so shared subexpressions cost nothing.
    """
    sizes = [dim.size for tensor in variant.inputs for dim in tensor.dims]
    number: dict[Expr, int] = {}
    lines: list[Any] = []
    for node in walk(variant.score, variant.mask, *sizes):
        lines.append(_line(node, [number[child] for child in node.children]))
        number[node] = len(number)
    meaning = {
        "format": _FORMAT,
        "nodes": lines,
        "score": number[variant.score],
        "mask": number[variant.mask],
        "sink": variant.sink,
        "align": variant.align,
        "params": [[p.name, p.type.value, repr(p.value)] for p in variant.runtime_params],
        **({"allow_tf32": True} if variant.allow_tf32 else {}),
        # The probability itself is a default, which callers may change.
        **({} if variant.dropout is None else {"dropout": True}),
        **({} if variant.approximate else {"approximate": False}),
        "inputs": [
            # What has a default is learned when the caller passes it and asks for its gradient: no choice of the spec.
            [
                i.name,
                i.dtype,
                i.grad and i.default is None,
                i.default,
                [[number[d.size], d.binds, d.may_be_one] for d in i.dims],
            ]
            for i in variant.inputs
        ],
    }
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:12]


def _line(node: Expr, children: list[int]) -> list[Any]:
    match node:
        case Const(value=value):
            return ["const", node.type.value, repr(value)]
        case Var(name=name):
            return ["var", node.type.value, name]
        case Gather(input=tensor):
            return ["gather", tensor, *children]
        case Index():
            return ["index", *children]
        case Reduction(name=name):
            return ["reduction", name, *children]
        case Op(name=name):
            # What caps a score is told from the rest of the expressions: it is a tanh as others are.
            return ["op", "tanh" if name == "softcap" else name, *children]
    raise AssertionError(f"no such node: {type(node).__name__}")
