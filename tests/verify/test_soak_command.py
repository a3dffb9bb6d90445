"""The soak's command: what it prints, its rows, which resume and join, and options that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from flashgen.verify.soak import __main__ as soak_main
from flashgen.verify.soak import crew
from flashgen.verify.soak.__main__ import main
from flashgen.verify.soak.case import from_yaml
from flashgen.verify.soak.crew import Soak
from flashgen.verify.soak.draw import draw
from flashgen.verify.soak.rows import Row, read


def test_rows_resume_and_join(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "ANSWERER", "soak_answers:answerer")
    rows = tmp_path / "rows.jsonl"
    command = ["--seed", "5", "--device", "cpu", "--jobs", "2", "--rows", str(rows)]
    assert main([*command, "--count", "3"]) == 0
    assert main([*command, "--count", "6", "--resume"]) == 0
    found = read(rows)
    assert sorted(row.index for row in found) == list(range(6))
    assert "passed        6" in capsys.readouterr().out
    assert main([*command, "--count", "9", "--resume", "--seconds", "0.000001"]) == 1
    assert "left          3" in capsys.readouterr().out
    with rows.open("a") as file:
        file.write('{"cut off')
    assert len(read(rows)) == 6


def test_what_was_found_is_told_after_an_interrupt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_ANSWERS_FAIL", "1")
    monkeypatch.setattr(crew, "ANSWERER", "soak_answers:answerer")
    everything = Soak.of

    def interrupted(soak: Soak, *given: Any) -> Iterator[Row | None]:
        yield from islice(everything(soak, *given), 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(Soak, "of", interrupted)
    rows = tmp_path / "rows.jsonl"
    assert main(["--seed", "5", "--device", "cpu", "--jobs", "1", "--count", "6", "--rows", str(rows)]) == 1
    assert len(read(rows)) == 2
    out = capsys.readouterr().out
    assert out.count("FAILED  out: on purpose") == 2 and "left          4" in out


def test_a_failure_is_printed_with_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_ANSWERS_FAIL", "1")
    monkeypatch.setattr(crew, "ANSWERER", "soak_answers:answerer")
    assert main(["--seed", "5", "--device", "cpu", "--index", "2", "--jobs", "1", "--steps", "20"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  out: on purpose" in out
    assert "# python -m flashgen.verify.soak --device cpu --seed 5 --index 2" in out
    path = tmp_path / "case.yaml"
    path.write_text(out.split("on purpose\n", 1)[1].split("# python", 1)[0])
    assert from_yaml(path.read_text()).spec["name"] == "soak"
    assert main(["--case", str(path), "--device", "cpu"]) == 1


def test_all_are_tried_by_one_process_before_any_is_made_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOAK_ANSWERS_FAIL", "1")
    monkeypatch.setenv("SOAK_ANSWERS_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(crew, "ANSWERER", "soak_answers:answerer")
    rows = tmp_path / "rows.jsonl"
    command = ["--seed", "5", "--device", "cpu", "--jobs", "1", "--count", "4", "--steps", "3", "--rows", str(rows)]
    assert main(command) == 1
    tried = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [lenient for _, lenient in tried][:4] == ["False"] * 4
    assert {lenient for _, lenient in tried[4:]} == {"True"}
    assert len({process for process, _ in tried[:4]}) == 1
    # A failure is in the file as soon as it is found, and again when it is small.
    assert len(rows.read_text().splitlines()) == 8
    assert sorted(row.index for row in read(rows)) == [0, 1, 2, 3]


def test_progress_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "ANSWERER", "soak_answers:answerer")
    monkeypatch.setattr(soak_main, "PROGRESS", 0.0)
    assert main(["--seed", "5", "--device", "cpu", "--jobs", "1", "--count", "2"]) == 0
    assert "2 of 2 cases, 0 failed, " in capsys.readouterr().out


def test_wrong_commands_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--resume", "--device", "cpu"]) == 2
    assert main(["--case", str(tmp_path / "none.yaml"), "--device", "cpu"]) == 2
    assert "expected what a soak printed" in capsys.readouterr().err


def test_rows_never_go_into_a_spec_or_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: mine\n")
    assert main(["--rows", str(spec), "--device", "cpu", "--count", "1"]) == 2
    assert main(["--rows", str(tmp_path), "--device", "cpu", "--count", "1"]) == 2
    assert spec.read_text() == "name: mine\n"
    assert "is a spec's" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--jobs", "0"), ("--count", "-1"), ("--steps", "-1"), ("--index", "-2")])
def test_numbers_that_are_too_small_are_refused(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*option, "--device", "cpu"])
    assert f"argument {option[0]}: invalid integer of" in capsys.readouterr().err


def test_what_a_gpu_would_draw_is_shown_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--show", "--device", "cuda", "--seed", "18", "--index", "3"]
    for voids in (0, 2):
        assert main([*command, "--voids", str(voids)]) == 0
        assert from_yaml(capsys.readouterr().out) == draw(18, 3, voids, large=True)
