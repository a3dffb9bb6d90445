"""The pages of a cache: which are free, how many sequences hold each, and what a full one holds.

Nothing here is a tensor. A page is a number, an index of `k_cache` and `v_cache` of every layer.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence


def prefixes(tokens: Sequence[int], block_size: int) -> Iterator[bytes]:
    """A digest for each full block of the tokens, of all tokens up to its end.

    Keys and values of a block depend on all that stands before it, so blocks are alike where these digests are.
    """
    digest = b""
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = array("q", tokens[start : start + block_size])
        digest = hashlib.sha256(digest + block.tobytes()).digest()
        yield digest


class Pages:
    """Pages by number, with the count of their holders.

    A page that nobody holds is free, and yet may be found by what it holds until it is taken for something else: the
    one that was released first goes first.
    """

    def __init__(self, count: int) -> None:
        self._holders = [0] * count
        self._free = OrderedDict.fromkeys(range(count))
        self._page_of: dict[bytes, int] = {}
        self._held: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        """How many pages can be taken."""
        return len(self._free)

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """The pages of the longest prefix that is known, by the digests of its blocks; `hold` them before all else."""
        found = []
        for digest in digests:
            if digest not in self._page_of:
                break
            found.append(self._page_of[digest])
        return found

    def unheld(self, pages: Iterable[int]) -> int:
        """How many of these pages are among the free ones."""
        return sum(page in self._free for page in pages)

    def hold(self, page: int) -> None:
        """One holder more for a page that was found."""
        self._free.pop(page, None)
        self._holders[page] += 1

    def take(self) -> int:
        """A free page for new keys, with one holder; what it held is forgotten. KeyError where none is free."""
        page, _ = self._free.popitem(last=False)
        if page in self._held:
            del self._page_of[self._held.pop(page)]
        self._holders[page] = 1
        return page

    def release(self, page: int) -> None:
        """One holder less."""
        self._holders[page] -= 1
        if not self._holders[page]:
            self._free[page] = None

    def publish(self, page: int, digest: bytes) -> None:
        """Say what a page holds that is full, so that others find it; where two hold the same, the first is found."""
        if digest not in self._page_of:
            self._page_of[digest], self._held[page] = page, digest
