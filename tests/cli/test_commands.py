"""The commands, called as a user calls them, in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import torch
from packages import files_of

import flashgen.compiling
import flashgen.verify
from flashgen import choices
from flashgen.cli import doctor, main
from flashgen.codegen import generate, load_module
from flashgen.compiling import Compiled, Job
from flashgen.runtime.config import Config
from flashgen.runtime.gpus import GPUS
from flashgen.runtime.records import Bucket, Key, Record
from flashgen.spec import load
from flashgen.tuning import presets
from flashgen.tuning.cache import write_record
from flashgen.verify import CaseResult, Report

COMMANDS = ("build", "verify", "tune", "bench", "explain", "export", "convert", "list", "cache", "schema", "doctor")
RENDER_ONLY = ("--no-verify", "--no-compile", "--no-tune")

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def documents(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ended]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in an empty folder with a gallery of one spec and a cache of its own."""
    (tmp_path / "variants").mkdir()
    (tmp_path / "variants" / "band.yaml").write_text(
        "name: band\ndescription: A band.\ndtype: float32\nhead_dim: 16\nparams: {W: 100}\nlet: {d: q - k}\n"
        "score: score - 0.5*d\nmask: (d >= 0) & (d < W)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))

    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["flashgen", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        return Ended(int(left.value.code or 0), printed.out, printed.err)

    return call


def test_help_names_every_command(run: Run) -> None:
    ended = run("--help")
    assert ended.code == 0
    assert all(f"\n  {command} " in ended.out for command in COMMANDS)
    assert run("-h").out == ended.out
    assert run("build", "-h").out == run("build", "--help").out


@pytest.mark.parametrize("arguments", [("nope",), ("build",), ("build", "--nope"), ("cache", "nope")])
def test_a_wrong_command_line_exits_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.err.startswith("Usage: flashgen")


def test_version_is_that_of_the_package(run: Run) -> None:
    assert run("--version").out == f"{flashgen.__version__}\n"


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
    assert sorted(jobs) == sorted(product(("sm_80", "gfx942"), ("forward", "backward_q", "backward_kv")))
    for compiled in document["compiled"]:
        assert compiled["registers"] > 0
        assert compiled["spills"] is not None
        assert compiled["shared"] > 0
    assert "nothing was tuned" in ended.err
    assert "`flashgen tune variants/band.yaml`" in ended.err


def passed_report(*args: object, **kwargs: object) -> Report:
    return Report("quick", "somewhere", (CaseResult("odd lengths", 0.1, 0.5, True, "out at [0, 0, 0]"),), 1.0)


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


@needs_no_gpu
@pytest.mark.parametrize("mode", ["dense", "varlen", "decode", "paged"])
@pytest.mark.parametrize("command", ["tune", "bench"])
def test_what_needs_a_gpu_says_so(run: Run, command: str, mode: str) -> None:
    ended = run(command, "band", "--mode", mode)
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert "no GPU" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "band", "--resume"), "--resume was given without --rows"),
        (("bench", "band", "--mode", "dense", "--mode", "varlen"), "--mode dense was given with --mode varlen"),
        (("bench", "band", "--mode", "varlen", "--mode", "paged"), "paged was given with --mode dense or varlen"),
        (("bench", "band", "--mode", "varlen", "--candidate", "eager"), "no candidate 'eager'; expected one of flash"),
        (("tune", "band", "--shape", "batch=1"), "heads, q_len not found"),
        (("tune", "band", "--dtype", "int8"), "--dtype 'int8'"),
        (("verify", "band", "--level", "medium"), "--level 'medium'; expected one of"),
        (("cache", "clear"), "expected --variant, --gpu or --all"),
        (("cache", "clear", "--all", "--variant", "band"), "--all with --variant or --gpu; expected one or the other"),
    ],
)
def test_wrong_values_are_one_line_and_exit_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert message in ended.err.splitlines()[-1]


