"""What verification found."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class CaseResult:
    """One case: its worst row's error, what that row's may be, and where it stands or what went wrong."""

    name: str
    error: float
    budget: float
    ok: bool
    detail: str = ""

    def __str__(self) -> str:
        if self.budget > 0:
            return f"{self.name}: error {self.error:.2e} of {self.budget:.2e} allowed, {self.detail}"
        return f"{self.name}: {self.detail}"


@dataclass(frozen=True)
class Report:
    """All cases of one level. `device` says where they ran, `note` what else there is to say of what they drew."""

    level: str
    device: str
    cases: tuple[CaseResult, ...]
    seconds: float
    note: str = ""

    @property
    def passed(self) -> bool:
        return bool(self.cases) and all(case.ok for case in self.cases)

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        return tuple(case for case in self.cases if not case.ok)

    def __str__(self) -> str:
        """One line when all passed, otherwise one more for each failure."""
        where = f"on {self.device}, {self.seconds:.1f} s"
        if self.passed:
            worst = max(self.cases, key=lambda case: case.error / case.budget if case.budget else 0.0)
            return f"{len(self.cases)} cases passed {where}; the closest to its budget: {worst}"
        lines = [f"{len(self.failures)} of {len(self.cases)} cases failed {where}:"]
        return "\n  ".join(lines + [str(case) for case in self.failures])

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: an error without bound is None."""
        values = {**asdict(self), "passed": self.passed}
        for case in values["cases"]:
            case["error"] = case["error"] if math.isfinite(case["error"]) else None
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Report:
        cases = tuple(
            CaseResult(**{**case, "error": math.inf if case["error"] is None else case["error"]})
            for case in values["cases"]
        )
        return cls(values["level"], values["device"], cases, values["seconds"], values["note"])
