"""Processes that flashgen starts: what they import, and when they end."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from flashgen import processes

SPEC = "name: tiny\ncausal: true\nhead_dim: 64\ndtype: bfloat16\ntune: {shapes: [{batch: 1, heads: 2, q_len: 128}]}\n"
POOL = """
    from pathlib import Path
    from flashgen.codegen import generate
    from flashgen.spec import load
    from flashgen.tuning.pool import compilers
    from flashgen.tuning.prune import CompileRequest
    from flashgen.tuning.workloads import problems
    from flashgen.runtime import default_config
    variant = load("tiny.yaml")
    path = generate(variant, Path("generated"))
    (problem,) = problems(variant, None, None)
    config = default_config("sm_80", "bfloat16", 64, 64)
    request = CompileRequest("forward", problem, config, "sm_80")
    with compilers(variant, path) as pool:
        print("compiled", pool.answers([request])[request].error)
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A working folder with a spec and, beside it, a file of the name of each module that this process has loaded."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(SPEC)
    loaded = {name.partition(".")[0] for name in sys.modules} | {"ruff", "optuna", "filelock", "rich", "typer"}
    for name in {name for name in loaded if name.isidentifier() and not name.startswith("__")}:
        Path(f"{name}.py").write_text(f"open({str(tmp_path / 'RAN')!r}, 'a').write({name!r})\nraise SystemExit(77)\n")
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nbackend: module://ruff\n")
    (tmp_path / "latex").write_text(f"#!/bin/sh\necho latex >> {tmp_path / 'RAN'}\n")
    (tmp_path / "latex").chmod(0o755)
    (tmp_path / "ruff-99.0.dist-info").mkdir()
    (tmp_path / "ruff-99.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: ruff\nVersion: 99.0\n")
    (tmp_path / "ruff-99.0.dist-info" / "RECORD").write_text("ruff,,\n")
    (tmp_path / "ruff").write_text(f"#!/bin/sh\necho ruff >> {tmp_path / 'RAN'}\n")
    (tmp_path / "ruff").chmod(0o755)
    monkeypatch.setenv("PATH", os.environ["PATH"] + os.pathsep + str(tmp_path))
    return tmp_path


def run(repository, line, **options):
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run(line, capture_output=True, text=True, env=environment, check=False, **options)


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "tiny.yaml", "--no-verify", "--target", "sm_80"],
        ["verify", "tiny.yaml", "--level", "quick"],
        ["export", "tiny.yaml", "-o", "one.py"],
        ["cache", "ls"],
        ["explain", "tiny.yaml", "--png", "mask.png"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_runs_nothing_that_lies_in_the_working_folder(planted, repository, tmp_path_factory, arguments):
    script = tmp_path_factory.mktemp("bin") / "flashgen"
    script.write_text("from flashgen.cli import main\nmain()\n")
    if arguments[0] == "verify":
        built = run(repository, [sys.executable, str(script), "build", "tiny.yaml", "--no-verify", "--no-compile"])
        assert built.returncode == 0, built.stderr
    done = run(repository, [sys.executable, str(script), *arguments])
    assert done.returncode == 0, done.stderr
    assert not (planted / "RAN").exists(), (planted / "RAN").read_text()


def test_compilers_run_nothing_that_lies_in_the_working_folder(planted, repository, tmp_path_factory):
    script = tmp_path_factory.mktemp("bin") / "pool.py"
    script.write_text(textwrap.dedent(POOL))
    done = run(repository, [sys.executable, str(script)])
    assert done.stdout.strip() == "compiled None", done.stderr
    assert not (planted / "RAN").exists()


def test_python_m_imports_its_requirements_from_where_they_are_installed(planted, repository):
    """What Python itself imports before the package has a say is not its doing: those files are not planted."""
    for name in {"flashgen"} | sys.stdlib_module_names - {"json", "logging", "decimal"}:
        (planted / f"{name}.py").unlink(missing_ok=True)
    done = run(repository, [sys.executable, "-m", "flashgen", "cache", "ls"])
    assert done.returncode == 0, done.stderr
    assert not (planted / "RAN").exists()


def test_a_child_finds_modules_where_this_process_does_and_not_in_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", ".", str(tmp_path), *sys.path])
    environment = {**processes.environment()}
    del environment["PYTHONSAFEPATH"]  # Python 3.10 does not know it.
    code = "import sys; print(sys.path); import flashgen; print(flashgen.__file__)"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "shows_its_path.py").write_text(code)
    environment["PYTHONPATH"] += os.pathsep + str(tmp_path / "elsewhere")
    done = subprocess.run(
        processes.command("shows_its_path"), env=environment, capture_output=True, text=True, check=True
    )
    entries, home = done.stdout.splitlines()
    import flashgen

    assert home == flashgen.__file__
    found = eval(entries, {"__builtins__": {}})  # noqa: S307 - a list of strings that this test has printed
    assert str(tmp_path) not in found and "" not in found and str(Path(flashgen.__file__).parent) not in found


