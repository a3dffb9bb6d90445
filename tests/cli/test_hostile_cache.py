"""The commands that read caches, over caches that somebody has filled with what they like."""

import errno
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "runtime"))
from hostile_records import FIELDS, LEFT, MALFORMED_BYTES, RECORD, TEXT, table

from flashgen.cli import main
from flashgen.runtime.record_files import table_path

READING = (("cache", "ls"), ("cache", "show", "alibi"), ("cache", "export"), ("list",))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["flashgen", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr()

    return call


def place_of(record):
    path = table_path(Path("cache", "tuned", record.key.variant), record.key.gpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.filterwarnings("ignore::flashgen.runtime.record_files.RecordWarning")
@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_commands_show_the_one_good_record_among_all_that_is_hostile(run, arguments):
    good = place_of(RECORD)
    good.write_text(TEXT)
    for number, content in enumerate(MALFORMED_BYTES.values()):
        good.with_name(f"hostile-{number}.json").write_bytes(content)
    for number, make in enumerate(LEFT.values()):
        make(good.with_name(f"left-{number}.json"))
    code, printed = run(*arguments)
    assert code == 0 and "Traceback" not in printed.err
    if arguments[0] == "cache":
        assert "alibi" in printed.out
    assert good.read_text() == TEXT
    code, _ = run("cache", "clear", "--all")
    assert code == 0 and not good.exists()
    kept = {path.name for path in good.parent.iterdir() if path.suffix not in (".damaged", ".lock")}
    assert kept == {f"left-{number}.json" for number in range(len(LEFT))}


@pytest.mark.filterwarnings("ignore::flashgen.runtime.record_files.RecordWarning")
@pytest.mark.parametrize("field", ["variant", "kernel", "dtype", "triton"])
@pytest.mark.parametrize("astray", ["../../escaped", "/tmp/escaped", "..", "a/../../../escaped"])
def test_export_writes_nowhere_but_below_its_folder(run, tmp_path, field, astray):
    """Its variant's name is that of the folder that would be written."""
    hostile = place_of(RECORD)
    hostile.write_text(table({**FIELDS, field: astray}))
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    code, printed = run("cache", "export")
    assert code == 0 and "0 records" in printed.out
    assert {path for path in tmp_path.rglob("*") if path.is_file()} - before == {Path(f"{hostile.resolve()}.damaged")}


@pytest.mark.parametrize("arguments", [("cache", "clear", "--all"), ("cache", "export")], ids=" ".join)
def test_without_a_home_a_command_says_what_to_do(run, monkeypatch, arguments):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", "~nobody-of-this-name/cache")
    code, printed = run(*arguments)
    assert code == 2 and "FLASHGEN_CACHE_DIR" in printed.err


def test_without_a_home_what_is_shipped_is_listed(run, monkeypatch):
    shipped = table_path(Path("generated", "alibi", "tuned"), RECORD.key.gpu)
    shipped.parent.mkdir(parents=True)
    shipped.write_text(TEXT)
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", "~nobody-of-this-name/cache")
    code, printed = run("cache", "ls")
    assert code == 0 and "alibi" in printed.out


def test_a_cache_that_cannot_be_searched_is_not_cleared(run, tmp_path, monkeypatch):
    root = tmp_path / "cache" / "tuned"
    root.mkdir(parents=True)
    glob = Path.glob

    def refused(path, pattern):
        if path == root and pattern.startswith("*/."):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return glob(path, pattern)

    monkeypatch.setattr(Path, "glob", refused)
    code, printed = run("cache", "clear", "--all")
    assert code == 2
    assert printed.err.startswith(f"error: the cache {root.parent} cannot be cleared: ") and "denied" in printed.err
