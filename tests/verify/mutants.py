"""Packages with a mistake made in them, and what their proof says."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from device_functions import written_out

from flashgen.codegen import load_module, render
from flashgen.spec.variant import Variant
from flashgen.verify import Case, CaseResult, run_case


@cache
def rendered(variant: Variant) -> dict[str, str]:
    """The files of its package; the portable functions of the device stand in them, where mistakes can be made too."""
    # Kernels in Gluon are not interpreted.
    return {file: text if "gluon" in text else written_out(text) for file, text in render(variant).items()}


def assert_caught(package: Path, variant: Variant, cases: Iterable[Case]) -> None:
    """A case fails, by what the package computes and not by failing to run."""
    failure = first_failure(package, variant, cases)
    assert failure is not None
    assert "Error" not in failure.detail, failure


def first_failure(package: Path, variant: Variant, cases: Iterable[Case]) -> CaseResult | None:
    """The result of the first case that a package on disk fails."""
    module = load_module(package)
    results = (run_case(module, variant, case, "cpu") for case in cases)
    return next((result for result in results if not result.ok), None)
