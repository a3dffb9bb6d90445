"""The JSON Schema and the reader agree on which keys there are; reserved names cover the language."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from gallery import PATHS

from flashgen.errors import SpecError
from flashgen.lang.check import FUNCTIONS
from flashgen.spec import json_schema, load
from flashgen.spec.names import name_problem

SCHEMA = json_schema()


def allowed(value: Any, schema: dict[str, Any]) -> bool:
    """Whether the value has the form that the schema states: the keywords that this schema uses."""
    if "$ref" in schema:
        return allowed(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    if "anyOf" in schema:
        return any(allowed(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": int | float}
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    fits = [n for n in names if isinstance(value, kinds[n]) and (n == "boolean" or not isinstance(value, bool))]
    if not fits:
        return False
    if isinstance(value, dict):
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        known = [properties.get(key, rest) for key in value]
        inside = all(part is not False and allowed(value[key], part) for key, part in zip(value, known, strict=True))
        enough = len(value) >= schema.get("minProperties", 0)
        return inside and enough and all(key in value for key in schema.get("required", ()))
    if isinstance(value, list):
        return schema.get("minItems", 0) <= len(value) and all(allowed(item, schema["items"]) for item in value)
    if isinstance(value, str):
        return re.search(schema.get("pattern", ""), value) is not None
    return isinstance(value, bool) or schema.get("minimum", value) <= value <= schema.get("maximum", value)


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_the_gallery_fits_the_schema(path: Path) -> None:
    assert allowed(yaml.safe_load(path.read_text()), SCHEMA)


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "a", "sofcap": 1.0},
        {"name": "a", "causal": "yes"},
        {"name": "a", "head_dim": 600},
        {"name": "a", "head_dim": []},
        {"name": "a", "window": {"left": -1}},
        {"name": "a", "window": None},
        {"name": "a", "window": {}},
        {"name": "a", "params": {"W": "64"}},
        {"name": "a", "params": {"W": {"valu": 64}}},
        {"name": "a", "inputs": {"doc": {"dtype": "int32"}}},
        {"name": "a", "inputs": {"doc": {"shape": [0], "dtype": "int32"}}},
        {"name": "a", "score": ["score"]},
        {"causal": True},
        {"name": "A"},
        {"name": "a" * 65},
    ],
    ids=str,
)
def test_reader_and_schema_refuse_the_same(spec: dict[str, Any]) -> None:
    assert not allowed(spec, SCHEMA)
    with pytest.raises(SpecError):
        load(spec)


def test_every_key_is_described() -> None:
    forms = [SCHEMA, *SCHEMA["$defs"].values()]
    assert all("description" in key for form in forms for key in form["properties"].values())
    assert SCHEMA["title"] == "flashgen spec"
    assert "null" not in json.dumps(SCHEMA)


def test_functions_of_the_language_are_reserved() -> None:
    assert all(name_problem(name) for name in FUNCTIONS)
