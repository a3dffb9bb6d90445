"""Pictures look the same wherever they are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Ink of a picture for pages with a dark background; paper is left to the page.
DARK_INK = "#c9ccd3"
INKED: tuple[Any, ...] = (
    "text.color",
    "axes.labelcolor",
    "axes.edgecolor",
    "axes.titlecolor",
    "xtick.color",
    "ytick.color",
)
PAPERS: tuple[Any, ...] = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")


@contextmanager
def plain_figures(dark: bool = False) -> Iterator[None]:
    """Within it, and within a function that it decorates, matplotlib has its own settings.

    Otherwise it takes those of a file in the working folder, which may have every text set by TeX. `dark` is for pages
    with a dark background: light ink on no paper.
    """
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        if dark:
            matplotlib.rcParams.update(dict.fromkeys(INKED, DARK_INK))
            matplotlib.rcParams.update(dict.fromkeys(PAPERS, "none"))
        yield
