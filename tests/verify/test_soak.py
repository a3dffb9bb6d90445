"""The soak finds mistakes, survives what it tries, goes on where it stopped; and a few hundred draws all pass."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from packages import whole
from triton import knobs
from triton.runtime.errors import PTXASError

from flashgen.codegen import load_module, render, write_package
from flashgen.errors import SpecError
from flashgen.runtime import Config
from flashgen.runtime.schedule import Plan
from flashgen.spec import load
from flashgen.verify.soak import __main__ as soak_main
from flashgen.verify.soak import crew, trial
from flashgen.verify.soak.__main__ import main
from flashgen.verify.soak.case import Case, Recipe, from_yaml
from flashgen.verify.soak.crew import Soak, Trier
from flashgen.verify.soak.draw import draw
from flashgen.verify.soak.rows import Row, read
from flashgen.verify.soak.schedules import classes_of, schedule_fault
from flashgen.verify.soak.shrink import shrunk

# What CI tries: so many draws of this seed, as far as they get in these seconds, but a few however busy it is.
SEED, COUNT, SECONDS, LEAST = 18, 150, 30, 20
# Failing cases of the soak, made small, as it prints them.
FOUND = Path(__file__).parent / "found"
CAUSAL = Case({"name": "causal", "causal": True}, 1, 2, 1, 40, 70, 16, 16, "float32")
DOCUMENT = Case(
    {
        "name": "document",
        "softcap": 5.0,
        "inputs": {
            "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
            "rel": {"shape": ["heads", 9], "dtype": "float32", "grad": True},
        },
        "let": {"d": "clamp(q - k, -4, 4)"},
        "score": "score + rel[h, d + 4]",
        "mask": "(doc[b, q] == doc[b, k]) & (k % 40 < 35)",
    },
    2, 2, 1, 50, 60, 16, 16, "float32", planned=True,
    recipes={"doc": Recipe("segments", 0, 3)},
)  # fmt: skip


def build_with(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """From here on every module is built with a mistake where its text has `old`."""

    def build(spec: Any, out: str, **_: object) -> ModuleType:
        path = Path(out, "mutated")
        write_package(path, {name: text.replace(old, new) for name, text in render(load(spec)).items()})
        return load_module(path)

    monkeypatch.setattr(trial.flashgen, "build", build)


LENGTHS = ((50, 60), (0, 20), (33, 41))
PACKED = replace(DOCUMENT, batch=3, lengths=LENGTHS, rest=(70, 65), d_out="transposed")
# The table has room for a page more than the longest sequence needs.
PAGED = replace(CAUSAL, batch=3, kv_len=80, lengths=((4, 60), (0, 20), (33, 41)), paged=True, d_out="none")
# Logarithms that hidden pairs do not have.
LOGARITHMS = Case(
    {
        "name": "logarithms",
        "causal": True,
        "inputs": {"r": {"shape": ["heads"], "dtype": "float32", "grad": True}},
        "score": "score + r[h] * log(q - k + 1)",
    },
    1, 2, 1, 40, 40, 16, 16, "float32",
    recipes={"r": Recipe("normal", 0, 1)},
)  # fmt: skip
SHARED = Case(CAUSAL.with_spec(bias="alibi").spec, 3, 4, 2, 40, 70, 16, 24, "bfloat16", shared=True)


@pytest.mark.parametrize(
    "case",
    [CAUSAL, DOCUMENT, SHARED, PACKED, PAGED, LOGARITHMS],
    ids=["causal", "document", "shared", "packed", "paged", "logarithms"],
)
def test_right_kernels_pass(case: Case) -> None:
    found = trial.attempt(case, "cpu").finding
    assert found.kind == "passed", found
    assert 0 < found.share < 1


@pytest.mark.parametrize(
    ("case", "old", "new", "kinds"),
    [
        (CAUSAL, "tl.where(empty, 1.0, l)[:, None]", "tl.where(empty, 1.0, l + 1)[:, None]", {"out"}),
        (CAUSAL, "return k <= q", "return k <= q + 1", {"out", "lse"}),
        (CAUSAL, "(m + tl.log2(l)) * 0.6931471805599453", "(m + tl.log2(l)) * 0.6932", {"lse"}),
        (DOCUMENT, "state.to(tl.int8)", "(state * 0 + 2).to(tl.int8)", {"schedule"}),
        (DOCUMENT, "state.to(tl.int8)", "tl.where(state == 2, 1, state).to(tl.int8)", {"schedule"}),
        (DOCUMENT, "+ 4].to(score.dtype)", "+ 3].to(score.dtype)", {"reference"}),
        (DOCUMENT, "+ 4].to(score.dtype)", "+ 4].to(score.dtype).detach()", {"reference"}),
        (DOCUMENT, "tanh(qk * qk_scale, PRECISE) *", "tanh(qk * qk_scale * 1.001, PRECISE) *", {"out", "lse"}),
        (PAGED, "page_of(pages_ptr, tl", "page_of(pages_ptr + 1, tl", {"out", "lse"}),
        (PACKED, "doc_ptr + begin_k", "doc_ptr + 0 * begin_k", {"out", "lse", "d_q", "d_k", "d_v"}),
    ],
)
def test_a_mistake_is_found(case: Case, old: str, new: str, kinds: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert old in whole(render(load(dict(case.spec))))
    build_with(monkeypatch, old, new)
    assert trial.attempt(case, "cpu").finding.kind in kinds


def test_a_mistake_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    build_with(monkeypatch, "tl.minimum(tl.maximum(q - k, -4), 4)", "tl.minimum(tl.maximum(q - k, -3), 4)")
    kind = trial.attempt(DOCUMENT, "cpu").finding.kind
    assert kind != "passed"
    small = shrunk(DOCUMENT, kind, lambda case: trial.attempt(case, "cpu", lenient=True).finding.kind, steps=30)
    assert trial.attempt(small, "cpu", lenient=True).finding.kind == kind
    assert {"mask", "softcap"}.isdisjoint(small.spec)
    assert "clamp" in json.dumps(small.spec)


def test_gradients_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    source = whole(render(load(dict(DOCUMENT.spec))))
    old = next(line.strip() for line in source.splitlines() if line.strip().startswith("ds = "))
    build_with(monkeypatch, old, f"{old} * 1.01")
    assert trial.attempt(DOCUMENT, "cpu").finding.kind.startswith("d_")


def test_what_is_refused_or_raises_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SpecError(type("L", (), {"__str__": lambda _: "x:1:1"})(), "a mask", "another")

    monkeypatch.setattr(trial.flashgen, "build", refuse)
    found = trial.attempt(CAUSAL, "cpu").finding
    assert (found.kind, found.failed) == ("refused", True)
    build_with(monkeypatch, "def attention(", "def attention(missing, ")
    assert trial.attempt(CAUSAL, "cpu").finding.kind == "error"


@pytest.mark.parametrize(
    ("said", "kind"),
    [("ptxas fatal : (C7600) Register allocation failed with register count of '255'", "passed"),
     ("ptxas fatal : Unresolved extern function", "error")],
)  # fmt: skip
def test_a_config_without_registers_is_no_failure(said: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case is then tried with the config that the module chooses; what else the assembler says is a failure."""
    right = trial._compared

    def compared(case: Case, *given: Any) -> Any:
        if case.configs:
            raise PTXASError(said)
        return right(case, *given)

    monkeypatch.setattr(trial, "_compared", compared)
    given = replace(CAUSAL, configs={"forward": "BM=64 BN=64 num_warps=4 num_stages=1"})
    assert trial.attempt(given, "cpu").finding.kind == kind


