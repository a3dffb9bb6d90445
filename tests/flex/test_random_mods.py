"""Mods that nobody thought of: their specs say what torch does, also for other captured numbers."""

from __future__ import annotations

import random
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from flex_screen import Place, alike, by_spec, by_torch
from random_mods import BATCH, HEADS, KV_LEN, Q_LEN, Writer

from flashgen.errors import ModError
from flashgen.flex.captures import capture
from flashgen.flex.spec import meaning

MODS, GROUPS = 100, 5
REFUSED = (
    # What is no table: the sum of two rows.
    "an index of what is no captured tensor",
    # What torch refuses too, but under vmap.
    "Subtraction, the `-` operator, with",
    "expected predicate to be bool",
)
SIZES = (BATCH, HEADS, Q_LEN, KV_LEN)


def namespace(code: CodeType, wide: bool = False, numbers: list[Any] | None = None) -> dict[str, Any]:
    """The module with its captured floats in double precision, or with other numbers than its own."""
    found: dict[str, Any] = {"__name__": "written", "WIDE": wide, "OTHER": numbers}
    exec(code, found)  # noqa: S102
    return found


def torch_says(code: CodeType, scores: torch.Tensor, numbers: list[Any] | None = None) -> list[torch.Tensor]:
    """In single precision and in double precision; raises what torch raises."""
    found = []
    for wide in (False, True):
        mods = namespace(code, wide, numbers)
        torch.set_default_dtype(torch.float64 if wide else torch.float32)
        try:
            found.append(by_torch(mods["score_mod"], mods["mask_mod"], scores.double() if wide else scores))
        finally:
            torch.set_default_dtype(torch.float32)
    return found


def changed(number: float, drawn: random.Random) -> float:
    """Another one of its kind."""
    if isinstance(number, float):
        return number + drawn.choice([0, 0.5, 1.0])
    return number + drawn.randrange(2) if number >= 0 else number - drawn.randrange(2)


def wrongs(code: CodeType, seed: int) -> str | None:
    """What the spec of these mods says otherwise than torch; None where torch does not take them."""
    drawn = random.Random(seed)
    scores = torch.randint(-24, 25, SIZES, generator=torch.Generator().manual_seed(seed)) / 8
    places: list[Place] = [tuple(map(drawn.randrange, SIZES)) for _ in range(30)]  # type: ignore[misc]
    try:
        wanted = torch_says(code, scores)
    except Exception:  # noqa: BLE001
        return None
    own = namespace(code)
    mods = own["score_mod"], own["mask_mod"]
    try:
        found = meaning(*mods, "mine", False)
    except ModError as error:
        return None if any(each in str(error) for each in REFUSED) else f"refused: {error}"
    wrong = difference(by_spec(found.spec, found.tensors, found.numbers, scores, places), wanted, places)
    if wrong or not own["NUMBERS"]:
        return wrong
    numbers = [changed(each, drawn) for each in own["NUMBERS"]]
    try:
        wanted = torch_says(code, scores, numbers)
    except Exception:  # noqa: BLE001
        return ""
    other = namespace(code, numbers=numbers)
    before, now = capture(*mods), capture(other["score_mod"], other["mask_mod"])
    values = [*now.values, *found.derivation.of(now.values, torch.device("cpu"))]
    if before.key != now.key or any(before.values[place] != now.values[place] for place in found.fixed):
        return ""
    tensors, params = ({name: values[found.places[name]] for name in names} for names in (found.tensors, found.numbers))
    return difference(by_spec(found.spec, tensors, params, scores, places), wanted, places)


def difference(found: torch.Tensor, wanted: list[torch.Tensor], places: list[Place]) -> str:
    """Where it is as torch has it in neither precision."""
    at = tuple(torch.tensor(each) for each in zip(*places, strict=True))
    single, double = (each[at] for each in wanted)
    wrong = ~(alike(found, single) | alike(found, double))
    return "".join(f"{places[i]}: {found[i]}, torch {single[i]}\n" for i in wrong.nonzero().flatten().tolist()[:3])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", range(GROUPS))
def test_specs_of_random_mods_say_what_torch_does(group: int, tmp_path: Path) -> None:
    tried = 0
    for seed in range(group, MODS, GROUPS):
        path = tmp_path / f"mods{seed}.py"
        path.write_text(Writer(seed).text())
        wrong = wrongs(compile(path.read_text(), str(path), "exec"), seed)
        assert not wrong, f"seed {seed}: {wrong}\n{path.read_text()}"
        tried += wrong is not None
    assert tried > MODS // GROUPS // 2
