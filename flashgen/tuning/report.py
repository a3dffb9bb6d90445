"""Pictures of what a search saw of one workload: its history, the space as a heat map, spread, roofline."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from flashgen.figures import plain_figures
from flashgen.files import png_of, write_file
from flashgen.runtime.config import Config
from flashgen.tuning.outcome import Entry, Outcome, Work, timed
from flashgen.tuning.table import Table, file_name

BLUE, LIGHT, ORANGE, GREY = "#1f4e79", "#7fa7c9", "#d98032", "#a0a0a0"
# Times beyond so many times the best are cut off: that they are slow is all there is to see.
CUT = 3.0
# The fastest configs whose spread is shown, those within a share of the best, but a few at least.
SHOWN, NEAR, FEW = 16, 1.25, 4


@plain_figures()
def report(outcome: Outcome, folder: Path) -> list[Path]:
    """Save the pictures of an outcome below `folder` and return their paths; none where nothing was timed.

    The roofline is left out where the GPU's own speed could not be measured, or no pair is visible.
    EnvironmentProblem where the folder cannot be written.
    """
    table = Table.of(outcome)
    if not timed(table.entries):
        return []
    figures = {"history": history(table), "space": space(table), "spread": spread(table)}
    if table.work is not None and table.work.flops > 0:
        figures["roofline"] = roofline(table, table.work)
    paths = []
    for name, figure in figures.items():
        path = folder / file_name(table.workload, f"-{name}.png")
        write_file(path, png_of(figure, dpi=150))
        paths.append(path)
    return paths


def history(table: Table) -> Any:
    """Each trial's time in the order in which they were made, and the best so far."""
    figure, axes = _figure(table, 8, 4.2)
    measured = table.measured
    order = [(place, entry.timing.median_us) for place, entry in enumerate(measured, 1) if entry.timing]
    places, times = zip(*order, strict=True)
    roof = CUT * min(times)
    axes.step(places, np.minimum.accumulate(times), where="post", color=BLUE, label="best so far")
    shown = [(p, us) for p, us in order if us <= roof]
    axes.scatter(*zip(*shown, strict=True), s=22, color=LIGHT, edgecolor=BLUE, linewidth=0.5, label="trial", zorder=3)
    for label, marker, cut in (
        (f"slower than {CUT:.0f} times the best", "^", [p for p, us in order if us > roof]),
        ("failed", "x", [p for p, entry in enumerate(measured, 1) if entry.timing is None]),
    ):
        if cut:
            axes.scatter(cut, [roof] * len(cut), s=26, marker=marker, color=ORANGE, label=label, clip_on=False)
    axes.set(xlabel="trial", ylabel="median time in µs", ylim=(0.96 * min(times), None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=4)
    return figure


def space(table: Table) -> Any:
    """The time of every config beside the best: a panel for each number of stages and all but tiles, tiles within."""
    configs = [entry.config for entry in table.entries]
    entries = {(_kind(e.config), e.config.num_stages, e.config.BM, e.config.BN): e for e in table.entries}
    kinds = sorted({_kind(config) for config in configs})
    stages, rows, columns = (sorted({getattr(c, name) for c in configs}) for name in ("num_stages", "BM", "BN"))
    size = (1.6 + 2.1 * len(stages), 1.3 + 2.0 * len(kinds))
    figure, axes = _figure(table, *size, nrows=len(kinds), ncols=len(stages), sharex=True, sharey=True)
    best = min(timing.median_us for _, timing in timed(table.entries))
    panels = np.array(axes).reshape(len(kinds), len(stages))
    image = None
    for (i, kind), (j, s) in product(enumerate(kinds), enumerate(stages)):
        panel = panels[i, j]
        cells = [[entries.get((kind, s, bm, bn)) for bn in columns] for bm in rows]
        shares = np.array([[e.timing.median_us / best if e and e.timing else np.nan for e in row] for row in cells])
        image = panel.imshow(np.minimum(shares, CUT), cmap="viridis_r", vmin=1, vmax=CUT, origin="lower", aspect="auto")
        panel.set_facecolor("#ececec")
        for (y, x), share in np.ndenumerate(shares):
            text, look = _cell(cells[y][x], share)
            panel.text(x, y, text, **look)
        also = ", ".join(value if name == "backend" else f"{name} {value}" for name, value in kind[1])
        panel.set_title(f"{kind[0]} warps, {s} stage{'s' * (s > 1)}\n{also}".rstrip(), fontsize=7)
        panel.set_xticks(range(len(columns)), columns, fontsize=7)
        panel.set_yticks(range(len(rows)), rows, fontsize=7)
    figure.supxlabel("BN, keys of a tile", fontsize=9)
    figure.supylabel("BM, query rows of a tile", fontsize=9)
    figure.colorbar(image, ax=axes, label="time / best", shrink=0.8)
    return figure


def spread(table: Table) -> Any:
    """The fastest configs with the interquartile range of their repetitions."""
    ranked = sorted(timed(table.entries), key=lambda pair: pair[1].median_us)[:SHOWN]
    limit = NEAR * ranked[0][1].median_us
    fastest = [pair for place, pair in enumerate(ranked) if place < FEW or pair[1].median_us <= limit]
    figure, axes = _figure(table, 8, 1.6 + 0.26 * len(fastest))
    medians = [timing.median_us for _, timing in fastest]
    ranges = [timing.spread * timing.median_us / 2 for _, timing in fastest]
    places = range(len(fastest))
    axes.errorbar(medians, places, xerr=ranges, fmt="o", color=BLUE, ecolor=ORANGE, elinewidth=2.5, capsize=3, ms=5)
    for place, (_, timing) in enumerate(fastest):
        behind = f"{timing.median_us / medians[0] - 1:+.1%}" if place else "best"
        axes.annotate(f"{behind}, spread {timing.spread:.1%}", (1.01, place), fontsize=7, va="center",
                      xycoords=("axes fraction", "data"))  # fmt: skip
    axes.set_yticks(places, [entry.config.label for entry, _ in fastest], fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_xlabel("median time in µs, and the middle half of the repetitions")
    return figure


def roofline(table: Table, work: Work) -> Any:
    """The speeds reached below what memory and tensor cores allow; all configs do the same useful work."""
    figure, axes = _figure(table, 8, 4.6)
    intensity = work.flops / work.bytes
    ridge = work.ceiling_tflops * 1e3 / work.bandwidth_gbs
    reach = np.geomspace(min(1.0, intensity / 4), 4 * max(ridge, intensity), 200)
    axes.plot(reach, np.minimum(work.bandwidth_gbs * reach / 1e3, work.ceiling_tflops), color=GREY)
    speeds = [work.tflops(timing.median_us) for _, timing in timed(table.entries)]
    axes.scatter([intensity] * len(speeds), speeds, s=18, color=LIGHT, edgecolor=BLUE, linewidth=0.4, zorder=3)
    best = max(speeds)
    axes.scatter([intensity], [best], s=42, color=ORANGE, zorder=4)
    axes.annotate(f"best: {best:.0f} TFLOP/s\n{best / work.ceiling_tflops:.0%} of a matrix product", (intensity, best),
                  xytext=(10, 0), textcoords="offset points", fontsize=8, va="center")  # fmt: skip
    axes.annotate(f"matrix product {work.ceiling_tflops:.0f} TFLOP/s", (reach[-1], work.ceiling_tflops),
                  xytext=(0, 4), textcoords="offset points", fontsize=8, ha="right", color="#606060")  # fmt: skip
    floor = 0.5 * min(speeds)
    middle = (floor * work.ceiling_tflops) ** 0.5
    axes.annotate(f"memory {work.bandwidth_gbs:.0f} GB/s", (middle * 1e3 / work.bandwidth_gbs, middle),
                  xytext=(-8, 0), textcoords="offset points", fontsize=8, ha="right", va="center",
                  color="#606060")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="useful FLOP for each byte that must be moved", ylabel="TFLOP/s")
    axes.set_ylim(floor, 1.6 * work.ceiling_tflops)
    axes.set_xlim(reach[0], reach[-1])
    return figure


def _figure(table: Table, width: float, height: float, **grid: Any) -> tuple[Any, Any]:
    """A figure with the workload as its title; it belongs to no window and needs no closing."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    key = table.workload.key
    figure.suptitle(f"{key.variant} on {key.gpu}, {table.workload.problem}", fontsize=10)
    axes = figure.subplots(**grid)
    for panel in np.ravel(axes):
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _kind(config: Config) -> tuple[int, tuple[tuple[str, Any], ...]]:
    """All of a config but its tiles and stages."""
    return config.num_warps, tuple(sorted(config.further.items()))


def _cell(entry: Entry | None, share: float) -> tuple[str, Any]:
    """The text of a cell of the heat map, and how it is set."""
    dark = np.isfinite(share) and share > 1.8
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.5, "color": "white" if dark else "black"}
    if entry is None:
        return "", look
    if entry.timing is not None:
        return (f"{share:.2f}", {**look, "fontweight": "bold" if share == 1 else "normal"})
    short = {"spills": "spills", "shared memory": "shared", "serialized WGMMA": "serial", "does not compile": "error"}
    return short.get(entry.dropped or entry.failure, "failed"), {**look, "color": "#808080", "fontsize": 5.5}
