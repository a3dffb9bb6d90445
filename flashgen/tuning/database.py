"""A study in a database that several hosts share. Apart, because SQLAlchemy takes half a second to import."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.engine import make_url
from sqlalchemy.event import listen
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from flashgen.errors import EnvironmentProblem, UsageError

TRIES = 4
# How long one process waits for what another one writes to a file.
LOCK_SECONDS = 60.0
# How long a server may take to answer, where neither the URL nor PostgreSQL's own variable says: drivers wait minutes.
ANSWER_SECONDS = 10


def open_database(place: str) -> RDBStorage:
    """The storage at a URL; UsageError for what is none, EnvironmentProblem where its driver is not installed."""
    try:
        url = make_url(place)
    except (ArgumentError, ValueError) as error:
        raise UsageError(f"--storage {place!r}; expected a URL such as postgresql://user@host/database") from error
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    try:
        return _database(url.render_as_string(hide_password=False))
    except ImportError as error:
        raise EnvironmentProblem(
            f"the storage {shown(place)} needs a driver that is not installed ({error}); "
            "for PostgreSQL: pip install '.[postgres]' in the checkout"
        ) from error


def _database(url: str) -> RDBStorage:
    """Of hosts that make the tables at the same moment all but one fail, and find them a little later."""
    # A connection that the server has closed meanwhile is opened again.
    options: dict[str, Any] = {"pool_pre_ping": True}
    asked = make_url(url)
    if asked.drivername.startswith("postgresql+psycopg") and not (
        "connect_timeout" in asked.query or os.environ.get("PGCONNECT_TIMEOUT")
    ):
        options["connect_args"] = {"connect_timeout": ANSWER_SECONDS}
    if asked.get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": LOCK_SECONDS}
    for attempt in range(1, TRIES):
        try:
            return _one_at_a_time(RDBStorage(url, engine_kwargs=options))
        except (SQLAlchemyError, StorageInternalError) as error:
            if not _is_made_meanwhile(error):
                raise
        time.sleep(0.5 * attempt)
    return _one_at_a_time(RDBStorage(url, engine_kwargs=options))


def _is_made_meanwhile(error: Exception) -> bool:
    """Whether the tables may be there a little later. SQLite says of one that is made in between what servers say of
    a lost connection."""
    if isinstance(error, OperationalError):
        return "already exists" in str(error)
    return isinstance(error, (IntegrityError, ProgrammingError, StorageInternalError))


def _one_at_a_time(database: RDBStorage) -> RDBStorage:
    """Where rows have no locks, as in SQLite, let whoever begins a transaction have the whole file.

    Otherwise two processes that look for a trial at the same moment both begin it.
    """
    if database.engine.name == "sqlite":
        listen(database.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return database


@contextmanager
def database_errors() -> Iterator[None]:
    """Let SQLAlchemy's errors be Optuna's, which the caller knows."""
    try:
        yield
    except SQLAlchemyError as error:
        raise StorageInternalError(str(error)) from (error.__cause__ or error)


def shown(place: str) -> str:
    """A URL without its password."""
    return make_url(place).render_as_string(hide_password=True)
