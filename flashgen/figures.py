"""Pictures look the same wherever they are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def plain_figures() -> Iterator[None]:
    """Within it, and within a function that it decorates, matplotlib has its own settings.

    Otherwise it takes those of a file in the working folder, which may have every text set by TeX.
    """
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield
