"""The benchmark as a picture: TFLOP/s on useful work of every candidate, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flashgen.bench.candidates import FLASHGEN
from flashgen.bench.passes import FORWARD
from flashgen.bench.rows import Case, Row
from flashgen.figures import plain_figures
from flashgen.files import png_of, write_file

COLOURS = ("#1f4e79", "#7fa7c9", "#d98032", "#6b9e5f", "#8a6fae", "#a0a0a0")


@plain_figures()
def draw(rows: Sequence[Row], path: Path) -> None:
    """Save horizontal bars, one group for each case, to a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys(row.case for row in rows))
    candidates = list(dict.fromkeys(row.candidate for row in rows if row.tflops is not None))
    height = 0.8 / max(len(candidates), 1)
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.22 * len(cases) * (len(candidates) + 1)), layout="constrained")
    for place, candidate in enumerate(candidates):
        bars = {row.case: row.tflops for row in rows if row.candidate == candidate and row.tflops is not None}
        at = [cases.index(case) + place * height for case in bars]
        drawn = axes.barh(at, list(bars.values()), height, label=candidate, color=COLOURS[place % len(COLOURS)])
        axes.bar_label(drawn, fmt="%.0f", padding=2, fontsize=7, fontweight="bold" if candidate == FLASHGEN else None)
    axes.set_yticks([i + 0.4 - height / 2 for i in range(len(cases))], [label(case) for case in cases], fontsize=8)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xlabel("TFLOP/s on visible pairs")
    axes.set_title(", ".join(sorted({case.gpu for case in cases})), fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    if candidates:
        axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3)
    try:
        write_file(path, png_of(figure, dpi=150))
    finally:
        pyplot.close(figure)


def label(case: Case) -> str:
    step = "" if case.step == FORWARD else f", {case.step}"
    return f"{case.variant}{step}\n{case.problem}"
