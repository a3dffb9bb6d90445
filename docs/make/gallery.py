"""The gallery: a page for each variant, from its spec, its module and the measurements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flashgen.bench.rows import Row, first_of_each, read
from flashgen.codegen import uses_schedule
from flashgen.explain import picture_of, score_picture_of
from flashgen.explain.describe import describe
from flashgen.explain.picture import save
from flashgen.spec import load
from flashgen.spec.variant import Variant

# Queries and keys of the pictures: masks reach up to 4096 keys, learned biases 64.
LENGTH, SCORE_LENGTH = 4096, 512


def pictures(variant: Variant, folder: Path) -> list[str]:
    """Draw the mask and the score modification into a folder, for both backgrounds; the names without suffix."""
    mask = picture_of(variant, LENGTH)
    near = picture_of(variant, SCORE_LENGTH)
    score = score_picture_of(variant, near)
    names = [f"{variant.name}_mask"]
    if score.added or score.bends:
        names.append(f"{variant.name}_score")
    for suffix, dark in (("", False), ("_dark", True)):
        save([mask], folder / f"{names[0]}{suffix}.png", dark=dark)
        if len(names) > 1:
            save([], folder / f"{names[1]}{suffix}.png", [score], dark=dark)
    return names


def page(path: Path, module: Path, rows: list[Row], names: list[str]) -> str:
    """The page of the spec at `path`, whose module lies in `module`."""
    variant = load(path)
    explained = describe(variant, uses_schedule(variant))
    own = [row for row in rows if row.case.variant == variant.name and row.tflops is not None]
    return "\n".join(
        [
            f"# {variant.name}\n\n{variant.description}\n",
            f"```yaml\n{path.read_text(encoding='utf-8')}```\n",
            "## Formula\n\n```text\n" + "\n".join(explained.formula) + "\n```\n",
            *(f"Inputs: {'; '.join(f'`{each}`' for each in explained.inputs)}\n" for _ in explained.inputs[:1]),
            "## Pictures\n",
            *(f"![{caption(name)}](pictures/{name}.png)\n" for name in names),
            f"Skipping: {explained.skipping}.\n",
            "## Speed\n",
            *(speeds(own) if own else ["Not measured yet.\n"]),
            "## Kernels\n",
            *kernels(module),
        ]
    )


def caption(name: str) -> str:
    variant, kind = name.rsplit("_", 1)
    return f"The {kind} of {variant}"


def speeds(rows: list[Row]) -> Iterator[str]:
    """A table of all candidates, and where they were measured."""
    first = rows[0].case
    yield f"On {first.gpu}, torch {first.torch}, triton {first.triton}; TFLOP/s on visible pairs.\n"
    yield "| pass | sizes | candidate | TFLOP/s | ms |\n| --- | --- | --- | ---: | ---: |"
    for row in rows:
        yield f"| {row.case.step} | {row.case.problem} | {row.candidate} | {row.tflops:.0f} | {row.median_ms:.3f} |"
    yield ""


def kernels(module: Path) -> Iterator[str]:
    """Every file of a module, folded."""
    for file in sorted(module.glob("*.py")):
        text = file.read_text(encoding="utf-8")
        inside = "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())
        yield f'??? note "`{file.name}`, {len(text.splitlines())} lines"\n\n    ```python\n{inside}    ```\n'


def specs() -> list[Path]:
    return sorted(Path("variants").glob("*.yaml"))


def rows() -> list[Row]:
    return first_of_each(read(Path("docs/bench.jsonl")))
