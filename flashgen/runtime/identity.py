"""Which spec and which templates a generated module was made from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """`variant` is the module's name, `spec` the digest of the spec's meaning, `templates` that of the kernels' text;
    tuned records refer to both. `source` is the spec's path."""

    variant: str
    spec: str
    templates: str
    source: str