def test_the_working_folder_stays_where_pythonpath_names_it_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    assert str(tmp_path) not in processes.trusted_path()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), "elsewhere"]))
    assert str(tmp_path) in processes.trusted_path()


# Starts a process from a thread that ends, which then does what holds Python's lock for minutes.
PARENT = """
    import sys, threading, time
    from flashgen import processes
    child = []
    def begin():
        child.append(processes.start(processes.command("busy"), env=processes.environment()))
    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    time.sleep(1.5)
    print(child[0].pid, child[0].poll(), flush=True)
    time.sleep(60)
"""
BUSY = "import re\nre.match('(a+)+$', 'a' * 60 + 'b')\n"


BACKGROUND = """
    import threading, time
    from flashgen import processes
    def work():
        time.sleep(0.5)  # The main thread has ended by then.
        child = processes.start(processes.command("waits"), env=processes.environment())
        print(child.wait(30), flush=True)
    threading.Thread(target=work).start()
    processes.start(processes.command("platform"), env=processes.environment(), stdout=-3).wait()
"""


def test_a_thread_that_outlives_the_main_thread_may_start_processes(tmp_path, repository):
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(1)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(repository), str(tmp_path)])}
    line = [sys.executable, "-c", textwrap.dedent(BACKGROUND)]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False, timeout=60)
    assert done.stdout == "0\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process that holds Python's lock ends a little later")
def test_a_child_outlives_the_thread_that_started_it_and_ends_with_the_process(tmp_path, repository):
    (tmp_path / "busy.py").write_text(BUSY)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(repository), str(tmp_path)])}
    line = [sys.executable, "-c", textwrap.dedent(PARENT)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        pid, status = parent.stdout.readline().split()
        assert status == "None" and alive(int(pid))
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        end = time.monotonic() + 10
        while alive(int(pid)) and time.monotonic() < end:
            time.sleep(0.01)
        assert not alive(int(pid))


def test_a_child_whose_parent_is_gone_before_it_begins_does_nothing(tmp_path):
    line = processes.command("shows")
    line[2] = "1" if os.getpid() != 1 else "2"  # not its parent
    (tmp_path / "shows.py").write_text("print('it ran')")
    environment = processes.environment() | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_process_that_was_forked_from_this_one_starts_processes_too():
    ran = processes.start(processes.command("platform"), env=processes.environment(), stdout=subprocess.DEVNULL)
    assert ran.wait(30) == 0
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        own = processes.start(processes.command("platform"), env=processes.environment(), stdout=subprocess.DEVNULL)
        os._exit(own.wait(30))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("recorded", [True, False])
def test_a_program_runs_by_its_file_or_where_none_is_recorded_by_python(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_program_file", processes._program_file.__wrapped__)
    if not recorded:
        monkeypatch.setattr(processes, "distributions", lambda **_: ())
    line = processes.program("ruff")
    assert (Path(line[0]).stem == "ruff") is recorded
    done = run(tmp_path, [*line, "--version"])
    assert done.stdout.startswith("ruff "), done.stderr
