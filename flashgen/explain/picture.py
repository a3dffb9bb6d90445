"""Masks and score modifications as pictures: a mask drawn with characters for a terminal, both saved as PNG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flashgen.explain.curves import draw_added, draw_bends
from flashgen.explain.scores import ScorePanel
from flashgen.explain.tiles import TileMap
from flashgen.figures import plain_figures
from flashgen.files import png_of, write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHADES = " ░▒▓█"
ASCII_SHADES = " .:+#"
PANELS_IN_A_ROW = 4

# Paper, ink: the colour of a tile's invisible pairs and of its visible ones, by what the kernel does with the tile.
COLOURS = {"none": ("#ffffff", "#ffffff"), "mixed": ("#fbe3cc", "#d9731a"), "full": ("#1f4e79", "#1f4e79")}
LEGEND = {"none": "skipped", "mixed": "mask evaluated", "full": "no mask code"}


@dataclass(frozen=True)
class Panel:
    """One mask: `cells` is the fine picture, `tiles` what the kernel sees of it."""

    title: str
    cells: TileMap
    tiles: TileMap


def draw(cells: TileMap, shades: str = SHADES) -> list[str]:
    """One character for each cell, darker where more pairs are visible; queries run down, keys to the right.

    Blank means no pair and the darkest shade every pair: what lies between is never rounded to either.
    """
    inner = len(shades) - 2
    levels = np.ceil(cells.fill * inner).clip(1, inner).astype(int)
    levels[cells.none], levels[cells.full] = 0, inner + 1
    edge = "+" + "-" * levels.shape[1] + "+"
    return [edge, *("|" + "".join(shades[level] for level in row) + "|" for row in levels), edge]


def image(panel: Panel) -> np.ndarray:
    """RGB values [rows, columns, 3] in 0..1: each cell's fill, in the colours of the tile it lies in."""
    cells, tiles = panel.cells, panel.tiles
    rows = np.arange(cells.counts.shape[0]) * cells.BM // tiles.BM
    columns = np.arange(cells.counts.shape[1]) * cells.BN // tiles.BN
    picture = np.zeros((*cells.counts.shape, 3))
    fill = cells.fill[:, :, None]
    for kind, (paper, ink) in COLOURS.items():
        chosen = getattr(tiles, kind)[np.ix_(rows, columns)][:, :, None]
        picture += chosen * (_rgb(paper) * (1 - fill) + _rgb(ink) * fill)
    return picture


def save(panels: Sequence[Panel], path: Path, scores: Sequence[ScorePanel] = (), dark: bool = False) -> None:
    """Save the masks side by side to a PNG file, and after them the score modifications.

    `dark` is for pages with a dark background.
    """
    draws = [partial(_mask, panel) for panel in panels]
    for score in scores:
        draws += [partial(draw_added, added, score) for added in score.added]
        draws += [partial(draw_bends, score)] if score.bends else []
    with plain_figures(dark):
        _save(draws, path, legend=bool(panels))


def _save(draws: Sequence[Callable[[Axes], None]], path: Path, legend: bool) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    columns = min(len(draws), PANELS_IN_A_ROW)
    rows = -(-len(draws) // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(2.4 * columns + 0.4, 2.5 * rows + 0.7), layout="constrained", squeeze=False
    )
    for place in grid.flat[len(draws) :]:
        place.axis("off")
    for draw_it, place in zip(draws, grid.flat, strict=False):
        draw_it(place)
    if legend:
        handles = [Patch(facecolor=COLOURS[kind][1], edgecolor="#999999", label=LEGEND[kind]) for kind in COLOURS]
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=3,
            frameon=False,
            fontsize=8 if columns > 1 else 6,
            columnspacing=1,
        )
    try:
        write_file(path, png_of(figure, dpi=130))
    finally:
        pyplot.close(figure)


def _mask(panel: Panel, place: Axes) -> None:
    place.imshow(image(panel), interpolation="nearest", extent=(0, panel.cells.kv_len, panel.cells.q_len, 0))
    place.set_title(f"{panel.title}  {panel.cells.density:.1%}", fontsize=9)
    place.tick_params(labelsize=6)


def _rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
