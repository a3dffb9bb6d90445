"""`flashgen schema`."""

from __future__ import annotations

from json import dumps

from flashgen.cli.failure import guarded
from flashgen.cli.options import Json


@guarded
def schema(json: Json = False) -> None:
    """Print the JSON Schema of specs, for editors. With --json on one line."""
    from flashgen.spec import json_schema

    print(dumps(json_schema(), indent=None if json else 2))
