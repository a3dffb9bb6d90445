"""Where a study is kept: a journal file on this host, or a database that several hosts share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage

from flashgen.errors import EnvironmentProblem
from flashgen.tuning.cache import studies_folder
from flashgen.tuning.journal import opened_journal
from flashgen.tuning.workloads import Workload

Place = Path | str

# The attribute of a study that has the numbers of those of its trials that do not count.
FORGOTTEN = "forgotten"

# What Optuna raises over a study that has what it would not have written.
STRANGE = (
    ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError, UpdateFinishedTrialError,
)  # fmt: skip


@contextmanager
def opened_storage(place: Place) -> Iterator[BaseStorage]:
    """The storage at a path or a URL such as "postgresql://user@host/database", made where it is missing.

    UsageError for what is not a URL; EnvironmentProblem where the place cannot be reached or written, or its driver
    is not installed.
    """
    if isinstance(place, Path):
        with opened_journal(place) as journal:
            yield journal
        return
    from flashgen.tuning.database import database_errors, open_database

    try:
        with database_errors():
            database = open_database(place)
    except (StorageInternalError, RuntimeError) as error:
        raise _unusable(place, error) from error
    try:
        yield database
    finally:
        # Its connections, which psycopg complains of where nobody closes them.
        database.engine.dispose()


@contextmanager
def storage_errors(place: Place | None) -> Iterator[None]:
    """Say what to do when a study can no longer be written: its disk is full, its database has gone."""
    known: AbstractContextManager[None] = nullcontext()
    if isinstance(place, str):
        from flashgen.tuning.database import database_errors

        known = database_errors()
    try:
        with known:
            yield
    except (StorageInternalError, OSError) as error:
        if place is None:
            raise
        raise _unusable(place, error) from error


@contextmanager
def opened_study(place: Place | None, name: str, choices: str) -> Iterator[tuple[optuna.Study, list[optuna.Study]]]:
    """The study of this name over these choices, begun or resumed; in memory where there is no place for it.

    Beside it those of the name over other choices: trials over other choices would not fit a study.
    """
    with storage_errors(place), nullcontext() if place is None else opened_storage(place) as storage:
        with warnings.catch_warnings(), strange_errors():
            warnings.simplefilter("ignore", ExperimentalWarning)
            own = f"{name} {choices}".strip()
            study = optuna.create_study(study_name=own, storage=storage, direction="minimize", load_if_exists=True)
            others = studies_of(storage, name) if storage and name else []
        yield study, [other for other in others if other.study_name != own]


def studies_of(storage: BaseStorage, name: str) -> list[optuna.Study]:
    """All studies of this name, whatever choices their spaces have."""
    with strange_errors():
        return [
            optuna.load_study(study_name=each.study_name, storage=storage)
            for each in storage.get_all_studies()
            if each.study_name.startswith(f"{name} ")
        ]


def forget_studies(place: Place, name: str) -> None:
    """Let nothing count that studies of this name have until now: a journal goes, a database keeps the trials."""
    with storage_errors(place):
        if isinstance(place, Path):
            place.unlink(missing_ok=True)
            return
        with opened_storage(place) as storage:
            for study in studies_of(storage, name):
                with strange_errors():
                    ended = [trial.number for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
                    study.set_user_attr(FORGOTTEN, ended)


def forgotten(study: optuna.Study) -> list[int]:
    """The numbers of the trials that do not count."""
    with strange_errors():
        numbers = study.user_attrs.get(FORGOTTEN)
    return numbers if isinstance(numbers, list) else []


@contextmanager
def strange_errors() -> Iterator[None]:
    """Around a call of Optuna's: let STRANGE be what `storage_errors` knows."""
    try:
        yield
    except STRANGE as error:
        raise not_ours(error) from None


def not_ours(error: Exception) -> StorageInternalError:
    """What to raise for one of STRANGE."""
    text = str(error).strip().splitlines() or [""]
    return StorageInternalError(
        f"it has what no search of these configs has written ({type(error).__name__}: {text[0][:200]})"
    )


def _unusable(place: Place, error: Exception) -> EnvironmentProblem:
    cause = error.__cause__ or error
    text = (getattr(cause, "strerror", None) or str(cause)).strip().splitlines()
    return EnvironmentProblem(
        f"the study in {_shown(place)} cannot be used: {text[0] if text else type(cause).__name__}; "
        "mend that and run again: what was measured until then is kept"
    )


def _shown(place: Place) -> str:
    if isinstance(place, Path):
        return str(place)
    from flashgen.tuning.database import shown

    return shown(place)


def study_name(workload: Workload) -> str:
    """What its studies are called, before the choices. Of two problems in one bucket the times are not those of one."""
    key = workload.key
    return f"{key} spec {key.spec} templates {key.templates} {workload.problem}"


def journal_path(workload: Workload) -> Path:
    """Where this host keeps the study of a workload."""
    return studies_folder() / f"{workload.key.name}.log"
