"""Journals and databases of studies that somebody has written what they like into: said, and survived."""

import fcntl
import json
import os
import shutil
import sqlite3
import warnings

import pytest

from flashgen.errors import EnvironmentProblem, FlashgenError
from flashgen.runtime.config import Config
from flashgen.runtime.record_files import RecordWarning
from flashgen.tuning import claims, journal
from flashgen.tuning.study import Budget, search
from flashgen.tuning.timing import Timing

SPACE = [Config(BM, BN, 4, stages) for BM in (32, 64, 128) for BN in (32, 64) for stages in (1, 2)]
BEST = Config(64, 64, 4, 2)
pytestmark = pytest.mark.timeout(20)


def measure(config, best_us):
    return Timing(100.0 - (config == BEST), 0.01, 10)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """What nobody has signed, or one who cannot be asked, is given up soon."""
    monkeypatch.setattr(claims, "UNSIGNED_FOR", 0.05)
    monkeypatch.setattr(claims, "GIVEN_UP_AFTER", 0.05)


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    """A journal of eight trials."""
    path = tmp_path_factory.mktemp("study") / "study.log"
    search(SPACE, [measure], place=path, budget=Budget(trials=8))
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# Values of no field's type: of each kind of entry each field gets all of them.
STRANGE = {"null": None, "truth": True, "text": "x", "list": [[]], "dict": {"a": {}}, "negative": -7, "huge": 10**40}
FIELDS = {
    0: ("study_name", "directions", "worker_id"),
    4: ("study_id", "datetime_start", "state", "system_attrs"),
    5: ("trial_id", "param_name", "param_value_internal", "distribution"),
    6: ("trial_id", "state", "values", "datetime_complete"),
    8: ("trial_id", "user_attr"),
    9: ("trial_id", "system_attr"),
}
WRONG = [(code, name, what) for code, names in FIELDS.items() for name in names for what in STRANGE]


