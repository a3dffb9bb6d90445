"""A document checked against the form of a spec; its problems in words, each at its place in the file."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from flashgen.errors import SpecError
from flashgen.spec import names
from flashgen.spec.model import SpecForm
from flashgen.spec.source import Document, KeyPath

_LONG = 60


def parse(document: Document) -> SpecForm:
    """Check a document's form. Raises SpecError at the first problem in the file's order, with a count of the rest."""
    try:
        spec = SpecForm.model_validate(document.data)
    except ValidationError as error:
        problems = [_problem(document, detail) for detail in error.errors(include_url=False)]
        first = min(problems, key=lambda p: (p.location.line or 0, p.location.column or 0))
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise SpecError(first.location, first.found, first.expected + more) from None
    expected = names.module_problem(spec.name)
    if expected:
        raise SpecError(document.at(("name",)), f"the name {_shown(spec.name)}", expected)
    return spec


def _problem(document: Document, detail: Any) -> SpecError:
    path: KeyPath = detail["loc"]
    value = detail["input"]
    context = detail.get("ctx", {})
    plain = {"dict_type": "a mapping of names", "list_type": "a list"}
    expected = plain.get(detail["type"], detail["msg"])
    key, found = context.get("key"), context.get("found")
    if key:
        path = (*path, key)
    at = document.key(path) if key and found else document.at(path)
    return SpecError(at, found or _shown(value[key] if key and isinstance(value, dict) else value), expected)


def _shown(value: Any) -> str:
    """A value in a few words, for messages."""
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        items = ", ".join(map(_shown, value))
        whole = len(items) <= _LONG and not any(isinstance(item, dict | list) for item in value)
        return (f"[{items}]" if whole else f"a list of {len(value)}") if value else "an empty list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."
