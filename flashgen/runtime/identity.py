"""Which spec and which templates a generated module was made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """`variant` is the module's name, `spec` the digest of the spec's meaning, `templates` that of the text of each
    kernel, by its name ("forward", "backward_kv", "backward_q"); tuned records refer to both. `source` is the spec's
    path. `arguments` are the names and types of what the variant takes beyond q, k and v: the dtype of an input,
    "bool", "int" or "float" for a runtime param.
    """

    variant: str
    spec: str
    templates: Mapping[str, str]
    source: str
    arguments: Mapping[str, str]
