"""`flashgen explain`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashgen.cli.failure import for_each, guarded
from flashgen.cli.options import DEFAULT_OUT, Json, Out, Specs, path_option, seed_option
from flashgen.cli.output import Output, to_json
from flashgen.cli.specs import read
from flashgen.errors import UsageError
from flashgen.files import check_target

if TYPE_CHECKING:
    from flashgen.explain import Explained
    from flashgen.explain.picture import Panel
    from flashgen.explain.scores import ScorePanel

# Rows and columns of the picture in characters, which are twice as tall as wide.
DRAWING = (32, 64)
# Every pair of the picture is evaluated, which takes time.
MAX_LENGTH = 16384


@guarded
def explain(
    specs: Specs,
    png: Annotated[
        Path | None,
        path_option(
            "--png", metavar="FILE", help="Save the masks of all specs as one picture, with --score the scores."
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            "--length", min=1, max=MAX_LENGTH, metavar="N", help="Queries and keys of the picture; by default 4096."
        ),
    ] = None,
    seed: Annotated[int, seed_option("Draws the random inputs of the picture.")] = 0,
    score: Annotated[
        bool,
        typer.Option("--score", help="Draw the score modification too: what is added, or where it bends, by head."),
    ] = False,
    dark: Annotated[bool, typer.Option("--dark", help="With --png: for pages with a dark background.")] = False,
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> None:
    """Show what a spec means. Its formula and inputs, how tiles are skipped, the configs, and the mask drawn."""
    if dark and png is None:
        raise UsageError("--dark was given without --png; expected the picture that it is for")
    if png is not None:
        check_target(png, ".png")
    output = Output.choose(json)
    panels: list[Panel] = []
    scores: list[ScorePanel] = []

    def one(spec: str) -> None:
        variant = read(spec, output)
        # What is wrong with the input is said before torch is imported.
        from flashgen.explain import explain as explain_variant

        explained = explain_variant(variant, out, length, seed, score)
        show(explained, output)
        output.document(document(explained))
        panels.append(explained.panel)
        if explained.score_panel is not None:
            scores.append(explained.score_panel)

    try:
        for_each(specs, one)
    finally:
        if png is not None and panels:
            from flashgen.explain.picture import save

            save(panels, png, scores, dark)
            output.line(f"saved {png}")


def show(explained: Explained, output: Output) -> None:
    """The explanation for people."""
    e, panel = explained.explanation, explained.panel
    output.line(f"{e.name}: {e.description}" if e.description else e.name, style="bold")
    output.line(f"spec {e.source}, digest {e.digest}", style="dim")
    section(output, "formula", e.formula)
    section(output, "expressions", [f"{n.name}: {n.type} = {n.text}" for n in (*e.lets, e.score, e.mask)])
    section(output, "inputs", e.inputs)
    section(output, "params", e.params)
    section(output, "skipping", [e.skipping])
    section(output, "kernels", list(e.kernels))
    section(output, "configs", [str(used) for used in explained.configs])
    section(output, "mask", [tile_summary(panel), *drawing(panel, output)])
    if explained.score_panel is not None:
        section(output, "score", score_drawing(explained.score_panel, output))


def section(output: Output, title: str, lines: Sequence[str]) -> None:
    if lines:
        output.line(title, style="bold")
        for line in lines:
            output.line(f"  {line}")


def tile_summary(panel: Panel) -> str:
    tiles = panel.tiles
    none, mixed, full = (int(kind.sum()) for kind in (tiles.none, tiles.mixed, tiles.full))
    return (
        f"{tiles.q_len} queries by {tiles.kv_len} keys, first batch and head, random inputs: {tiles.density:.2%} of "
        f"pairs visible; {tiles.counts.size} tiles of {tiles.BM}x{tiles.BN}: {none} none, {mixed} mixed, {full} full"
    )


def drawing(panel: Panel, output: Output) -> list[str]:
    """The mask in characters."""
    from flashgen.explain.picture import draw

    rows, columns = (max(1, n // size) for n, size in zip(panel.cells.counts.shape, DRAWING, strict=True))
    return draw(panel.cells.merged(rows, columns), shades_of(output))


def shades_of(output: Output) -> str:
    from flashgen.explain.picture import ASCII_SHADES, SHADES

    return SHADES if (output.console.encoding or "").lower().startswith("utf") else ASCII_SHADES


def score_drawing(panel: ScorePanel, output: Output) -> list[str]:
    """The score modification in characters: two heads side by side, then what becomes of a score."""
    from flashgen.explain.curves import curve_of, limits, map_of

    if not panel.added and not panel.bends:
        return ["scores are not modified"]
    lines: list[str] = []
    if panel.added:
        (low, high), (least, greatest) = limits(panel), panel.span
        lines.append(
            f"added to a visible pair: {least:.4g} to {greatest:.4g}; light is {low:.4g} or less, dark is {high:.4g}"
        )
    for start in range(0, len(panel.added), 2):
        shown = panel.added[start : start + 2]
        maps = [map_of(each, panel, shades_of(output)) for each in shown]
        lines.append("  ".join(each.label.ljust(len(maps[0][0])) for each in shown).rstrip())
        lines += ["  ".join(row) for row in zip(*maps, strict=True)]
    for index, bend in enumerate(panel.bends):
        lines.append(f"from {bend.raw[0]:g} to {bend.raw[-1]:g}, what a score (.) becomes (*): {bend.label}")
        lines += curve_of(panel, index)
    return lines


def document(explained: Explained) -> dict[str, object]:
    """The explanation for machines."""
    tiles = explained.panel.tiles
    return {
        **to_json(explained.explanation),
        "configs": explained.configs,
        "picture": {
            "q_len": tiles.q_len,
            "kv_len": tiles.kv_len,
            "density": tiles.density,
            "tile": [tiles.BM, tiles.BN],
            "none": int(tiles.none.sum()),
            "mixed": int(tiles.mixed.sum()),
            "full": int(tiles.full.sum()),
        },
        **({} if explained.score_panel is None else {"scores": score_document(explained.score_panel)}),
    }


def score_document(panel: ScorePanel) -> dict[str, object]:
    """The score modification for machines: spans by head, and the curves."""
    import numpy as np

    return {
        "added": [
            {"head": each.head, "least": float(np.nanmin(each.values)), "greatest": float(np.nanmax(each.values))}
            for each in panel.added
        ],
        "bends": [
            {"head": each.head, "pair": each.pair, "raw": each.raw.tolist(), "score": each.score.tolist()}
            for each in panel.bends
        ],
    }
