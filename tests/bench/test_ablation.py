"""The ablation without a GPU: edits find their text, edited kernels compile, plans stay right, the table is whole."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch
from offline_compiler import Compile

from flashgen.bench import ablation
from flashgen.bench.ablation import Modules, ablate, table, variant_of
from flashgen.bench.edits import EDITS, FILE, edited
from flashgen.bench.plans import all_masked, all_tiles
from flashgen.bench.rows import Case, Row, read
from flashgen.bench.run import Bench
from flashgen.bench.techniques import CAUSAL, COMPARISONS, DOCUMENTS, PLACES, Kernel, Place, kernels_of
from flashgen.codegen import render
from flashgen.errors import EditFailed, UsageError
from flashgen.problems.calls import make_inputs
from flashgen.runtime import Config
from flashgen.runtime.registry import checked

EDITED = sorted({(each.place.variant, each.without.edit) for each in COMPARISONS if each.without.edit})
MACHINE = ("a GPU", "2.0", "3.6")


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.chdir(repository)


def place_of(variant: str) -> Place:
    return next(place for place in PLACES if place.variant == variant)


@pytest.mark.parametrize(("variant", "edit"), EDITED)
def test_an_edit_changes_its_lines_and_leaves_a_module(variant: str, edit: str) -> None:
    files = render(variant_of(place_of(variant)))
    changed = edited(files, edit)
    for text in changed.values():
        ast.parse(text)
    kept = set(changed[FILE].splitlines())
    gone = [line for line in files[FILE].splitlines() if line not in kept]
    assert 1 <= len(gone) <= 4
    with pytest.raises(EditFailed, match="did not find"):
        edited(changed, edit)


def test_an_edit_without_its_text_is_an_error_not_a_technique_that_brings_nothing() -> None:
    for name, edits in EDITS.items():
        with pytest.raises(EditFailed, match=r"the edit .* did not find .*; expected it in forward_sm90.py") as error:
            edited({FILE: "m = 1\n"}, name)
        assert edits[0].old.strip() in str(error.value)
    assert {edit for _, edit in EDITED} == set(EDITS)


@pytest.mark.matrix
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_kernel_compiles(edit: str, tmp_path: Path, compiled: Compile) -> None:
    place = next(each.place for each in COMPARISONS if each.without.edit == edit)
    variant, kernel = variant_of(place), Kernel(edit=edit)
    module = Modules(variant, tmp_path).of(kernel)
    config = kernel.config_for(place.problem, variant)
    found = compiled(Path(str(module.__file__)), "forward", "sm_90", "bfloat16", place.head_dim, place.head_dim, config)
    assert (found.error, found.serialized_wgmma) == (None, False)


@pytest.mark.parametrize("change", [all_masked, all_tiles])
def test_a_plan_without_savings_is_right_and_does_more(
    gallery_module: Callable[[str], ModuleType], change: Callable[..., object]
) -> None:
    module, config = gallery_module("document"), Config(32, 32, 4, 1)
    call = make_inputs(variant_of(DOCUMENTS), DOCUMENTS.problem.__class__(1, 2, 1, 200, 300, 32, 32, "float32"))
    plan = module.plan(call.q, call.k, call.v, **call.keywords, config=config)
    changed = change(plan)
    out = module.attention(call.q, call.k, call.v, **call.keywords, plan=changed)
    expected = module.reference(call.q, call.k, call.v, **call.keywords)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert (plan.counts[..., 1] > 0).any()
    if change is all_masked:
        assert torch.equal(changed.counts[..., 0], plan.counts[..., :2].sum(-1)) and not changed.counts[..., 1].any()
    else:
        assert (changed.counts[..., :2].sum(-1) == plan.tiles.shape[-1]).all()
        assert torch.equal(changed.counts[..., 1], plan.counts[..., 1])


def test_every_comparison_is_of_two_kernels_that_the_launch_takes() -> None:
    for each in COMPARISONS:
        variant = variant_of(each.place)
        labels = [kernel.label(each.place.problem, variant) for kernel in (each.without, each.kernel)]
        assert labels[0] != labels[1], each
        timed = kernels_of(each.place, variant)
        assert set(labels) <= set(timed)
        assert next(iter(timed)) == Kernel().label(each.place.problem, variant)
        for kernel in timed.values():
            assert checked("forward", kernel.config_for(each.place.problem, variant))


@contextmanager
def fake_measurement(monkeypatch: pytest.MonkeyPatch, note: str = "") -> Iterator[list[str]]:
    """Every kernel reaches 100 TFLOP/s, the one as built 110; `note` is the edited ones'."""
    measured: list[str] = []

    def measure(modules: Modules, kernels: dict[str, Kernel], case: Case, bench: Bench) -> list[Row]:
        measured.append(case.variant)
        found = []
        for place, (label, kernel) in enumerate(kernels.items()):
            wrong = note if kernel.edit else ""
            speed = None if wrong else 100.0 if place else 110.0
            found.append(Row(case, label, 1.0, 1.0, 0.01, speed, 800.0, 0.1, 1.0, wrong))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ablation, "measure_place", measure)
        yield measured


def test_the_table_is_printed_whole_and_a_second_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_file = tmp_path / "rows.jsonl"
    with fake_measurement(monkeypatch) as measured:
        assert ablate(["causal"], rows_file, False, Bench(), lambda: MACHINE) == 0
        first, places = capsys.readouterr().out, len(measured)
        assert ablate(["causal"], rows_file, True, Bench(), lambda: MACHINE) == 0
        assert capsys.readouterr().out == first
    assert places == len([place for place in PLACES if place.variant == "causal"]) == len(measured)
    lines = first.splitlines()
    assert lines[:2] == ["| technique | where | without | with | gain |", "| --- | --- | --- | --- | --- |"]
    assert len(lines) == 2 + len([each for each in COMPARISONS if each.place.variant == "causal"])
    assert "| the longest tiles first | causal, D128, S8192 | 100 | 110 | +10 % |" in lines
    assert all(row.case.gpu == "a GPU" for row in read(rows_file))


def test_what_the_time_did_not_allow_is_not_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_measurement(monkeypatch):
        assert ablate([], None, False, Bench(seconds=-1.0), lambda: MACHINE) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert f"{len(PLACES)} places were left" in said.err


def test_a_kernel_that_is_not_right_has_no_time_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_measurement(monkeypatch, note="not timed: wrong"):
        assert ablate(["sliding_window"], None, False, Bench(), lambda: MACHINE) == 1
    said = capsys.readouterr()
    assert "| tiles that no query sees are skipped | sliding_window, D128, S8192 |  | 110 |  |" in said.out
    assert "not timed: wrong" in said.err


def test_unknown_variants_are_named() -> None:
    with pytest.raises(UsageError, match="no comparison for the variant 'sink'; expected one of full, "):
        ablate(["sink"], None, False, Bench(), lambda: MACHINE)
    with pytest.raises(UsageError, match="--resume was given without --rows"):
        ablate([], None, True, Bench(), lambda: MACHINE)


def test_a_place_that_was_not_measured_has_no_row() -> None:
    assert len(table(COMPARISONS, {})) == 2 and str(CAUSAL) == "causal, D128, S8192"
