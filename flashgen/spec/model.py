"""The form of a spec, key by key: what pydantic checks before any expression is read."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from flashgen.spec.accept import (
    INPUT_DTYPES,
    LIMITS,
    MAX_HEAD_DIM,
    MAX_RANK,
    Cap,
    Count,
    Description,
    Dtype,
    End,
    Expression,
    Extent,
    Flag,
    HeadDim,
    Rate,
    Scalar,
    Share,
    Size,
    Text,
    at_most,
    choice,
    many,
    one_or_many,
    refuse,
    sized,
)
from flashgen.spec.modes import CACHES, MODES, misfit
from flashgen.spec.variant import DTYPES

MAX_PARAMS, MAX_INPUTS, MAX_LETS = 64, 32, 64


class _Form(BaseModel):
    """A mapping with a fixed set of keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, data: Any) -> Any:
        fields = cls.model_fields
        known = ", ".join(fields)
        if not isinstance(data, dict):
            raise refuse(f"a mapping with the keys {known}")
        for key in data:
            if key not in fields:
                close = get_close_matches(key, fields, n=2)
                raise refuse(" or ".join(close) if close else f"one of {known}", key, f"the unknown key {key!r}")
        for key, info in fields.items():
            if info.is_required() and key not in data:
                raise refuse(f"{key}, with a value", found=f"no key {key!r}")
        return data


