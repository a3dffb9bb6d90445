"""Commands that only look at files do not wait for torch, which takes seconds to import."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from known_records import KEY

from flashgen.runtime.config import Config
from flashgen.runtime.record_files import table_path
from flashgen.runtime.record_table import to_text
from flashgen.runtime.records import Record

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
    import sys
    from flashgen.cli import main
    try:
        main()
    finally:
        print("imported:", *sorted({"torch", "triton"} & sys.modules.keys()), file=sys.stderr)
"""
LOOKING = (
    ("--help",), ("--version",), ("list",), ("cache", "ls"), ("cache", "show", "alibi"), ("cache", "explain", "--help"),
    ("schema",),
)  # fmt: skip


def imported_by(arguments: tuple[str, ...], cache: Path, code: int = 0) -> tuple[str, str]:
    """What a command that ends with this status prints, and what it says of imports."""
    program = "\n".join(line[4:] for line in PROGRAM.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "FLASHGEN_CACHE_DIR": str(cache)},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_a_command_that_looks_at_files_imports_neither_torch_nor_triton(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    path = table_path(tmp_path / "tuned" / "alibi", KEY.gpu)
    path.parent.mkdir(parents=True)
    record = Record(replace(KEY, spec="only-here"), Config(128, 64, 8, 3), 800.0, 0.01, 20)
    path.write_text(to_text([record]))
    if arguments[:2] == ("cache", "show"):
        arguments = (*arguments[:2], record.key.name)
    printed, said = imported_by(arguments, tmp_path)
    assert said.strip() == "imported:"
    assert ("128x64 w8 s3" in printed) == (arguments == ("cache", "ls"))
    assert ("NVIDIA H200" in printed) == (
        arguments[0] == "list" or arguments[:2] in {("cache", "ls"), ("cache", "show")}
    )


WRONG = (
    ("bulid",), ("cache",), ("cache", "list"), ("cache", "clear"), ("cache", "explain", "nosuch"),
    ("cache", "explain", "causal", "--kernel", "x"), ("explain", "nosuch"), ("export", "nosuch", "-o", "x.py"),
    ("build", "nosuch"), ("build", "causal", "--preset", "x"), ("verify", "nosuch"), ("tune", "nosuch"),
)  # fmt: skip


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_wrong_input_is_said_without_waiting_for_torch(arguments: tuple[str, ...], tmp_path: Path) -> None:
    _, said = imported_by(arguments, tmp_path, code=2)
    assert said.rstrip().endswith("imported:")


def test_the_names_of_the_runtime_wait_until_one_is_asked_for() -> None:
    code = (
        "import sys, flashgen.runtime as runtime\n"
        "hasattr(runtime, '__wrapped__')\n"
        "print('torch' in sys.modules)\n"
        "runtime.Config\n"
        "print(set(runtime.__all__) <= vars(runtime).keys())\n"
        "print(hasattr(runtime, 'no_such_name'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "True", "False"]
