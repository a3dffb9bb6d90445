"""The pictures that pages show: `python docs/make/pictures.py` draws them anew, from the pages' own specs.

Each is drawn twice, for light and for dark pages. Broken outputs are those of generated kernels with one mistake,
made as in tests/verify/test_mutations.py and run in Triton's interpreter.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "verify")]

import torch
from packages import changed
from test_mutations import MUTATIONS, rendered

from flashgen.bench import picture as speed
from flashgen.bench.rows import Row, first_of_each, read
from flashgen.codegen import load_module, write_package
from flashgen.explain import picture_of, score_picture_of
from flashgen.explain.picture import save
from flashgen.figures import plain_figures
from flashgen.files import png_of, write_file
from flashgen.spec import load

FOLDER = ROOT / "docs" / "pictures"
BACKGROUNDS = (("", False), ("_dark", True))
LENGTH = 512


@dataclass(frozen=True)
class Broken:
    """A picture of a mistake of MUTATIONS, by its name and variant; `size` is that of q, which makes large scores."""

    picture: str
    mistake: str
    variant: str
    size: float = 1.0


BROKEN = (
    Broken("no_rescale", "no rescale", "causal", size=6.0),
    Broken("no_maximum", "no maximum subtracted", "causal", size=60.0),
    Broken("late_modification", "modifier after the maximum", "softcap", size=100.0),
    Broken("tile_left_out", "the last tile of keys left out", "causal"),
)


def steps() -> list[str]:
    """The specs of the tutorial."""
    return re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/writing.md").read_text(encoding="utf-8"), re.DOTALL)


def draw_step(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.yaml")
        path.write_text(text, encoding="utf-8")
        variant = load(path)
    mask = picture_of(variant, LENGTH)
    score = score_picture_of(variant, mask)
    for suffix, dark in BACKGROUNDS:
        save([mask], FOLDER / f"{variant.name}_mask{suffix}.png", dark=dark)
        if score.added or score.bends:
            save([], FOLDER / f"{variant.name}_score{suffix}.png", [score], dark=dark)


def draw_broken(broken: Broken) -> None:
    """One column of the output over the queries, right and wrong."""
    (mutation,) = (m for m in MUTATIONS if (m.name, m.variant) == (broken.mistake, broken.variant))
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 320, 16, generator=generator) for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, broken.variant)
        write_package(path, changed(rendered(broken.variant), *mutation.replacements))
        module = load_module(path)
        wrong = module.attention(q * broken.size, k, v)[0, 0, :, 0]
        right = module.reference(q * broken.size, k, v)[0, 0, :, 0]
    for suffix, dark in BACKGROUNDS:
        draw_lines(right, wrong, f"{broken.variant}: {broken.mistake}", FOLDER / f"{broken.picture}{suffix}.png", dark)


def draw_lines(right: torch.Tensor, wrong: torch.Tensor, title: str, path: Path, dark: bool) -> None:
    with plain_figures(dark):
        from matplotlib import pyplot

        figure, place = pyplot.subplots(figsize=(6, 2.4), layout="constrained")
        most = 1.4 * float(right.abs().max())
        lost = ~torch.isfinite(wrong)
        place.plot(wrong, color="#d9731a", linewidth=1.2, label="with the mistake")
        place.plot(right, color="#4a90c4", linewidth=1.2, linestyle="--", label="right")
        if lost.any():
            place.vlines(
                lost.nonzero()[:, 0], -most, -0.9 * most, color="#c0392b", linewidth=1, label="NaN or infinite"
            )
        place.set_ylim(-most, most)
        place.set_title(title, fontsize=9)
        place.set_xlabel("query", fontsize=9)
        place.legend(fontsize=9, frameon=False, ncols=3, loc="upper right")
        write_file(path, png_of(figure, dpi=130))
        pyplot.close(figure)


def shown_speeds() -> list[Row]:
    """Rows of the table in the README: head dimension 128, 8192 queries and keys, one shape for all."""
    rows = first_of_each(read(ROOT / "docs/bench.jsonl"))
    first = rows[0].case.problem
    return [row for row in rows if row.case.problem == first and row.case.step in ("forward", "backward")]


def main(names: Sequence[str]) -> None:
    if not names or "steps" in names:
        for text in steps():
            draw_step(text)
    if not names or "broken" in names:
        for broken in BROKEN:
            draw_broken(broken)
    if not names or "speed" in names:
        for suffix, dark in BACKGROUNDS:
            speed.draw(shown_speeds(), ROOT / f"docs/bench{suffix}.png", dark=dark)
    if not names or "masks" in names:
        order = [
            "causal",
            "sliding_window",
            "prefix_lm",
            "document",
            "dilated",
            "global_window",
            "block_sparse",
            "full",
        ]
        panels = [picture_of(load(ROOT / f"variants/{name}.yaml"), 4096, seed=5) for name in order]
        for suffix, dark in BACKGROUNDS:
            save(panels, ROOT / f"docs/masks{suffix}.png", dark=dark)


if __name__ == "__main__":
    main(sys.argv[1:])
