"""The leaves of a spec: each a type made of one test, the words that say what passes it, and its JSON Schema."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError, core_schema

from flashgen.lang.interval import LARGEST_FLOAT32
from flashgen.printable import is_printable
from flashgen.spec.names import MODULE_NAME
from flashgen.spec.variant import DTYPES

INPUT_DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", *DTYPES)
# The least and the greatest value of each dtype but bool.
LIMITS: Mapping[str, tuple[float, float]] = {
    "int8": (-(2**7), 2**7 - 1), "uint8": (0, 2**8 - 1), "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1),
    "float16": (-65504, 65504), "bfloat16": (-3.38e38, 3.38e38), "float32": (-3.4e38, 3.4e38),
}  # fmt: skip
MAX_HEAD_DIM = 512
MAX_RANK = 6
_INT64 = range(-(2**63), 2**63)
# Sizes stay below this one.
_MOST = 2**31


def refuse(expected: str, key: str = "", found: str = "") -> PydanticCustomError:
    """A problem with a value, or with what stands under its `key`; `found` where the value itself does not say it."""
    return PydanticCustomError("expected", "{expected}", {"expected": expected, "key": key, "found": found})


@dataclass(frozen=True, eq=False)
class Accept:
    """A type made of one test, the words that say what passes it, and its JSON Schema.

    `limits` are the words for a number so far out that it is no wonder of which kind it is, but how large it may be.
    """

    test: Callable[[Any], bool]
    expected: str
    schema: dict[str, Any]
    convert: Callable[[Any], Any] = lambda value: value
    limits: str = ""

    def check(self, value: Any) -> Any:
        if not self.test(value):
            raise refuse(self.limits if self.limits and _is_far(value) else self.expected)
        return self.convert(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return dict(self.schema)


def _is_far(value: Any) -> bool:
    return isinstance(value, int | float) and not abs(value) < _MOST


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_scalar(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isnan(value)
    return isinstance(value, bool) or (isinstance(value, int) and value in _INT64)


# What ends a line: also what Python, YAML and editors do not agree upon.
_LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")


def _one_kind_of_line(value: Any) -> Any:
    return _LINE_ENDS.sub("\n", value) if isinstance(value, str) else value


def _is_prose(value: Any) -> bool:
    """Text that shows all of itself: no control characters, nothing hidden, nothing that reorders what one reads."""
    return isinstance(value, str) and is_printable(value)


def choice(*options: str) -> Accept:
    return Accept(lambda v: isinstance(v, str) and v in options, " or ".join(options), {"enum": list(options)})


def count(low: int, high: int | None = None) -> Accept:
    words = f"an integer from {low} to {high}" if high else f"an integer >= {low}"
    schema = {"type": "integer", "minimum": low} | ({"maximum": high} if high else {})
    limits = f"an integer from {low} to {high or _MOST - 1}"
    return Accept(
        lambda v: _is_int(v) and low <= v < _MOST and (high is None or v <= high), words, schema, limits=limits
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


_EXPRESSION_SCHEMA = {"type": ["string", "number", "boolean"]}
Expression = Annotated[str, Accept(lambda v: _is_text(v) or is_scalar(v), "an expression", _EXPRESSION_SCHEMA, str)]
Extent = Annotated[
    str,
    Accept(
        lambda v: _is_text(v) or (_is_int(v) and v >= 0),
        "an integer >= 0 or an expression of params",
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]},
        str,
    ),
]
Cap = Annotated[
    str,
    Accept(
        lambda v: _is_text(v) or (is_scalar(v) and not isinstance(v, bool) and 0 < v <= LARGEST_FLOAT32),
        "a number > 0 or an expression of params",
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]},
        str,
        "a number > 0 that float32 holds, or an expression of params",
    ),
]
Size = Annotated[
    str,
    Accept(
        lambda v: _is_text(v) or (_is_int(v) and 0 < v < _MOST),
        "an integer >= 1, an expression of sizes and params, or a new name",
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]},
        str,
        f"an integer from 1 to {_MOST - 1}, an expression of sizes and params, or a new name",
    ),
]
Scalar = Annotated[
    Any,
    Accept(
        is_scalar,
        "a number, true, false, or {value: ..., runtime: true}",
        {"type": ["boolean", "integer", "number"]},
        limits="a number that is not NaN, as an integer one of 64 bits",
    ),
]
Flag = Annotated[bool, Accept(lambda v: isinstance(v, bool), "true or false", {"type": "boolean"})]
End = Annotated[
    int | float,
    Accept(lambda v: is_scalar(v) and not isinstance(v, bool) and math.isfinite(v), "a number", {"type": "number"}),
]
Share = Annotated[
    float,
    Accept(
        lambda v: is_scalar(v) and not isinstance(v, bool) and 0 <= v <= 1,
        "a number from 0 to 1",
        {"type": "number", "minimum": 0, "maximum": 1},
        float,
    ),
]
Rate = Annotated[
    float,
    Accept(
        lambda v: is_scalar(v) and not isinstance(v, bool) and 0 <= v < 1,
        "a number from 0 to 1, 1 excluded",
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        float,
    ),
]
Count = Annotated[int, count(1)]
Dtype = Annotated[str, choice(*DTYPES)]
HeadDim = Annotated[int, count(1, MAX_HEAD_DIM)]
Description = Annotated[
    str,
    Accept(_is_prose, "text without control characters", {"type": "string"}),
    BeforeValidator(_one_kind_of_line),
]
Text = Annotated[str, Accept(lambda v: isinstance(v, str), "text", {"type": "string", "pattern": f"^{MODULE_NAME}$"})]


def one_or_many(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    if not items or any(item in items[:index] for index, item in enumerate(items)):
        raise refuse("at least one value, each once")
    return items


def many(item: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}]})


def at_most(limit: int, what: str) -> BeforeValidator:
    """No more entries of a mapping than a person would write: reading and compiling take time with each."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > limit:
            raise refuse(f"at most {limit} {what}", found=f"{len(value)} {what}")
        return value

    return BeforeValidator(check)


def sized(low: int, high: int, what: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if not isinstance(value, list) or not low <= len(value) <= high:
            raise refuse(what)
        return value

    return BeforeValidator(check)
