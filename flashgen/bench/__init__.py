"""Benchmarks: a generated kernel beside everything else that can compute the variant."""

from flashgen.bench.run import Bench
from flashgen.bench.session import Session

__all__ = ["Bench", "Session"]
