"""The variants that models need: a spec for what a layer asks for, built once and kept on disk."""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Lock
from types import SimpleNamespace
from typing import Any

import torch

from flashgen.flex.kept import kept_module

_LENGTHS = ["q_len", "kv_len"]
# What each form of a mask adds to a spec. Queries count from 0 where what is known of them lies in tensors.
_ROWS = {
    "first": {"shape": ["batch", "q_len"], "dtype": "int32"},
    "last": {"shape": ["batch", "q_len"], "dtype": "int32"},
}
_BETWEEN = "(k >= first[b, q]) & (k <= last[b, q])"
_FORMS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "rows": {"inputs": _ROWS, "mask": _BETWEEN},
    "rows_and_keys": {
        "inputs": {**_ROWS, "seen": {"shape": ["batch", "kv_len"], "dtype": "bool"}},
        "mask": f"{_BETWEEN} & seen[b, k]",
    },
    "matrix": {"inputs": {"seen": {"shape": ["batch", *_LENGTHS], "dtype": "bool"}}, "mask": "seen[b, q, k]"},
    "matrices": {
        "inputs": {"seen": {"shape": ["batch", "heads", *_LENGTHS], "dtype": "bool"}},
        "mask": "seen[b, h, q, k]",
    },
}
_SAID = {
    "full": "nothing is hidden",
    "causal": "causal",
    "rows": "each query sees the keys between two",
    "rows_and_keys": "each query sees the keys between two that are no padding",
    "matrix": "a mask of queries by keys",
    "matrices": "a mask of queries by keys for each head",
}
# Blocks of keys, of which each query sees those that are chosen for the heads of a KV head.
_CHOSEN = {"shape": ["batch", "kv_heads", "q_len", "key_blocks"], "dtype": "bool"}
# What is added to the scores: by sequence, by head, or by both.
_ADDED = {"b": ["batch"], "h": ["heads"], "bh": ["batch", "heads"]}

_attentions = SimpleNamespace()
_building = Lock()


def spec_of(
    form: str, softcap: float | None, sinks: bool, added: tuple[str, ...], drops: bool = False, blocks: bool = False
) -> dict[str, Any]:
    """The spec of what a layer asks for.

    form: a mask of `_FORMS`; added: for each tensor that is added to the scores by which indices it has, "b", "h" or
    "bh", beside those of the pair. drops: weights are dropped, by the dropout_p of each call. blocks: of what the mask
    shows, each query sees chosen blocks of keys, of the block_size of each call.
    """
    spec: dict[str, Any] = {
        "name": _name(form, softcap, sinks, *added, drops=drops, blocks=blocks),
        "description": f"Attention of transformers' models: {_SAID[form]}.",
    }
    spec |= _FORMS[form]
    spec["align"] = "bottom_right" if form == "causal" else "top_left"
    spec |= {"softcap": softcap} if softcap is not None else {}
    spec |= {"sink": "learned"} if sinks else {}
    spec |= {"dropout": 0.0} if drops else {}
    # Positions of a causal variant count from the keys' end.
    row = "q - kv_len + q_len" if form == "causal" else "q"
    inputs, score = dict(spec.get("inputs", {})), "score"
    for place, each in enumerate(added):
        inputs[f"bias_{place}"] = {"shape": [*_ADDED[each], *_LENGTHS], "dtype": "float32", "grad": True}
        score += f" + bias_{place}[{', '.join([*each, row, 'k'])}]"
    if blocks:
        inputs["chosen"] = _CHOSEN
        spec["params"] = {"block_size": {"value": 128, "runtime": True}}
        seen = f"chosen[b, kv_h, {row}, k // block_size]"
        spec["mask"] = f"{spec['mask']} & {seen}" if "mask" in spec else seen
    spec |= {"inputs": inputs} if inputs else {}
    return {**spec, "score": score} if added else spec


def _name(form: str, softcap: float | None, sinks: bool, *added: str, drops: bool, blocks: bool) -> str:
    """A variant's name: each has its own, by which torch.compile tells their modules apart."""
    own = [f"softcap_{softcap}"] * (softcap is not None) + ["sinks"] * sinks + [f"bias_{each}" for each in added]
    own += ["dropout"] * drops + ["blocks"] * blocks
    return re.sub(r"\W", "_", "_".join(("model", form, *own)).lower())


def attention_of(
    form: str, softcap: float | None, sinks: bool, added: tuple[str, ...], drops: bool = False, blocks: bool = False
) -> Callable[..., Any]:
    """The `attention` of the variant for what a layer asks for. The first time it is built or found on disk."""
    name = _name_of(form, softcap, sinks, *added, drops=drops, blocks=blocks)
    attention: Callable[..., Any] = getattr(_attentions, name)
    return attention


@torch.compiler.assume_constant_result
def _name_of(form: str, softcap: float | None, sinks: bool, *added: str, drops: bool, blocks: bool) -> str:
    """What an attention is found by, once it is there. torch.compile asks while it traces."""
    name = _name(form, softcap, sinks, *added, drops=drops, blocks=blocks)
    if not hasattr(_attentions, name):
        with _building:
            if not hasattr(_attentions, name):
                spec = spec_of(form, softcap, sinks, added, drops, blocks)
                setattr(_attentions, name, kept_module(spec, "models").attention)
    return name