def test_explain_shows_the_spec_as_it_is_understood(run: Run) -> None:
    ended = run("explain", "band", "--length", "256", "--png", "pictures/band.png")
    assert ended.code == 0
    for text in (
        "band: A band.",
        "s[q, k] = score - 0.5 * d",
        "mask: bool = d >= 0 and d < 100",
        "d: int = q - k",
        "W: int = 100 (baked in)",
        "query q sees the keys from q - 99 to q",
        "256 queries by 256 keys",
    ):
        assert text in ended.out
    assert Path("pictures/band.png").read_bytes().startswith(b"\x89PNG")


DOUBT = "'&' binds tighter than the comparisons beside it: this is 'k <= (q & k) > q - 5'; where tests are meant write"


@pytest.mark.parametrize("command", [("build", *RENDER_ONLY), ("verify",), ("explain", "--length", "16")])
def test_what_may_not_be_meant_is_said(run: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("doubtful.yaml").write_text("name: doubtful\nmask: k <= q & k > q - 5\n")
    monkeypatch.setattr(flashgen.verify, "verify", passed_report)
    ended = run(*command, "doubtful.yaml", "--json")
    assert ended.code == 0
    assert ended.err.startswith(f"warning: doubtful.yaml:2:14: {DOUBT}")
    (document,) = ended.documents
    assert [text.startswith(f"doubtful.yaml:2:14: {DOUBT}") for text in document["warnings"]] == [True]
    assert run(*command, "doubtful.yaml").err.startswith("warning: ")


def test_explain_for_machines_counts_pairs_and_tiles(run: Run) -> None:
    (document,) = run("explain", "band", "--length", "256", "--json").documents
    pairs = sum(min(q + 1, 100) for q in range(256))
    assert document["picture"]["density"] == pairs / 256**2
    assert document["picture"]["none"] + document["picture"]["mixed"] + document["picture"]["full"] == 2 * 4
    assert document["lower"] == "q - 99"


def test_explain_draws_scores_where_that_is_asked_for(run: Run) -> None:
    ended = run("explain", "band", "--length", "256", "--score", "--dark", "--png", "scores.png")
    assert ended.code == 0
    assert "added to a visible pair: -49.5 to 0; light is -20 or less, dark is 0" in ended.out
    assert Path("scores.png").read_bytes().startswith(b"\x89PNG")
    (document,) = run("explain", "band", "--length", "256", "--score", "--json").documents
    assert document["scores"] == {"added": [{"head": None, "least": -49.5, "greatest": 0.0}], "bends": []}
    Path("plain.yaml").write_text("name: plain\ncausal: true\n")
    assert "scores are not modified" in run("explain", "plain.yaml", "--length", "64", "--score").out


def record(spec: str = "s", templates: str = "t") -> Record:
    bucket = Bucket(32, 1, 64, 64)
    key = Key("NVIDIA H200", "sm_90", "3.6", "band", "forward", "float32", 16, 16, bucket, spec, templates)
    return Record(key, Config(64, 32, 4, 2), 123.4, 0.01, 10)


def test_list_shows_what_is_rendered_and_tuned(run: Run) -> None:
    (before,) = run("list", "--json").documents
    run("build", "band", *RENDER_ONLY)
    write_record(record())
    (after,) = run("list", "--json").documents
    assert (before["module"], before["tuned"]) == (None, [])
    assert (after["module"], after["tuned"]) == ("generated/band", ["NVIDIA H200"])
    assert "A band." in run("list").out


def test_cache_lists_shows_ships_and_clears(run: Run) -> None:
    assert "no tuned config in" in run("cache", "ls").out
    write_record(record())
    assert "64x32 w4 s2" in run("cache", "ls", "--gpu", "*h200*").out
    assert run("cache", "ls", "--variant", "other", "--json").documents == []
    (shown,) = run("cache", "show", "band", "--json").documents
    assert shown["config"] == {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 2}
    assert "1 records are of kernels that are not in generated and were left out: band" in run("cache", "export").out
    run("build", "band", *RENDER_ONLY)
    kernels = load_module(Path("generated/band")).IDENTITY
    write_record(record(kernels.spec, kernels.templates["forward"]))
    (exported,) = run("cache", "export", "--json").documents
    assert [Path(path).is_file() for path in exported["written"]] == [True]
    assert exported["left_out"] == [record().key.name]
    assert run("cache", "clear", "--variant", "band", "--json").documents == [{"deleted": 2}]
    (left,) = run("cache", "ls", "--json").documents
    assert left["source"] == "shipped"


def test_records_that_are_not_there_are_named(run: Run) -> None:
    assert run("cache", "ls", "--variant", "other", "--gpu", "A*").out.startswith(
        "no tuned config of variant 'other' of gpu 'A*' in "
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cache", "explain", "band", "--gpu", "X", "--capability", "9.0"), "--capability '9.0'; expected a target"),
        (("explain", "band", "--dark"), "--dark was given without --png"),
        (("explain", "band", "--png", "mask.jpg"), "mask.jpg does not end in .png"),
        (("bench", "band", "--png", "speeds"), "speeds does not end in .png"),
    ],
)
def test_what_would_be_without_effect_is_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.err.startswith(f"error: {message}")


