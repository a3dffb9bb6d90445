"""What an exported module, one file that stands alone, has in the place of its surroundings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from flashgen.runtime.differentiable import attention_operator
from flashgen.runtime.identity import Identity
from flashgen.runtime.operator import Operator
from flashgen.runtime.paged_operator import paged_operator

# The text of each tuned record by its path below the root.
EMBEDDED: dict[str, str] = {}


class EmbeddedRoot(PurePosixPath):
    """A folder of records, as far as looking them up needs one; its files are those of EMBEDDED."""

    def read_bytes(self) -> bytes:
        if str(self) not in EMBEDDED:
            raise FileNotFoundError(f"no record {self} in this file")
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
    return attention_operator(_exported(identity), *arguments, **options, shared=True)


def shared_paged_operator(identity: Identity, *arguments: Any) -> Operator:
    """In the place of `paged_operator`."""
    return paged_operator(_exported(identity), *arguments, shared=True)


def _exported(identity: Identity) -> Identity:
    return replace(identity, variant=f"{identity.variant}_exported")