def test_kernels_that_would_lose_a_negation_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton tells of each kernel that it compiles, or has, with the files of all stages."""
    ptx = tmp_path / "attention.ptx"
    ptx.write_text("neg.s32 %r3, %r2;\nmax.s32 %r4, %r1, %r3;\nmax.s32 %r5, %r4, %r1;\n")
    right = trial._compared

    def compared(*given: Any) -> Any:
        files = {ptx.name: str(ptx), "attention.json": str(tmp_path / "attention.json")}
        knobs.compilation.listener(src=None, metadata={}, metadata_group=files, times=None, cache_hit=False)
        return right(*given)

    monkeypatch.setattr(trial, "_compared", compared)
    found = trial.attempt(CAUSAL, "cpu").finding
    assert (found.kind, found.detail) == ("lost negation", "attention: %r5")
    ptx.write_text("max.s32 %r4, %r1, %r3;\nmax.s32 %r5, %r4, %r1;\n")
    assert trial.attempt(CAUSAL, "cpu").finding.kind == "passed"
    assert knobs.compilation.listener is None


def test_a_draw_of_which_nothing_can_be_said_is_void() -> None:
    hidden = CAUSAL.with_spec(mask="k < 0")
    assert trial.attempt(hidden, "cpu").finding.kind == "void"
    assert trial.attempt(hidden, "cpu", lenient=True).finding.kind == "passed"


@pytest.mark.parametrize("mask", ["k <= q", "(k <= q) | (R - R > k)"])
def test_a_draw_with_an_argument_of_which_nothing_is_left_is_void(mask: str) -> None:
    idle = CAUSAL.with_spec(params={"R": {"value": 2, "runtime": True}}, mask=mask)
    assert trial.attempt(idle, "cpu").finding.kind == "void"


def test_infinity_times_what_float32_does_not_hold_is_void() -> None:
    """In float64 such a row sees nothing, in float32 it is NaN: also that of eager PyTorch."""
    score = "(score + where((q + k) % 3 == 0, 0.0, low)) * sigmoid(5.0 * (k - q))"
    lost = CAUSAL.with_spec(params={"low": float("-inf")}, score=score, mask="(q + k) % 3 > 0")
    found = trial.attempt(lost, "cpu").finding
    assert (found.kind, found.detail) == ("void", "the formula is not finite in float32")


def test_a_finite_score_that_float32_does_not_hold_is_void() -> None:
    beyond = CAUSAL.with_spec(score="(score - 3e38) * 2.0")
    assert trial.attempt(beyond, "cpu").finding.kind == "void"


def test_classes_of_tiles() -> None:
    visible = torch.ones(1, 1, 5, 9, dtype=torch.bool)
    visible[..., :4, 4:] = False
    # Two rows of tiles of 4, three columns; the last column has one key, the second row one query.
    assert classes_of(visible, 4, 4).tolist() == [[[[2, 0, 0], [2, 2, 1]]]]
    assert classes_of(visible, 4, 4, ragged=True).tolist() == [[[[2, 0, 0], [1, 1, 1]]]]


def test_a_wrong_schedule_is_named() -> None:
    visible = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    visible[..., 0, 0] = False
    counts = torch.tensor([[[[1, 0, 0]]]], dtype=torch.int32)
    plan = Plan(counts, torch.zeros(1, 1, 1, 1, dtype=torch.int32), Config(16, 16, 4, 1), "drawn", (8, 8))
    assert schedule_fault(plan, visible) == ""
    full = replace(plan, counts=counts.flip(-1).roll(-1, -1))
    assert schedule_fault(full, visible) == "tile [0, 0, 0, 0] is full, mixed is right"


def test_what_crashes_or_hangs_costs_its_own_case_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "ANSWERER", "soak_answers:answerer")
    mother = crew.nursery("cpu")
    trier = Trier("cpu", 5, mother)
    answers = [trier(CAUSAL.with_spec(description=what))["kind"] for what in ("crash", "answer", "hang", "answer")]
    trier.close()
    mother.close()
    assert answers == ["crashed", "passed", "timed out", "passed"]


def test_what_ran_out_of_time_beside_others_is_tried_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_ANSWERS_SLOW", str(tmp_path / "slow"))
    monkeypatch.setattr(crew, "ANSWERER", "soak_answers:answerer")
    rows = list(Soak(5, "cpu", 2, 3, 0).of(range(4)))
    assert sorted((row.index, row.kind) for row in rows if row) == [(index, "passed") for index in range(4)]


def test_what_ran_out_of_time_is_told_where_none_is_left_to_try_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_ANSWERS_SLOW", str(tmp_path / "slow"))
    monkeypatch.setattr(crew, "ANSWERER", "soak_answers:answerer")
    end = time.monotonic() + 2
    rows = list(Soak(5, "cpu", 2, 3, 0).of(range(2), lambda: time.monotonic() > end))
    assert sorted(row.kind for row in rows if row) == ["passed", "timed out"]


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


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_was_found_before_passes(path: Path) -> None:
    found = trial.attempt(from_yaml(path.read_text()), "cpu", lenient=True).finding
    assert found.kind == "passed", found


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 180)
def test_some_hundred_draws_pass_in_the_interpreter() -> None:
    end = time.monotonic() + SECONDS
    soak = Soak(SEED, "cpu", crew.default_jobs(), limit=120.0, steps=0)
    rows: list[Row] = []

    def is_enough() -> bool:
        return time.monotonic() > end and len(rows) >= LEAST

    for row in soak.of(range(COUNT), is_enough):
        if row is not None:
            rows.append(row)
    failed = [row for row in rows if not row.passed]
    assert not failed, "\n".join(f"{row.index} {row.kind}: {row.detail}\n{row.small}" for row in failed)
    assert len(rows) >= LEAST
