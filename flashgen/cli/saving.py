"""The tables and pictures that `flashgen tune` saves of what it measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flashgen.cli import failure
from flashgen.cli.output import Output
from flashgen.errors import EnvironmentProblem, FlashgenError

if TYPE_CHECKING:
    from flashgen.tuning.outcome import Outcome


class Saved:
    """The files that are made of outcomes, none of one whose record was there. One that fails keeps no other back."""

    def __init__(self, tables: Path | None, reports: Path | None) -> None:
        self._tables, self._reports = tables, reports
        self._paths: list[Path] = []
        self._errors: list[FlashgenError] = []

    def measurements(self, outcome: Outcome) -> None:
        """Save what was measured, at once: it took the time, and its record keeps it from being measured again."""
        from flashgen.tuning.table import save

        if self._tables is not None and outcome.entries:
            with self._noted():
                self._paths.append(save(outcome, self._tables))

    def pictures(self, outcome: Outcome) -> None:
        from flashgen.tuning.report import report

        if self._reports is not None and outcome.entries:
            with self._noted():
                self._paths += report(outcome, self._reports)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except FlashgenError as error:
            self._errors.append(error)

    def tell(self, output: Output) -> None:
        """Say what there is, and why not more."""
        for path in dict.fromkeys(self._paths):
            output.line(f"saved {path}")
        for error in self._errors:
            failure.report(error)

    def check(self) -> None:
        """EnvironmentProblem where something is missing."""
        if self._errors:
            raise EnvironmentProblem(
                f"tables or pictures were not saved, {len(self._errors)} times; the records are there, and "
                "`flashgen tune --force` measures anew"
            )
