"""A score modification as a picture: drawn with characters for a terminal, or into a figure of matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flashgen.explain.scores import Added, ScorePanel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A key whose score is this much below another's has less than 3e-9 of its weight: farther down nothing is to be seen.
DEPTH = 20.0
LINES = ("#1f77b4", "#d9731a", "#4a9a52", "#8a6fae")
# Of a heat map with characters, and of a curve: rows and columns.
MAP, CURVE = (16, 32), (17, 65)


def limits(panel: ScorePanel) -> tuple[float, float]:
    """What the darkest and the lightest colour of all its heads stand for; what is less than the first is as dark."""
    low, high = panel.span
    low = max(low, high - DEPTH)
    # Beside a large number 1 is nothing.
    beside = max(1.0, abs(high) * 1e-9)
    return (low, high) if low < high else (low - beside, high + beside)


def draw_added(added: Added, panel: ScorePanel, place: Axes) -> None:
    """Draw the heat map of a head, queries down, with the scale that its heads share."""
    low, high = limits(panel)
    picture = place.imshow(
        added.values, cmap="viridis", vmin=low, vmax=high, interpolation="nearest",
        extent=(0, panel.kv_len, panel.q_len, 0),
    )  # fmt: skip
    place.set_title(f"{panel.title}: added, {added.label}", fontsize=8)
    place.tick_params(labelsize=6)
    extend = "min" if panel.span[0] < low else "neither"
    place.figure.colorbar(picture, ax=place, extend=extend, shrink=0.8).ax.tick_params(labelsize=6)


def draw_bends(panel: ScorePanel, place: Axes) -> None:
    """Draw what becomes of a score, over the score, beside the line of scores that stay as they are."""
    raw = panel.bends[0].raw
    place.plot(raw, raw, linestyle=":", color="#888888", linewidth=1)
    for bend, colour in zip(panel.bends, LINES, strict=False):
        place.plot(bend.raw, bend.score, color=colour, label=bend.label, linewidth=1.6)
    place.set_box_aspect(1)
    place.set_title(f"{panel.title}: score, after it", fontsize=8)
    place.tick_params(labelsize=6)
    place.legend(fontsize=5, frameon=False, loc="upper left")


def map_of(added: Added, panel: ScorePanel, shades: str) -> list[str]:
    """A head with characters, darker where more is added; blank where nothing is visible."""
    low, high = limits(panel)
    rows, columns = (
        np.linspace(0, n, min(n, most), endpoint=False).astype(int)
        for n, most in zip(added.values.shape, MAP, strict=True)
    )
    values = added.values[np.ix_(rows, columns)]
    share = np.nan_to_num((values.clip(low, high) - low) / (high - low))
    inner = len(shades) - 1
    levels = np.where(np.isnan(values), 0, 1 + (share * inner).astype(int).clip(0, inner - 1))
    edge = "+" + "-" * len(columns) + "+"
    return [edge, *("|" + "".join(shades[level] for level in row) + "|" for row in levels), edge]


def curve_of(panel: ScorePanel, index: int) -> list[str]:
    """One of the bends with characters: `*` what comes out, `.` what went in."""
    bend = panel.bends[index]
    rows, columns = CURVE
    at = np.linspace(0, len(bend.raw) - 1, columns).round().astype(int)
    reach = float(bend.raw[-1])
    grid = np.full((rows, columns), " ")
    for values, mark in ((bend.raw[at], "."), (bend.score[at], "*")):
        level = (rows - 1) * (reach - values) / (2 * reach)
        inside = np.isfinite(values) & (level >= -0.5) & (level <= rows - 0.5)
        grid[level[inside].round().astype(int), np.flatnonzero(inside)] = mark
    edge = "+" + "-" * columns + "+"
    return [edge, *("|" + "".join(row) + "|" for row in grid), edge]
