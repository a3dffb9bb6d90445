"""What the process that measures is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.tuning.workloads import Workload


@dataclass(frozen=True)
class ReadyRequest:
    """Make the inputs of a problem, which the next requests will have."""

    problem: Problem


@dataclass(frozen=True)
class TimeRequest:
    """Time `config` for about `milliseconds` of GPU time. `best_us` is the best median known so far."""

    workload: Workload
    config: Config
    milliseconds: float
    best_us: float | None = None


@dataclass(frozen=True)
class ProofRequest:
    """Prove `config` on a problem like the workload's."""

    workload: Workload
    config: Config


@dataclass(frozen=True)
class RehearseRequest:
    """Find what a ProofRequest would have to compile."""

    workload: Workload
    config: Config


@dataclass(frozen=True)
class ConcordRequest:
    """Compare what configs compute of the workload's problem with one another, and with `arbiter` where they differ."""

    workload: Workload
    configs: tuple[Config, ...]
    arbiter: Config


@dataclass(frozen=True)
class WorkRequest:
    """Count the visible pairs of the workload's problem, and measure what the GPU can do."""

    workload: Workload


Measuring = TimeRequest | RehearseRequest | ProofRequest | ConcordRequest | WorkRequest
Request = ReadyRequest | Measuring