class Window(_Form):
    """A sliding window: key k is visible to query q where q - left <= k <= q + right. A missing side is open."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    left: Extent | None = Field(None, description="How many keys before the query's own position are visible.")
    right: Extent | None = Field(None, description="How many keys after the query's own position are visible.")

    @model_validator(mode="before")
    @classmethod
    def _some_side(cls, data: Any) -> Any:
        if data == {}:
            raise refuse("left, right or both")
        for side in ("left", "right"):
            amount = data.get(side) if isinstance(data, dict) else None
            if isinstance(amount, int) and amount < 0:
                raise refuse(f"an integer >= 0 or an expression of params; {beyond(side, amount)}", side)
        return data


def beyond(side: str, amount: int) -> str:
    """What to write for a side of a window that ends before the query, or begins after it."""
    what = f"k >= q + {-amount}" if side == "left" else f"k <= q - {-amount}"
    return f"for a window that leaves out the query itself write 'mask: {what}', joined with & to another mask"


class BlockSparse(_Form):
    """A mask by blocks, passed as the input block_mask: bool [batch or 1, heads or 1, q_blocks, kv_blocks]."""

    block_q: Count = Field(description="Queries in one block.", examples=[128])
    block_kv: Count = Field(description="Keys in one block.", examples=[128])


class ParamForm(_Form):
    """A scalar: baked into the kernel, or an argument of attention() with a default value."""

    value: Scalar = Field(description="The value, or the default value of a runtime param.")
    runtime: Flag = Field(False, description="Whether the param is an argument of attention().")

    @model_validator(mode="after")
    def _fits(self) -> ParamForm:
        """Kernels take ints of 32 bits as arguments; what is baked may have 64."""
        least, greatest = LIMITS["int32"]
        if self.runtime and type(self.value) is int and not least <= self.value <= greatest:
            raise refuse("an integer of 32 bits, as a runtime param has, or a baked one", "value")
        return self


class InputForm(_Form):
    """A tensor that the caller passes."""

    shape: Annotated[
        list[Size],
        Field(max_length=MAX_RANK),
        sized(0, MAX_RANK, f"a list of up to {MAX_RANK} dimensions, such as [batch, kv_len], or [] for a scalar"),
    ] = Field(description="Dimensions: integers, expressions of sizes and params, or new names; [] is a scalar.")
    dtype: Annotated[str, choice(*INPUT_DTYPES)] = Field(description="The tensor's dtype.")
    grad: Flag = Field(False, description="Whether the input gets a gradient; floating dtypes only.")
    range: Annotated[list[End], Field(min_length=2, max_length=2), sized(2, 2, "a pair [low, high]")] | None = Field(
        None,
        description="What proof, tuning and benchmarks draw: the least and the greatest value; kernels assume nothing.",
        examples=[[0.1, 2]],
    )

    @model_validator(mode="after")
    def _differentiable(self) -> InputForm:
        if self.grad and self.dtype not in DTYPES:
            raise refuse(f"grad: true only with dtype {', '.join(DTYPES)}", "grad")
        return self

    @model_validator(mode="after")
    def _ordered(self) -> InputForm:
        if self.range is None:
            return self
        if self.dtype == "bool":
            raise refuse("no range with dtype bool; tune has a density for it", "range")
        low, high = self.range
        whole = self.dtype not in DTYPES
        if whole and not (isinstance(low, int) and isinstance(high, int)):
            raise refuse(f"a pair of integers with dtype {self.dtype}", "range")
        least, greatest = LIMITS[self.dtype]
        if not least <= low <= high <= greatest:
            raise refuse(
                f"a pair [low, high] with {least} <= low <= high <= {greatest}, of dtype {self.dtype}", "range"
            )
        return self


class ShapeForm(_Form):
    """A problem size to tune for."""

    mode: Annotated[str, choice(*MODES)] = Field("dense", description="dense, decode (few queries), paged or varlen.")
    batch: Count = Field(description="Sequences in the batch.")
    heads: Count = Field(description="Query heads.")
    kv_heads: Count | None = Field(None, description="Key and value heads; as many as query heads when absent.")
    q_len: Count | None = Field(None, description="Queries; with mode decode or paged one when absent.")
    kv_len: Count | None = Field(None, description="Keys; with mode dense as many as queries when absent.")
    block_size: Count | None = Field(None, description="With mode paged: keys of a page; 16 when absent.")
    cache: Annotated[str | None, choice(*CACHES)] = Field(
        None, description="With mode paged: the dtype of the cache; that of q when absent."
    )
    max_len: Count | None = Field(None, description="With mode varlen: queries and keys of the longest sequence.")
    min_len: Count | None = Field(
        None, description="With mode varlen: those of the shortest sequence; a 32nd of max_len when absent."
    )
    head_dim: HeadDim | None = Field(None, description="Head dimension; each of the spec's when absent.")
    v_head_dim: HeadDim | None = Field(None, description="Head dimension of v; that of q when absent.")

    @model_validator(mode="after")
    def _groups(self) -> ShapeForm:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise refuse(f"a divisor of heads, {self.heads}", "kv_heads")
        return self

    @model_validator(mode="after")
    def _mode(self) -> ShapeForm:
        given = {name: value for name in self.model_fields_set - {"mode"} if (value := getattr(self, name)) is not None}
        problem = misfit(self.mode, given)
        if problem is not None:
            name, expected = problem
            raise refuse(expected, name) if name in given else refuse(expected, found=f"no key {name!r}")
        return self


class SampleForm(_Form):
    """How realistic values of an input look: one of the keys."""

    segments: Count | None = Field(None, description="Sorted ids of this many packed segments.")
    density: Share | None = Field(None, description="The share of true values.")

    @model_validator(mode="before")
    @classmethod
    def _no_range(cls, data: Any) -> Any:
        if isinstance(data, dict) and "range" in data:
            raise refuse("it under inputs, as a key of the input", "range", "the key 'range'")
        return data

    @model_validator(mode="after")
    def _one_hint(self) -> SampleForm:
        if len(self.model_fields_set) != 1:
            raise refuse("exactly one of segments and density")
        return self


class TuneForm(_Form):
    """What build tunes for."""

    shapes: (
        Annotated[list[ShapeForm], Field(min_length=1, max_length=64), sized(1, 64, "a list of 1 to 64 problem sizes")]
        | None
    ) = Field(None, description="Problem sizes; a default list when absent.")
    inputs: dict[str, SampleForm] = Field({}, description="How realistic values of each input look.")


def _as_param(value: Any) -> Any:
    return value if isinstance(value, dict) else {"value": value}


_PARAM_SCHEMA = {
    "anyOf": [
        {"type": ["boolean", "integer", "number"]},
        {
            "type": "object",
            "description": "A runtime param is an argument of attention().",
            "properties": {"value": {"type": ["boolean", "integer", "number"]}, "runtime": {"type": "boolean"}},
            "required": ["value"],
            "additionalProperties": False,
        },
    ]
}
_ParamEntry = Annotated[ParamForm, BeforeValidator(_as_param), WithJsonSchema(_PARAM_SCHEMA)]
_Dtypes = Annotated[list[Dtype], BeforeValidator(one_or_many), many({"enum": list(DTYPES)})]
_HeadDims = Annotated[
    list[HeadDim],
    BeforeValidator(one_or_many),
    many({"type": "integer", "minimum": 1, "maximum": MAX_HEAD_DIM}),
]


class SpecForm(_Form):
    """A variant of attention: out = softmax of the scores over the visible keys, times v."""

    name: Text = Field(description="The generated module's name.", examples=["alibi"])
    description: Description = Field("", description="What the variant is, and where it comes from.")
    dtype: _Dtypes = Field(["bfloat16", "float16"], description="The dtypes to tune for.")
    head_dim: _HeadDims = Field([64, 128], description="The head dimensions to tune for; any from 1 to 512 runs.")
    causal: Flag = Field(False, description="Mask: k <= q.")
    window: Window | None = Field(None, description="Mask: q - left <= k <= q + right.")
    bias: Annotated[Literal["alibi"] | None, choice("alibi")] = Field(
        None, description="Score: score - slopes[h] * abs(q - k); the caller may pass slopes."
    )
    softcap: Cap | None = Field(None, description="Score: cap * tanh(score / cap).", examples=[30.0])
    block_sparse: BlockSparse | None = Field(None, description="Mask: by the blocks of the input block_mask.")
    sink: Annotated[Literal["learned"] | None, choice("learned")] = Field(
        None, description="The input sinks, float32 [heads]: one more logit in each row's denominator."
    )
    dropout: Rate | None = Field(
        None,
        description="attention() gets dropout_p, this probability by default, and drops weights after the softmax.",
        examples=[0.1],
    )
    align: Annotated[str, choice("bottom_right", "top_left")] = Field(
        "bottom_right", description="Query i stands at key i + kv_len - q_len (bottom_right) or at key i (top_left)."
    )
    allow_tf32: Flag = Field(False, description="Products of float32 inputs in TF32, ten bits of mantissa.")
    approximate: Flag = Field(
        True, description="For 16-bit inputs, tanh by the GPU's instruction where there is one: relative error 2**-11."
    )
    params: Annotated[dict[str, _ParamEntry], at_most(MAX_PARAMS, "params")] = Field(
        {}, description="Scalars of the expressions.", examples=[{"W": 64}]
    )
    inputs: Annotated[dict[str, InputForm], at_most(MAX_INPUTS, "inputs")] = Field(
        {}, description="Tensors that the caller passes, by name."
    )
    let: Annotated[dict[str, Expression], at_most(MAX_LETS, "lets")] = Field(
        {}, description="Named subexpressions; each may use those before it."
    )
    score: Expression | None = Field(None, description="The score, in float32.", examples=["score + rel[h, q - k]"])
    mask: Expression | None = Field(None, description="Whether query q sees key k.", examples=["abs(q - k) <= W"])
    tune: TuneForm | None = Field(None, description="What build tunes for.")
