"""`flashgen schema`."""

from __future__ import annotations

import json

from flashgen.cli.failure import guarded


@guarded
def schema() -> None:
    """Print the JSON Schema of specs, for editors."""
    from flashgen.spec import json_schema

    print(json.dumps(json_schema(), indent=2))
