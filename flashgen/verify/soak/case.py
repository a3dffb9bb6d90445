"""One draw: a spec and a call of it, as plain data that a file can hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import yaml

Number = bool | int | float


@dataclass(frozen=True)
class Recipe:
    """How the values of an input are drawn, between `low` and `high` or around them, and how they lie in memory.

    `kind`: "uniform" (every value alike; floats too), "quarters" (multiples of 1/4), "normal" (mean low, deviation
    high), "sorted" and "segments" (ints that ascend along the last axis, anywhere or by ones), "either" (low four times
    out of five, else high), "outside" (a third of the values far beyond both ends).
    `layout`: "plain", "turned" (axes in reverse order in memory), "wide" (a slice of something larger), "alike" (one
    element for all of the first axis).
    """

    kind: str
    low: float
    high: float
    layout: str = "plain"


@dataclass(frozen=True)
class Case:
    """A spec as `flashgen.build` takes it, and one call.

    `shared`: k and v have batch 1, whatever that of q.
    `dims` are sizes of named dimensions, `params` values of runtime params, `recipes` how inputs are drawn. `values`
    is the seed of all tensors; `gain` multiplies q. `layouts` are those of q, k and v: "bhsd", "bshd", "fused" (a third
    of wider rows), "wide" (rows that begin and end anywhere), "turned" (last dimension not contiguous), "alike" (one
    batch element for all).
    `configs` names for "forward", "backward_q" and "backward_kv" a config or, from 0 to 1, where it stands in the
    search space; what is left out the module chooses. `defaults` leaves out inputs that have a default; `broadcast`
    gives the block mask size 1 where it may have that; `converted` gives inputs in other dtypes than the spec says,
    which the call converts. `d_out` is the layout of the gradient: "dense", "transposed",
    "expanded" or "none" for no gradients at all; `d_lse`: a gradient of lse beside it.
    `lengths` packs the sequences of the batch, of each no more than so many queries and keys; none for a dense call.
    Behind them lie as many queries and keys as `rest` says, which belong to none.
    `paged`: their keys are in a cache of pages, whose numbers, dtype and scales `values` decides.
    """

    spec: Mapping[str, Any]
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    dtype: str
    shared: bool = False
    values: int = 0
    gain: float = 1.0
    scale: float | None = None
    layouts: tuple[str, str, str] = ("bhsd", "bhsd", "bhsd")
    dims: Mapping[str, int] = field(default_factory=dict)
    params: Mapping[str, Number] = field(default_factory=dict)
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    configs: Mapping[str, float | str] = field(default_factory=dict)
    planned: bool = False
    defaults: bool = False
    broadcast: bool = False
    converted: bool = False
    deterministic: bool = False
    d_out: str = "dense"
    d_lse: bool = True
    lengths: tuple[tuple[int, int], ...] = ()
    rest: tuple[int, int] = (0, 0)
    paged: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that expressions may name, by name."""
        names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
        return {name: getattr(self, name) for name in names} | dict(self.dims)

    @property
    def dropout_p(self) -> float:
        """The probability with which weights are dropped, by the seed `values`."""
        return float(self.spec.get("dropout", 0.0))

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    def with_spec(self, **keys: Any) -> Case:
        """The case with other keys in the spec; None takes a key away."""
        spec = {key: value for key, value in {**self.spec, **keys}.items() if value is not None}
        return replace(self, spec=spec)


def to_yaml(case: Case) -> str:
    """The case as a file that `from_yaml` reads: the spec, ready for `flashgen build`, and the call."""
    call = asdict(case)
    spec = call.pop("spec")
    defaults = asdict(Case({}, *(0,) * 7, dtype=""))
    given = {key: value for key, value in call.items() if defaults[key] != value}
    given["layouts"] = list(case.layouts)
    if case.lengths:
        given["lengths"] = [list(each) for each in case.lengths]
    if "rest" in given:
        given["rest"] = list(case.rest)
    return yaml.safe_dump({"spec": spec, "call": given}, sort_keys=False, default_flow_style=None, width=110)


def from_yaml(text: str) -> Case:
    return from_dict(yaml.safe_load(text))


def from_dict(data: Mapping[str, Any]) -> Case:
    """A case from `{"spec": ..., "call": ...}`."""
    call = dict(data["call"])
    call["layouts"] = tuple(call.get("layouts", ("bhsd",) * 3))
    call["lengths"] = tuple((q_len, kv_len) for q_len, kv_len in call.get("lengths", ()))
    call["rest"] = tuple(call.get("rest", (0, 0)))
    call["recipes"] = {name: Recipe(**recipe) for name, recipe in call.get("recipes", {}).items()}
    return Case(data["spec"], **call)


def as_dict(case: Case) -> dict[str, Any]:
    """What `from_dict` reads."""
    call = asdict(case)
    return {"spec": call.pop("spec"), "call": call}
