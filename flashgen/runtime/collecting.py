"""Python's garbage collector out of the way while much is made that stays.

A collection of the oldest objects looks at every one there is, hundreds of thousands in a process with torch, and
comes for nothing where text is rendered or a kernel compiled: of what these make most is kept, or freed by its count of
references.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_counting = Lock()
_pauses = 0
_was_enabled = False


@contextmanager
def no_collections() -> Iterator[None]:
    """Within the block Python collects no garbage, in any thread. Blocks may nest and overlap."""
    global _pauses, _was_enabled
    with _counting:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _counting:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()
