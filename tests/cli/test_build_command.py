"""`flashgen build`, and what it leaves where something fails."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from commands import RENDER_ONLY, Run, needs_no_gpu, passed_report
from packages import files_of

import flashgen.compiling
import flashgen.verify
from flashgen import choices
from flashgen.codegen import generate, load_module
from flashgen.compiling import Compiled, Job
from flashgen.spec import load
from flashgen.tuning import presets
from flashgen.verify import CaseResult, Report


def test_build_renders_alone_when_asked_to(run: Run) -> None:
    ended = run("build", "band", *RENDER_ONLY, "--json")
    assert ended.code == 0
    (document,) = ended.documents
    assert document["path"] == "generated/band"
    assert (document["verification"], document["compiled"], document["tuned"]) == (None, [], [])
    assert load_module(Path("generated/band")).IDENTITY.variant == "band"


def test_build_goes_on_after_a_wrong_spec_and_leaves_no_part_of_it(run: Run) -> None:
    Path("wrong.yaml").write_text("name: wrong\nmask: q <= kk\n")
    ended = run("build", "wrong.yaml", "band", "missing.yaml", *RENDER_ONLY, "--out", "made")
    assert ended.code == 2
    assert [path.name for path in Path("made").iterdir()] == ["band"]
    lines = ended.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: wrong.yaml:2:12: the unknown name 'kk'; expected ")
    assert lines[1].startswith("error: no spec at 'missing.yaml'")


@pytest.mark.parametrize("command", [("build", *RENDER_ONLY), ("verify",), pytest.param(("tune",), marks=needs_no_gpu)])
def test_two_specs_of_one_name_are_not_written_over_each_other(
    run: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flashgen.verify, "verify", passed_report)
    copied = Path("copied.yaml")
    copied.write_text(Path("variants/band.yaml").read_text().replace("W: 100", "W: 90"))
    ended = run(*command, "band", "variants/band.yaml", "copied.yaml")
    assert ended.code == 2
    assert ended.err.endswith(
        "error: copied.yaml: the name 'band', which variants/band.yaml has; expected another: one package each\n"
    )
    assert ended.err.count("one package each") == 1
    assert "copied.yaml" not in Path("generated/band/__init__.py").read_text()


def test_it_is_said_where_a_package_was_made_from_another_spec(run: Run) -> None:
    run("build", "band", *RENDER_ONLY)
    assert run("build", "./variants/band.yaml", *RENDER_ONLY).err == ""
    copied = Path("copied.yaml")
    copied.write_text(Path("variants/band.yaml").read_text().replace("W: 100", "W: 90"))
    ended = run("build", "copied.yaml", *RENDER_ONLY)
    assert (ended.code, ended.err) == (
        0,
        "note: generated/band was made from variants/band.yaml, not from copied.yaml\n",
    )
    copied.rename("moved.yaml")
    assert run("build", "moved.yaml", *RENDER_ONLY).err == ""


def test_a_package_that_cannot_be_read_is_replaced_without_a_word(run: Run) -> None:
    run("build", "band", *RENDER_ONLY)
    with Path("generated/band/__init__.py").open("a") as file:
        file.write("import nothing_of_this_name; source = (\n")
    assert run("build", "band", *RENDER_ONLY).err == ""


def test_a_package_that_changes_while_it_is_proven_is_not_called_proven(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edited(*args: object, **kwargs: object) -> Report:
        with Path("generated/band/pair.py").open("a") as file:
            file.write("# by hand\n")
        return passed_report()

    monkeypatch.setattr(flashgen.verify, "verify", edited)
    ended = run("build", "band", "--no-compile")
    assert ended.code == 2
    assert ended.err.startswith("error: generated/band was changed while it was being proven")
    assert "verified" not in ended.out


def test_a_package_that_another_build_replaces_while_it_is_compiled_is_said(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(path: Path, jobs: list[Job]) -> tuple[Compiled, ...]:
        spec = {"name": "band", "dtype": "float32", "head_dim": 16, "causal": True}
        generate(load(spec), path.parent)
        return tuple(map(Compiled, jobs))

    monkeypatch.setattr(flashgen.compiling, "compile_all", replaced)
    ended = run("build", "band", "--no-verify", "--no-tune", "--target", "sm_80")
    assert ended.code == 2
    assert "error: generated/band was changed while it was being compiled" in ended.err
    assert "sm_80" not in ended.out.partition("compiling for sm_80")[2]


def test_an_unknown_target_is_refused_before_anything_is_written(run: Run) -> None:
    ended = run("build", "band", "--target", "sm_1")
    assert ended.code == 2
    assert ended.err.startswith("error: no target 'sm_1'; expected one of sm_80, ")
    assert not Path("generated").exists()


@needs_no_gpu
@pytest.mark.parametrize("command", ["build", "tune"])
@pytest.mark.parametrize("arguments", [("--preset", "zzz"), ("--preset", "")])
def test_an_unknown_preset_is_refused_also_where_nothing_is_tuned(
    run: Run, command: str, arguments: tuple[str, ...]
) -> None:
    ended = run(command, "band", *arguments)
    assert ended.code == 2
    assert ended.err == f"error: --preset {arguments[1]!r}; expected one of quick, default, full\n"
    assert not Path("generated").exists()


# Of a variant without learned inputs whose mask is an interval of keys.
KERNELS = ("forward", "backward_q", "backward_kv", "decode", "decode_paged", "delta")


def test_presets_are_those_of_the_option() -> None:
    assert tuple(presets.PRESETS) == choices.PRESETS


@needs_no_gpu
@pytest.mark.slow
def test_build_without_a_gpu_verifies_compiles_and_says_that_nothing_was_tuned(run: Run) -> None:
    ended = run("build", "band", "--target", "sm_80", "--target", "gfx942", "--json")
    assert ended.code == 0
    (document,) = ended.documents
    assert document["gpu"] is None
    assert document["verification"]["passed"]
    jobs = [(c["job"]["target"], c["job"]["kernel"]) for c in document["compiled"]]
    assert sorted(jobs) == sorted(product(("sm_80", "gfx942"), KERNELS))
    for compiled in document["compiled"]:
        assert compiled["registers"] > 0
        assert compiled["spills"] is not None
        assert compiled["shared"] > 0
    assert "nothing was tuned" in ended.err
    assert "`flashgen tune variants/band.yaml`" in ended.err


@needs_no_gpu
def test_what_is_said_of_tuning_names_the_folder_that_was_built_to(run: Run) -> None:
    ended = run("build", "band", "--no-verify", "--no-compile", "--out", "my kernels/attn")
    assert "`flashgen tune variants/band.yaml --out 'my kernels/attn'`" in ended.out


def failed_report(*args: object, **kwargs: object) -> Report:
    return Report("quick", "somewhere", (CaseResult("odd lengths", 1.0, 0.5, False, "out at [0, 0, 0]"),), 1.0)


def test_a_failed_verification_exits_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashgen.verify, "verify", failed_report)
    for command in ("build", "verify"):
        ended = run(command, "band")
        assert ended.code == 1
        assert "error: generated/band does not compute its formula: 1 of 1 cases failed" in ended.err
        assert "odd lengths" in ended.err
        assert "the package that failed is generated/band.failed; there is no generated/band now" in ended.err
        assert not Path("generated/band").exists()


@pytest.mark.parametrize("command", ["build", "verify"])
def test_what_failed_is_in_the_document_too(run: Run, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(flashgen.verify, "verify", failed_report)
    ended = run(command, "band", "--json")
    assert ended.code == 1
    (document,) = ended.documents
    report = document["verification"] if command == "build" else document
    assert document["name"] == "band"
    assert report["passed"] is False
    assert [(case["name"], case["ok"]) for case in report["cases"]] == [("odd lengths", False)]


def test_a_failed_proof_leaves_an_earlier_module_in_its_place(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("build", "band", *RENDER_ONLY)
    module, failed = Path("generated/band"), Path("generated/band.failed")
    earlier = files_of(module)
    spec = Path("variants/band.yaml")
    spec.write_text(spec.read_text().replace("W: 100", "W: 90"))
    with monkeypatch.context() as patch:
        patch.setattr(flashgen.verify, "verify", failed_report)
        for command in ("build", "verify"):
            ended = run(command, "band")
            assert ended.code == 1
            assert f"the package that failed is {failed}; {module} is what it was before" in ended.err
            assert files_of(module) == earlier != files_of(failed)
    monkeypatch.setattr(flashgen.verify, "verify", passed_report)
    assert run("verify", "band").code == 0
    assert files_of(module) != earlier
    assert not failed.exists()


def test_a_proof_that_does_not_end_leaves_what_was_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> Report:
        raise KeyboardInterrupt

    module, failed = Path("generated/band"), Path("generated/band.failed")
    monkeypatch.setattr(flashgen.verify, "verify", interrupted)
    run("build", "band")
    assert not module.exists()
    assert failed.exists()
    run("build", "band", *RENDER_ONLY)
    earlier = files_of(module)
    run("verify", "band")
    assert files_of(module) == earlier
    Path("variants/band.yaml").write_text(Path("variants/band.yaml").read_text().replace("W: 100", "W: 90"))
    run("build", "band")
    assert files_of(module) == earlier != files_of(failed)


def test_a_target_that_does_not_compile_exits_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path, jobs: list[Job]) -> tuple[Compiled, ...]:
        return tuple(Compiled(job, error="out of registers") for job in jobs)

    monkeypatch.setattr(flashgen.compiling, "compile_all", broken)
    ended = run("build", "band", "--no-verify", "--no-tune", "--target", "sm_90")
    assert ended.code == 1
    assert "sm_90 forward float32 head_dim 16: out of registers" in ended.err


def test_what_was_proven_and_compiled_is_shown_where_a_target_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path, jobs: list[Job]) -> tuple[Compiled, ...]:
        failing = {"gfx942": "out of registers"}
        return tuple(Compiled(job, 128, 0, 4096, error=failing.get(job.target)) for job in jobs)

    monkeypatch.setattr(flashgen.verify, "verify", passed_report)
    monkeypatch.setattr(flashgen.compiling, "compile_all", broken)
    command = ("build", "band", "--no-tune", "--target", "sm_80", "--target", "gfx942")
    ended = run(*command)
    assert ended.code == 1
    assert "verified: 1 cases passed" in ended.out
    assert "sm_80   forward" in ended.out
    ended = run(*command, "--json")
    assert ended.code == 1
    (document,) = ended.documents
    assert document["verification"]["passed"]
    assert {(c["job"]["target"], c["error"]) for c in document["compiled"]} == {
        ("sm_80", None),
        ("gfx942", "out of registers"),
    }


def test_what_the_assembler_serialized_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def serialized(path: Path, jobs: list[Job]) -> tuple[Compiled, ...]:
        return tuple(Compiled(job, 128, 0, 4096, serialized_wgmma=job.kernel == "forward") for job in jobs)

    monkeypatch.setattr(flashgen.compiling, "compile_all", serialized)
    command = ("build", "band", "--no-verify", "--no-tune", "--target", "sm_90")
    lines = [line for line in run(*command).out.splitlines() if "C7512" in line]
    assert lines == ["sm_90 forward float32 head_dim 16: the assembler serialized WGMMA (C7512), which costs speed"]
    (document,) = run(*command, "--json").documents
    assert {c["job"]["kernel"] for c in document["compiled"] if c["serialized_wgmma"]} == {"forward"}
