"""Command lines that are wrong: each ends with exit status 2 and a message, writes nothing, and gives no traceback."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

from flashgen.cli import main
from flashgen.printable import is_printable

SPEC = "name: band\ndtype: float32\nhead_dim: 16\nmask: (q - k < 100) & (k <= q)\n"
EVERY = ("build", "verify", "tune", "bench", "explain", "export", "cache explain")
SHAPES = {
    "": "found ''", ",": "found ''", "batch": "found 'batch'", "batch=": "found 'batch='", "batch=x": "found 'batch=x'",
    "batch=1,heads=2": "q_len not found", "batch=1.5,heads=1,q_len=1": "found 'batch=1.5'",
    "batch=0,heads=1,q_len=1": "found 'batch=0'", "batch=-1,heads=1,q_len=1": "found 'batch=-1'",
    "batch=1,heads=4,kv_heads=3,q_len=1": "multiple of kv_heads", "batch=1,heads=1,q_len=1,size=3": "found 'size=3'",
    f"batch={'9' * 5000},heads=1,q_len=1": "found 'batch=999",
    f"batch=1,heads=1,q_len={2**31}": "found 'q_len=2147483648'",
    "batch=1,batch=2,heads=1,q_len=1": "found batch again",
    "batch=²,heads=1,q_len=1": "found 'batch=²'",
    "batch=1,heads=1,q_len=1,head_dim=600": "found 'head_dim=600'", "batch=1\0": "found 'batch=1\\x00'",
}  # fmt: skip

# The arguments, and what the last line on standard error has.
LINES: dict[tuple[str, ...], str] = {
    ("nope",): "No such command 'nope'",
    ("--nope",): "No such option",
    **{(*command.split(),): "Missing argument" for command in EVERY},
    **{(*command.split(), "band", "--nope"): "No such option" for command in EVERY if command != "export"},
    **{(*command.split(), "nope.yaml", *more): "no spec at 'nope.yaml'" for command, more in (
        ("build", ()), ("verify", ()), ("explain", ()), ("export", ("-o", "x.py")), ("cache explain", ()),
    )},
    **{(*command.split(), "zzz", *more): "no spec 'zzz': found neither a file nor" for command, more in (
        ("build", ()), ("verify", ()), ("explain", ()), ("export", ("-o", "x.py")), ("cache explain", ()),
    )},
    **{(command, "m" * 300): "cannot be looked for" for command in ("build", "verify", "explain")},
    **{(command, "variants"): "variants" for command in ("build", "verify", "explain")},
    **{(command, "wrong.yaml"): "wrong.yaml:2:12: the unknown name 'kv_idx'" for command in ("build", "explain")},
    **{(command, "band", "--preset", "zzz"): "--preset 'zzz'; expected one of" for command in ("build", "tune")},
    **{("build", "band", "--target", name): f"no target {name!r}" for name in ("sm_1", "", "sm_90 ", "gfx", "\x1b")},
    ("build", "band", "--out"): "requires an argument",
    ("build", "band", "--out", "file"): "file",
    ("build", "band", "--out", "file/below"): "file/below",
    ("build", "band", "--out", "/dev/null"): "/dev/null",
    ("verify", "band", "--level", "slow"): "--level 'slow'; expected one of quick, full",
    ("verify", "band", "--level", ""): "--level ''; expected one of quick, full",
    **{("explain", "band", "--length", n): "--length" for n in ("0", "-1", "x", "1.5", "9" * 30, "1000000")},
    **{("explain", "band", "--seed", n): "--seed" for n in ("-1", "x", str(2**32))},
    **{("explain", "band", "--png", path): path for path in
       ("variants", "/dev/null", "variants/band.yaml", "new.yml", "link")},
    **{("export", "band", "-o", path): path for path in (
        "variants", "/dev/null", "/dev/full", "variants/band.yaml", "variants/../variants/band.yaml", "new.yaml",
        "link", "pipe", "file/below", "renamed-spec", "/dev/stdout",
    )},
    ("export", "band"): "Missing option '-o'",
    ("export", "renamed-spec", "-o", "renamed-spec"): "renamed-spec is a spec's",
    **{("tune", "band", "--shape", shape): says for shape, says in SHAPES.items()},
    **{("bench", "band", "--shape", shape): says for shape, says in SHAPES.items()},
    **{("cache", "explain", "band", "--shape", shape): says for shape, says in SHAPES.items()},
    **{(*command.split(), "band", "--dtype", dtype): f"--dtype {dtype!r}" for dtype in ("int8", "", "float64")
       for command in ("tune", "bench", "cache explain")},
    **{(*command.split(), "band", "--kernel", "sideways"): "--kernel 'sideways'; expected one of"
       for command in ("tune", "cache explain")},
    **{(*command.split(), "band", "--mode", mode, "--kernel", kernel): f"--kernel {kernel} was given for calls of"
       for command in ("tune", "cache explain") for mode in ("decode", "paged") for kernel in ("forward", "backward")},
    **{("tune", "band", "--gpus", gpus): "--gpus" for gpus in ("", "one", "-1", "0,", "0;1")},
    **{("tune", "band", "--budget-seconds", n): "--budget-seconds" for n in ("0", "-1", "nan", "inf", "x")},
    **{("tune", "band", "--trials", n): "--trials" for n in ("0", "-1", "x", "1.5")},
    **{("tune", "band", option, "file"): "file is no folder" for option in ("--table", "--report")},
    **{("bench", "band", option, path): path for option in ("--rows", "--png") for path in
       ("variants", "/dev/null", "variants/band.yaml", "link", "pipe")},
    **{("bench", "band", "--rounds", n): "--rounds" for n in ("0", "-1", "x")},
    **{("bench", "band", "--seconds", n): "seconds" for n in ("nan", "-1", "x", "0")},
    ("bench", "band", "--candidate", "nope"): "nope",
    ("bench", "band", "--pass", "sideways"): "sideways",
    ("bench", "band", "--resume"): "--resume was given without --rows",
    ("cache", "nope"): "No such command 'nope'",
    ("cache", "clear"): "expected --variant, --gpu or --all",
    ("cache", "show"): "Missing argument",
    ("cache", "show", "nope"): "0 records match 'nope'",
    ("cache", "show", "\x1b[2J"): "0 records match",
    ("cache", "explain", "band", "--gpu", "NVIDIA H200"): "no GPU",
    ("cache", "explain", "band", "--capability", "sm_90"): "no GPU",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import os

    folder = tmp_path_factory.mktemp("here")
    (folder / "variants").mkdir()
    (folder / "variants" / "band.yaml").write_text(SPEC)
    (folder / "renamed-spec").write_text(SPEC)
    (folder / "wrong.yaml").write_text("name: wrong\nmask: k <= kv_idx\n")
    (folder / "file").write_text("")
    (folder / "link").symlink_to("file")
    os.mkfifo(folder / "pipe")
    return folder


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """What lies in the folder: kinds of files, and sizes."""
    found = {path: path.lstat() for path in sorted(folder.rglob("*"))}
    return {str(path): (stat.st_mode, stat.st_size) for path, stat in found.items()}


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")
@pytest.mark.parametrize("line", LINES, ids=lambda line: ascii(" ".join(line))[1:-1][:70])
def test_it_ends_with_2_and_a_message_and_writes_nothing(
    line: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["flashgen", *line])
    before = contents(folder)
    start = time.perf_counter()
    with pytest.raises(SystemExit) as left:
        main()
    seconds = time.perf_counter() - start
    printed = capsys.readouterr()
    assert left.value.code == 2
    assert LINES[line] in printed.err.rstrip().splitlines()[-1]
    assert "Traceback" not in printed.err and is_printable(printed.err + printed.out)
    assert contents(folder) == before
    assert seconds < 20.0
