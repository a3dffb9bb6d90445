"""The JSON Schema of a spec, for editors."""

from __future__ import annotations

from typing import Any

from flashgen.spec.model import SpecForm


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a spec, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "flashgen spec",
        **_tidy(SpecForm.model_json_schema()),
    }


def _tidy(node: Any) -> Any:
    """Without the titles that pydantic makes of field names, and without null: an absent key is left out."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    options = [option for option in node.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        node = {key: value for key, value in node.items() if key != "anyOf"} | options[0]
    elif options:
        node = node | {"anyOf": options}
    node = {key: _tidy(value) for key, value in node.items()}
    if isinstance(node.get("title"), str):
        del node["title"]
    if node.get("default", ...) is None:
        del node["default"]
    return node
