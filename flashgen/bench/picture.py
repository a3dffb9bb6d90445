"""The benchmark as a picture: TFLOP/s on useful work of every candidate, case by case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashgen.bench.candidates import FLASHGEN
from flashgen.bench.passes import FORWARD
from flashgen.bench.rows import Case, Row
from flashgen.figures import plain_figures
from flashgen.files import png_of, write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#1f4e79", "#7fa7c9", "#d98032", "#6b9e5f", "#8a6fae", "#a0a0a0")


def draw(rows: Sequence[Row], path: Path, dark: bool = False) -> None:
    """Save horizontal bars to a PNG file: a panel for each pass, in it a group for each variant.

    Sizes that all cases share stand in the title, others beside the variant. `dark` is for dark pages.
    """
    import matplotlib

    matplotlib.use("Agg")
    with plain_figures(dark):
        from matplotlib import pyplot

        steps = list(dict.fromkeys(row.case.step for row in rows)) or [FORWARD]
        names = {step: groups([row.case for row in rows if row.case.step == step]) for step in steps}
        candidates = list(dict.fromkeys(row.candidate for row in rows if row.tflops is not None))
        tallest = max(len(each) for each in names.values())
        size = (5.5 * len(steps) + 1, 1.2 + 0.2 * tallest * (len(candidates) + 1))
        figure, places = pyplot.subplots(1, len(steps), figsize=size, layout="constrained", squeeze=False)
        for step, place in zip(steps, places[0], strict=True):
            _panel([row for row in rows if row.case.step == step], names[step], candidates, place)
            place.set_title(step, fontsize=10)
        figure.suptitle(title([row.case for row in rows]), fontsize=10)
        handles = {
            text: bar for place in places[0] for bar, text in zip(*place.get_legend_handles_labels(), strict=True)
        }
        if handles:
            figure.legend(
                handles.values(), handles.keys(), fontsize=8, frameon=False, loc="outside lower center", ncols=4
            )
        try:
            write_file(path, png_of(figure, dpi=150))
        finally:
            pyplot.close(figure)


def _panel(rows: Sequence[Row], names: Mapping[Case, str], candidates: Sequence[str], place: Axes) -> None:
    """The bars of one pass; a candidate has the same colour in each."""
    order = list(names)
    height = 0.8 / max(len(candidates), 1)
    for number, candidate in enumerate(candidates):
        bars = {row.case: row.tflops for row in rows if row.candidate == candidate and row.tflops is not None}
        at = [order.index(case) + number * height for case in bars]
        colour = COLOURS[number % len(COLOURS)]
        drawn = place.barh(at, list(bars.values()), height, label=candidate if bars else None, color=colour)
        place.bar_label(drawn, fmt="%.0f", padding=2, fontsize=7, fontweight="bold" if candidate == FLASHGEN else None)
    place.set_yticks([i + 0.4 - height / 2 for i in range(len(order))], list(names.values()), fontsize=8)
    place.margins(x=0.08, y=0.01)
    place.invert_yaxis()
    place.set_xlabel("TFLOP/s on visible pairs", fontsize=8)
    place.spines[["top", "right"]].set_visible(False)


def groups(cases: Sequence[Case]) -> dict[Case, str]:
    """The cases in order, each with the text beside its bars."""
    shared = len({case.problem for case in cases}) == 1
    return {case: case.variant if shared else f"{case.variant}\n{case.problem}" for case in dict.fromkeys(cases)}


def title(cases: Sequence[Case]) -> str:
    """The GPUs, and the sizes where all cases have the same."""
    gpus = ", ".join(sorted({case.gpu for case in cases}))
    problems = {case.problem for case in cases}
    return f"{gpus}, {problems.pop()}" if len(problems) == 1 else gpus
