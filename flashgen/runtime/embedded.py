"""What an exported module, one file that stands alone, has in the place of its surroundings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from flashgen.runtime.differentiable import attention_operator
from flashgen.runtime.identity import Identity
from flashgen.runtime.operator import Operator

# The text of each table of tuned records by its name, `<gpu>.json`.
EMBEDDED: dict[str, str] = {}


class EmbeddedRoot(PurePosixPath):
    """A folder of records, as far as looking them up needs one; its files are those of EMBEDDED."""

    def read_bytes(self) -> bytes:
        if str(self) not in EMBEDDED:
            raise FileNotFoundError(f"no records {self} in this file")
        return EMBEDDED[str(self)].encode()

    def glob(self, pattern: str) -> Iterator[EmbeddedRoot]:
        return (EmbeddedRoot(path) for path in EMBEDDED if PurePosixPath(path).match(pattern))


def embedded_root(_: object) -> EmbeddedRoot:
    """In the place of `shipped_root`."""
    return EmbeddedRoot()


def shared_operator(identity: Identity, *arguments: Any, **options: Any) -> Operator:
    """In the place of `attention_operator`: copies of one exported file in one process share their operators.

    The name has the digests of spec and templates, so they are the same kernels.
    """
    exported = replace(identity, variant=f"{identity.variant}_exported")
    return attention_operator(exported, *arguments, **options, shared=True)
