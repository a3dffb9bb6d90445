"""Prove cases in a child process under Triton's interpreter, which must be chosen before triton is imported.

The child runs `flashgen.verify MODULE`: it reads a pickled job from stdin and writes a report to stdout,
as JSON. Both ends are this package; nothing that a user wrote is unpickled.
"""

from __future__ import annotations

import json
import pickle
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flashgen.errors import VerificationFailed
from flashgen.processes import command, environment
from flashgen.spec.variant import Variant
from flashgen.verify.case import Case
from flashgen.verify.paged_cases import PagedCase
from flashgen.verify.report import Report

# Beyond the limit that the child keeps itself, for its start and for the case in progress.
GRACE_SECONDS = 60


@dataclass(frozen=True)
class Job:
    """What the child is to prove."""

    variant: Variant
    cases: tuple[Case | PagedCase, ...]
    level: str
    seconds: float


def run_isolated(
    module_path: Path, variant: Variant, cases: Sequence[Case | PagedCase], *, level: str, seconds: float
) -> Report:
    """Run the cases in a child process. VerificationFailed if it dies or hangs."""
    job = pickle.dumps(Job(variant, tuple(cases), level, seconds))
    try:
        child = subprocess.run(
            command("flashgen.verify", str(module_path)), input=job, env=_interpreting(), capture_output=True,
            timeout=seconds + GRACE_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise VerificationFailed(
            f"{module_path}: the interpreter did not end within {error.timeout:.0f} s; expected at most {seconds:.0f} s"
        ) from error
    if child.returncode != 0:
        last = child.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise VerificationFailed(
            f"{module_path}: the interpreter's process ended with status {child.returncode}: {last[0]}"
        )
    return Report.from_dict(json.loads(child.stdout))


def _interpreting() -> dict[str, str]:
    # One thread: the tensors are small, and several verifications may share the machine.
    return environment() | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
