"""Studies in databases: processes join one, it is resumed, and one that does not answer is a clear error."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import optuna
import pytest
from fake_tools import LONG as PROBLEM
from fake_tools import FakeTools, session, workload
from sqlalchemy.engine import Engine
from sqlalchemy.event import listen, remove
from test_study import SPACE, Fake

from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.tuning import database
from flashgen.tuning.storage import opened_storage
from flashgen.tuning.study import search

HERE = Path(__file__).parent
# Begins when both have come.
JOIN = """
    import os, sys, time
    sys.path.insert(0, {here!r})
    from test_study import SPACE, Fake
    from flashgen.tuning.study import search
    fake = Fake()
    def slow(config, best_us):
        time.sleep(0.05)
        print(config.BM, config.BN, config.num_warps, config.num_stages, flush=True)
        return fake(config, best_us)
    open(os.path.join({meeting!r}, str(os.getpid())), "w").close()
    while len(os.listdir({meeting!r})) < 2:
        time.sleep(0.01)
    result = search(SPACE[:24], [slow], place={url!r}, name="shared")
    print("best", result.ranking[0].config.BM, len(result.trials), flush=True)
"""


@pytest.fixture(scope="module")
def postgres():
    """The URL of a database in a cluster of the tests' own."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install '.[postgres]' in the checkout")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("needs PostgreSQL's initdb and postgres (Debian: apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="flashgen-postgres-", dir="/tmp"))
    user = _user()
    if user is not None:
        os.chown(folder, *user)
    as_user = {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}
    run = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder, **as_user}
    data = folder / "data"
    try:
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "tuner", "-A", "trust", "-E", "UTF8", "--no-sync"], **run
        )
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        control = [binaries / "pg_ctl", "-D", data, "-w", "-l", folder / "log"]
        subprocess.run([*control, "-o", options, "start"], **run)
        try:
            yield f"postgresql://tuner@/postgres?host={folder}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries():
    """The folder of PostgreSQL's programs, which Debian keeps off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else [path.parent for path in found[-1:]]
    return next((folder for folder in folders if (folder / "pg_ctl").exists()), None)


def _user():
    """PostgreSQL refuses to run as root: another user and group for it, None where this one will do."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: (entry.pw_uid, entry.pw_gid) for entry in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_processes_join_one_study_in_a_database(kind, request, tmp_path):
    url = f"sqlite:///{tmp_path}/study.db" if kind == "sqlite" else request.getfixturevalue("postgres")
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    code = textwrap.dedent(JOIN.format(here=str(HERE), url=url, meeting=str(meeting)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    ]
    ended = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    lines = [out.splitlines() for out, _ in ended]
    measured = [line for one in lines for line in one if not line.startswith("best")]
    shares = [len(one) - 1 for one in lines]
    assert sorted(measured) == sorted(set(measured)) and len(measured) == 24 and min(shares) > 2
    # Each waited for what the other still measured.
    assert [one[-1].split()[2] for one in lines] == ["24", "24"]
    fake = Fake()
    result = search(SPACE[:24], [fake], place=url, name="shared")
    assert fake.asked == [] and len(result.trials) == 24


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_no_connection_stays_open(kind, tmp_path, request):
    url = f"sqlite:///{tmp_path}/study.db" if kind == "sqlite" else request.getfixturevalue("postgres")
    with opened_storage(url) as storage:
        assert isinstance(storage.get_all_studies(), list)
        pool = storage.engine.pool
        assert pool.checkedin() > 0
    assert pool.checkedin() == pool.checkedout() == 0


@pytest.mark.parametrize("table", ["studies", "trials", "version_info", "alembic_version"])
def test_tables_that_another_process_makes_meanwhile_are_taken(table, tmp_path):
    url, raced = f"sqlite:///{tmp_path}/study.db", []

    def overtake(_connection, _cursor, statement, *_):
        if f"CREATE TABLE {table} " in statement and not raced:
            raced.append(table)
            optuna.storages.RDBStorage(url)

    listen(Engine, "before_cursor_execute", overtake)
    try:
        with opened_storage(url) as storage:
            assert storage.get_all_studies() == []
    finally:
        remove(Engine, "before_cursor_execute", overtake)
    assert raced == [table]


def test_a_session_resumes_from_postgresql(postgres, tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    outcomes = []
    for _ in range(2):
        tools = FakeTools()
        outcomes.append(
            session(tools, tmp_path / "t", "quick", storage=postgres, force=True).tune(workload(PROBLEM), None)
        )
    assert outcomes[0].record.config == outcomes[1].record.config
    assert len({config for _, config in tools.timed}) <= 2
    assert not (tmp_path / "studies").exists()


@pytest.fixture
def silent(monkeypatch):
    """The URL of a server that takes connections and says nothing."""
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"postgresql://tuner@127.0.0.1:{server.getsockname()[1]}/tuning"


@pytest.mark.parametrize("asked", ["", "?connect_timeout=2", "PGCONNECT_TIMEOUT"])
def test_a_database_that_does_not_answer_is_waited_for_once_and_not_long(silent, asked, monkeypatch):
    pytest.importorskip("psycopg")
    monkeypatch.setattr(database, "ANSWER_SECONDS", 60 if asked else 2)
    if asked == "PGCONNECT_TIMEOUT":
        monkeypatch.setenv(asked, "2")
    begun = time.monotonic()
    url, message = silent + asked.removeprefix("PGCONNECT_TIMEOUT"), r"cannot be used: connection timeout expired; mend"
    with pytest.raises(EnvironmentProblem, match=message), opened_storage(url):
        pass
    assert 1 < time.monotonic() - begun < 20


def test_a_database_that_is_not_there_is_a_clear_error(postgres, tmp_path):
    url = f"postgresql://tuner:secret@/postgres?host={tmp_path}"
    with pytest.raises(EnvironmentProblem, match="cannot be used") as problem, opened_storage(url):
        pass
    assert "secret" not in str(problem.value)


@pytest.mark.parametrize("url", ["nonsense", "sqlite:////nowhere/at/all/study.db"])
def test_what_is_no_storage_is_a_clear_error(url):
    with pytest.raises((UsageError, EnvironmentProblem), match=r"storage|study"), opened_storage(url):
        pass
