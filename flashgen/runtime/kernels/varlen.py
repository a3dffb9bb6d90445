"""What the portable kernels over packed sequences have of their dense forms: launches, tables of configs, spaces."""

from __future__ import annotations

from dataclasses import replace

from flashgen.runtime.config import Config
from flashgen.runtime.kernels.kernel import Beside, Kernel
from flashgen.runtime.kernels.schedule import schedules


def varlen_kernel(dense: Kernel) -> Kernel:
    """The kernel over packed sequences that computes what a dense one does."""
    return replace(
        dense,
        name=f"{dense.name}_varlen",
        family=f"{dense.family}_varlen",
        function=f"{dense.function}_varlen",
        serves="all calls over packed sequences",
        tuned=False,
        beside=_schedules,
    )


def _schedules(config: Config) -> tuple[Beside, ...]:
    """Those of packed sequences, of a variant that has them."""
    return tuple(each._replace(function=f"{each.function}_varlen") for each in schedules(config))
