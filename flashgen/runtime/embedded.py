"""What an exported module, one file that stands alone, has in the place of its surroundings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from flashgen.runtime.differentiable import attention_operator
from flashgen.runtime.torch_operator import Operator
from flashgen.runtime.torch_operator_paged import paged_operator
from flashgen.runtime.variant import Variant

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


def shared_operator(variant: Variant) -> Operator:
    """In the place of `attention_operator`: copies of one exported file in one process share their operators.

    The name has the digests of spec and templates, so they are the same kernels.
    """
    return attention_operator(variant, shared=True)


def shared_paged_operator(variant: Variant) -> Operator:
    """In the place of `paged_operator`, likewise."""
    return paged_operator(variant, shared=True)
