"""A benchmark run over several variants: what is measured already, what is left when the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import ModuleType

from flashgen.bench.passes import digests
from flashgen.bench.rows import Case, Row, read, write
from flashgen.bench.run import Bench, machine, measure_case
from flashgen.codegen import generate, load_module
from flashgen.problems.problem import Problem
from flashgen.spec.variant import Variant

Measure = Callable[[Variant, ModuleType, Case, Bench], list[Row]]


@dataclass
class Session:
    """Measures case by case. Rows are appended to `rows_file` as soon as a case is done; with `resume` the cases
    that it already has are taken from there. `left` counts the cases that the time limit cut off.
    """

    bench: Bench
    out: Path
    rows_file: Path | None = None
    resume: bool = False
    measure: Measure = measure_case
    machine: Callable[[], tuple[str, str, str]] = machine
    clock: Callable[[], float] = time.monotonic
    rows: list[Row] = field(default_factory=list)
    left: int = 0

    def __post_init__(self) -> None:
        self._gpu, self._torch, self._triton = self.machine()
        self._start = self.clock()
        self._known: dict[str, list[Row]] = {}
        if self.resume and self.rows_file is not None:
            for row in read(self.rows_file):
                self._known.setdefault(row.case.key, []).append(row)

    def run(self, variant: Variant, problems: Sequence[Problem]) -> Iterator[list[Row]]:
        """The rows of each problem and pass in turn, those that a resumed file has included."""
        module = load_module(generate(variant, self.out))
        for problem, step in product(problems, self.bench.passes):
            case = self._case(variant, module, problem, step)
            names = self.bench.candidates_of(step)
            rows = [row for row in self._known.get(case.key, ()) if row.candidate in names]
            if {row.candidate for row in rows} != {*names}:
                if self._time_is_up():
                    self.left += 1
                    continue
                rows = self.measure(variant, module, case, self.bench)
                if self.rows_file is not None:
                    write(self.rows_file, rows)
            self.rows.extend(rows)
            yield rows

    def _case(self, variant: Variant, module: ModuleType, problem: Problem, step: str) -> Case:
        identity = module.IDENTITY
        return Case(
            variant.name,
            identity.spec,
            digests(step, identity.templates),
            problem,
            self._gpu,
            self._torch,
            self._triton,
            step,
        )

    def _time_is_up(self) -> bool:
        return self.bench.seconds is not None and self.clock() - self._start > self.bench.seconds