def complete(place):
    """A search that must end, with all configs known and the best one first."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = search(SPACE, [measure], place=place)
    assert len(found.trials) == len(SPACE) and found.ranking[0].config == BEST
    return [one for one in said if issubclass(one.category, RecordWarning)]


@pytest.mark.parametrize(("code", "name", "what"), WRONG, ids=lambda value: str(value))
def test_an_entry_of_a_wrong_type_costs_at_most_what_comes_after_it(tmp_path, entries, code, name, what):
    places = [place for place, entry in enumerate(entries) if entry["op_code"] == code and name in entry]
    if not places:
        pytest.skip("no such entry")
    place = places[len(places) // 2]
    changed = [dict(entry) for entry in entries]
    changed[place][name] = STRANGE[what]
    path = tmp_path / "study.log"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in changed))
    for warning in complete(path):
        assert "is damaged at byte" in str(warning.message)


HOSTILE_TRIALS = {
    "params of another space": {"fixed_params": {"BM": 7, "BN": "x", "num_warps": None, "num_stages": 1e300}},
    "params of lists": {"fixed_params": {"BM": [1], "BN": [2], "num_warps": [3], "num_stages": [4]}},
    "params too few": {"fixed_params": {"BM": 32}},
    "no params": {"fixed_params": {}},
    "other attributes": {"nothing": [1, {"of": None}]},
}


@pytest.mark.parametrize("system", HOSTILE_TRIALS.values(), ids=HOSTILE_TRIALS)
@pytest.mark.parametrize("state", [0, 1, 2, 3, 4], ids=["running", "complete", "pruned", "failed", "waiting"])
def test_trials_that_are_not_like_ours_are_passed_over(tmp_path, entries, system, state):
    entry = next(dict(one) for one in entries if one["op_code"] == 4)
    entry |= {"state": state, "system_attrs": system, "values": [1.0] if state == 1 else None}
    path = tmp_path / "study.log"
    path.write_text("".join(json.dumps(one) + "\n" for one in [*entries, *[entry] * 5]))
    complete(path)


ACCOUNTS = {
    "a text": "fast", "null": None, "a list": [1, 2], "empty": {}, "a time of text": {"median_us": "fast"},
    "a time of null": {"median_us": None}, "no time at all": {"median_us": 0}, "a time before": {"median_us": -5.0},
    "a time beyond": {"median_us": 10**40}, "a true time": {"median_us": True}, "a spread of lists": {"spread": []},
    "hopeless in words": {"hopeless": "very"}, "failed and timed": {"failure": "crashed"},
    "failed with a number": {"failure": 3}, "one field more": {"speed": 1},
}  # fmt: skip


@pytest.mark.parametrize("account", ACCOUNTS.values(), ids=ACCOUNTS)
def test_an_account_of_a_trial_that_is_none_is_measured_again(tmp_path, entries, account):
    changed = [dict(entry) for entry in entries]
    told = [entry for entry in changed if "flashgen" in entry.get("user_attr", {})]
    whole = told[3]["user_attr"]["flashgen"]
    told[3]["user_attr"] = {"flashgen": {**whole, **account} if isinstance(account, dict) and account else account}
    path = tmp_path / "study.log"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in changed))
    asked = []
    search(SPACE, [lambda config, best: asked.append(config) or measure(config, best)], place=path)
    assert len(asked) == len(SPACE) - 7


FILES = {
    "folder": os.mkdir,
    "pipe": os.mkfifo,
    "device": lambda path: os.symlink("/dev/zero", path),
    "endless": lambda path: (open(path, "w").close(), os.truncate(path, 1 << 40)),
    "loop": lambda path: os.symlink("study.log", path),
}


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_what_is_no_journal_is_named(tmp_path, make):
    path = tmp_path / "study.log"
    make(path)
    with pytest.raises(EnvironmentProblem, match=r"study\.log"):
        search(SPACE, [measure], place=path)


BYTES = {
    "empty": b"", "zeros": bytes(5000), "binary": bytes(range(256)) * 20, "a tower": b"[" * 100_000 + b"\n",
    "objects": b'{"a":' * 50_000 + b"\n", "one long line": b"x" * 1_000_000, "blank lines": b"\n" * 1000,
    "utf-16": '{"op_code": 0}\n'.encode("utf-16"), "numbers": b"1\n2\n3\n", "NaN": b'{"op_code": NaN}\n',
    "a long number": b'{"op_code": ' + b"9" * 5000 + b"}\n",
}  # fmt: skip


@pytest.mark.parametrize("content", BYTES.values(), ids=BYTES)
def test_a_journal_of_something_else_is_kept_and_begun_anew(tmp_path, content):
    path = tmp_path / "study.log"
    path.write_bytes(content)
    assert bool(complete(path)) == bool(content)
    assert not content or path.with_name("study.log.damaged").read_bytes() == content


def while_it_runs(path, content):
    """A search in whose third measurement somebody appends to its journal."""
    asked = []

    def interrupted(config, best_us):
        asked.append(config)
        if len(asked) == 3:
            with path.open("ab") as file:
                file.write(content)
        return measure(config, best_us)

    return search(SPACE, [interrupted], place=path)


@pytest.mark.parametrize("half", [b'{"op_code":4,"worker_id":"x","st', bytes(5000)], ids=["text", "zeros"])
def test_half_a_line_that_a_killed_process_left_spoils_nothing_for_the_others(tmp_path, half):
    path = tmp_path / "study.log"
    assert len(while_it_runs(path, half).trials) == len(SPACE)
    assert complete(path) == []


@pytest.mark.parametrize("begun", [False, True], ids=["at first", "later"])
def test_a_lock_that_a_stopped_process_holds_is_named_and_not_waited_for_without_end(tmp_path, monkeypatch, begun):
    monkeypatch.setattr(journal, "LOCK_SECONDS", 0.2)
    path = tmp_path / "study.log"
    with (tmp_path / "study.log.lock").open("w") as lock:

        def interrupted(config, best_us):
            fcntl.flock(lock, fcntl.LOCK_EX)
            return measure(config, best_us)

        if not begun:
            fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EnvironmentProblem, match=r"study\.log\.lock"):
            search(SPACE, [interrupted], place=path)
    complete(path)


FOREIGN = {
    "no journal's": b"something\n",
    "of a version to come": b'{"op_code":99,"worker_id":"x","future":1}\n',
    "without its fields": b'{"op_code":4,"worker_id":"x"}\n',
    "that deletes the study": b'{"op_code":1,"worker_id":"x","study_id":0}\n',
}


@pytest.mark.parametrize("line", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_line_that_comes_while_a_search_runs_is_named(tmp_path, line):
    path = tmp_path / "study.log"
    with pytest.raises(EnvironmentProblem, match=r"cannot be used.*run again"):
        while_it_runs(path, line)
    complete(path)


# ---- databases ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "study.db"
    search(SPACE, [measure], place=f"sqlite:///{path}", budget=Budget(trials=6))
    return path


@pytest.fixture
def database(made, tmp_path):
    """A database with six trials."""
    path = shutil.copy(made, tmp_path)
    return path, f"sqlite:///{path}"


DAMAGE = {
    "a time of text": "UPDATE trial_values SET value = 'fast'",
    "a time of null": "UPDATE trial_values SET value = NULL",
    "accounts that are no JSON": "UPDATE trial_user_attributes SET value_json = '{'",
    "accounts of lists": "UPDATE trial_user_attributes SET value_json = '[[]]'",
    "accounts of numbers": "UPDATE trial_user_attributes SET value_json = '1e999'",
    "params of nothing": "UPDATE trial_system_attributes SET value_json = 'null'",
    "params that are no JSON": "UPDATE trial_system_attributes SET value_json = 'x'",
    "another state": "UPDATE trials SET state = 'GONE'",
    "all running": "UPDATE trials SET state = 'RUNNING'",
    "all waiting": "UPDATE trials SET state = 'WAITING'",
    "params out of range": "UPDATE trial_params SET param_value = 99",
    "distributions of text": "UPDATE trial_params SET distribution_json = 'x'",
    "another distribution": """UPDATE trial_params SET distribution_json =
        '{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 3]}}'""",
    "the other direction": "UPDATE study_directions SET direction = 'MAXIMIZE'",
    "no direction": "DELETE FROM study_directions",
    "no values": "DELETE FROM trial_values",
    "numbers that jump": "UPDATE trials SET number = number * 1000",
    "times of text": "UPDATE trials SET datetime_start = 'yesterday'",
    "another version": "UPDATE alembic_version SET version_num = 'v99.0.a'",
    "an older schema": "UPDATE version_info SET schema_version = 1",
    "no table": "DROP TABLE trial_user_attributes",
    "no studies": "DROP TABLE studies",
}


def survives(place):
    """A search that ends: whole, or with an error of the catalogue that names the place and what to do."""
    try:
        search(SPACE, [measure], place=place)
    except FlashgenError as error:
        assert str(error) and len(str(error)) < 2000


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE)
def test_a_database_with_what_we_never_wrote_is_survived_or_named(database, statement):
    path, place = database
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    survives(place)


@pytest.mark.parametrize("content", BYTES.values(), ids=BYTES)
def test_a_file_that_is_no_database_is_named(tmp_path, content):
    (tmp_path / "study.db").write_bytes(content)
    survives(f"sqlite:///{tmp_path / 'study.db'}")


URLS = (
    "", "x", "sqlite", "://", "postgresql://", "sqlite:////nowhere/at/all.db", "oracle://host/db", "file:///etc/passwd",
    "postgresql://localhost:1/none", "mysql://\0", "sqlite:///", "postgresql://u:p@[::1", "http://example.com/db",
)  # fmt: skip


@pytest.mark.parametrize("place", URLS, ids=ascii)
def test_what_is_no_url_of_a_database_is_an_error_that_says_so(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    survives(place)
