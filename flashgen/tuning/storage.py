"""Where a study is kept: a journal file on this host, or a database that several hosts share."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError

from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.tuning.journal import open_journal

Place = Path | str

TRIES = 4


def open_storage(place: Place) -> BaseStorage:
    """The storage at a path or a URL such as "postgresql://user@host/database", made where it is missing.

    UsageError for what is not a URL; EnvironmentProblem where the place cannot be reached or written, or its driver
    is not installed.
    """
    if isinstance(place, Path):
        return open_journal(place)
    try:
        url = make_url(place)
    except ArgumentError as error:
        raise UsageError(f"--storage {place!r}; expected a URL such as postgresql://user@host/database") from error
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    try:
        return _database(url.render_as_string(hide_password=False))
    except ImportError as error:
        raise EnvironmentProblem(
            f"the storage {_shown(place)} needs a driver that is not installed ({error}); "
            "for PostgreSQL: pip install 'flashgen[postgres]'"
        ) from error
    except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
        raise _unusable(place, error) from error


def _database(url: str) -> RDBStorage:
    """Of hosts that make the tables at the same moment all but one fail, and find them a little later."""
    # A connection that the server has closed meanwhile is opened again.
    options = {"pool_pre_ping": True}
    for attempt in range(1, TRIES):
        with suppress(IntegrityError, ProgrammingError, StorageInternalError):
            return RDBStorage(url, engine_kwargs=options)
        time.sleep(0.5 * attempt)
    return RDBStorage(url, engine_kwargs=options)


@contextmanager
def storage_errors(place: Place | None) -> Iterator[None]:
    """Say what to do when a study can no longer be written: its disk is full, its database has gone."""
    try:
        yield
    except (StorageInternalError, SQLAlchemyError, OSError) as error:
        if place is None:
            raise
        raise _unusable(place, error) from error


def open_study(place: Place | None, name: str, sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    """The study of this name, begun or resumed; in memory where there is no place for it."""
    with storage_errors(place), warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return optuna.create_study(
            study_name=name,
            storage=None if place is None else open_storage(place),
            sampler=sampler,
            direction="minimize",
            load_if_exists=True,
        )


def _unusable(place: Place, error: Exception) -> EnvironmentProblem:
    cause = error.__cause__ or error
    text = (getattr(cause, "strerror", None) or str(cause)).strip().splitlines()
    return EnvironmentProblem(
        f"the study in {_shown(place)} cannot be used: {text[0] if text else type(cause).__name__}; "
        "mend that and run again: what was measured until then is kept"
    )


def _shown(place: Place) -> str:
    return str(place) if isinstance(place, Path) else make_url(place).render_as_string(hide_password=True)