def test_schema_is_json_schema(run: Run) -> None:
    assert json.loads(run("schema").out)["$schema"].startswith("https://json-schema.org/")


def test_schema_for_machines_is_one_line(run: Run) -> None:
    assert run("schema", "--json").documents == [json.loads(run("schema").out)]


def test_doctor_finds_what_is_here(run: Run) -> None:
    ended = run("doctor", "--no-targets", "--json")
    assert ended.code == 0
    found = {document["what"]: document["state"] for document in ended.documents}
    assert {found[name] for name in ("python", "flashgen cache", "triton cache", "output folder")} == {"ok"}


def test_doctor_compiles_one_probe_for_each_target(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def known_but_the_last(path: Path, jobs: list[Job]) -> tuple[Compiled, ...]:
        return (*map(Compiled, jobs[:-1]), Compiled(jobs[-1], error="no such processor"))

    monkeypatch.setattr(flashgen.compiling, "compile_all", known_but_the_last)
    ended = run("doctor", "--json")
    assert ended.code == 0
    found = [(document["what"], document["state"]) for document in ended.documents if document["what"] in GPUS]
    assert found == [*((target, "ok") for target in [*GPUS][:-1]), ([*GPUS][-1], "optional")]


def test_doctor_names_what_is_missing_and_exits_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "0.1" if name != "lost" else lost())
    monkeypatch.setattr(doctor, "requires", lambda name: ["lost>=2", "old>=1 ; extra == 'test'", "stale>=3"])
    Path("file").touch()
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", "file/cache")
    ended = run("doctor", "--no-targets", "--json")
    assert ended.code == 1
    missing = {d["what"]: d["remedy"] for d in ended.documents if d["state"] == "missing"}
    assert missing == {
        "lost": "pip install 'lost>=2'",
        "stale": "pip install 'stale>=3'",
        "flashgen cache": "name another one in FLASHGEN_CACHE_DIR",
    }


def lost() -> str:
    raise doctor.PackageNotFoundError("lost")


def test_records_are_explained_for_one_form_of_call(run: Run) -> None:
    asked = ("--gpu", "NVIDIA H200", "--capability", "sm_90", "--json")
    documents = run("cache", "explain", "band", "--mode", "paged", *asked).documents
    assert {document["key"]["kernel"] for document in documents} == {"decode_paged"}
    # Of float32, which has portable kernels alone.
    packed = run("cache", "explain", "band", "--mode", "varlen", "--kernel", "backward", *asked).documents
    assert {document["key"]["kernel"] for document in packed} == {"backward_q", "backward_kv"}
    assert {document["key"]["bucket"]["tokens"] for document in packed} == {65536}
    assert all("backend" not in document["choice"]["config"] for document in packed)


def test_calls_of_a_form_that_the_spec_names_no_shape_of_have_usual_ones(run: Run) -> None:
    with Path("variants/band.yaml").open("a") as spec:
        spec.write("tune: {shapes: [{mode: paged, batch: 1, heads: 1, kv_len: 64}]}\n")
    asked = ("--gpu", "NVIDIA H200", "--capability", "sm_90", "--kernel", "forward", "--json")
    documents = run("cache", "explain", "band", "--mode", "dense", *asked).documents
    assert {document["problem"]["q_len"] for document in documents} == {2048, 8192}
    assert "--kernel forward was given for calls of the form paged" in run("cache", "explain", "band", *asked).err
