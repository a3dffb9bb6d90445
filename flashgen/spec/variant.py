"""What a spec means, once it is checked: the frozen dataclasses that every later layer reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from flashgen.lang.nodes import Expr, Type

DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Param:
    """A scalar of the spec. A baked one is a constant in the expressions, a runtime one an argument of attention()."""

    name: str
    type: Type
    value: bool | int | float
    runtime: bool


@dataclass(frozen=True)
class Dim:
    """One dimension of an input. `size` is an integer expression of sizes, params and named dimensions.

    `text` is how the spec wrote it, from its syntax. `binds` names the dimension that this one defines, if it does:
    then `size` is that variable. `may_be_one` lets the caller pass size 1 instead, read at index 0 (block_mask alone).
    """

    text: str
    size: Expr
    binds: str | None = None
    may_be_one: bool = False


@dataclass(frozen=True)
class Input:
    """A tensor that the caller passes. `default` names what stands in when it is None: "alibi_slopes" or nothing.

    `range` has the least and the greatest value that proof, tuning and benchmarks draw; kernels assume nothing.
    `across`: along the batch it is read at other elements than the row's own.
    """

    name: str
    dims: tuple[Dim, ...]
    dtype: str
    grad: bool = False
    default: str | None = None
    range: tuple[float, float] | None = None
    across: bool = False


@dataclass(frozen=True)
class TuneShape:
    """A problem size that build tunes for; head_dim None stands for each head_dim of the spec.

    `mode`, `block_size`, `cache` and `min_len` as in `flashgen.problems.problem.Problem`.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int | None = None
    v_head_dim: int | None = None
    mode: str = "dense"
    block_size: int = 0
    cache: str = ""
    min_len: int = 0


@dataclass(frozen=True)
class Sample:
    """How realistic values of an input look, for tuning and benchmarks: at most one field is set."""

    segments: int | None = None
    density: float | None = None


@dataclass(frozen=True)
class Variant:
    """A variant of attention: out = softmax over visible k of `score`, times v.

    `score` is a float expression of the scaled dot product `score`; `mask` is a bool expression, `TRUE` where the
    spec has none. `lets` are the named subexpressions in order, for readers that want the names back. `texts` are
    the expressions as a person would write them ("score", "mask", each let), sugar spelled out, from their syntax.
    `sink` says that the input `sinks` adds one logit to each row. `source` is the spec's path as given, printable.
    `samples` are pairs of input name and Sample. `warnings` say what may not be meant, each with its place.
    `allow_tf32`: products of float32 inputs may round them to TF32. `approximate`: for 16-bit inputs, tanh may come
    from an instruction of the GPU that is right to 11 bits. `dropout` is the probability with which attention() drops
    each weight where the caller names no other; None where there is no dropout.
    """

    name: str
    description: str
    source: str
    dtypes: tuple[str, ...]
    head_dims: tuple[int, ...]
    align: str
    params: tuple[Param, ...]
    inputs: tuple[Input, ...]
    lets: tuple[tuple[str, Expr], ...]
    score: Expr
    mask: Expr
    sink: bool
    texts: tuple[tuple[str, str], ...]
    tune_shapes: tuple[TuneShape, ...]
    samples: tuple[tuple[str, Sample], ...] = ()
    warnings: tuple[str, ...] = ()
    allow_tf32: bool = False
    approximate: bool = True
    dropout: float | None = None

    def module_in(self, out: str | os.PathLike[str]) -> Path:
        """Where the package that is generated of it lies in the folder `out`."""
        return Path(out) / self.name

    @property
    def runtime_params(self) -> tuple[Param, ...]:
        return tuple(p for p in self.params if p.runtime)

    @property
    def dim_names(self) -> tuple[str, ...]:
        """Sizes that inputs bind under a new name, in order."""
        return tuple(d.binds for i in self.inputs for d in i.dims if d.binds is not None)
