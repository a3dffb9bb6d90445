"""Dropping configs before any launch: each is compiled offline in a pool of processes and judged by what came out.

Triton's own cache keeps what was compiled, so the process that measures finds it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.gpus import shared_limit
from flashgen.runtime.kernels.kernel import SPILL_LIMIT
from flashgen.runtime.registry import kernel_like
from flashgen.tuning.worker import RequestFailed

# Verdicts on configs that run all the same.
ONLY_SLOW = ("spills", "serialized WGMMA")


class Compiled(Protocol):
    """What the compiler says of one config; see `flashgen.codegen.offline`."""

    @property
    def registers(self) -> int | None: ...
    @property
    def spills(self) -> int | None: ...
    @property
    def shared(self) -> int: ...
    @property
    def serialized_wgmma(self) -> bool: ...
    @property
    def error(self) -> str | None: ...


@dataclass(frozen=True)
class CompileRequest:
    """A kernel, as a call on this problem launches it, to compile in one config for a GPU such as "sm_80"."""

    kernel: str
    problem: Problem
    config: Config
    target: str


@dataclass(frozen=True)
class Pruned:
    """The configs that stay, in their order, the verdict on each, empty for a good one, and what each compiled to."""

    kept: tuple[Config, ...]
    verdicts: Mapping[Config, str]
    compiled: Mapping[Config, Compiled]


def prune(
    configs: Iterable[Config], results: Mapping[Config, Compiled | RequestFailed], capability: str,
    forgiving: bool = False,
) -> Pruned:  # fmt: skip
    """Judge configs by their compilation. What was not compiled, or whose compiling process failed, stays.

    With `forgiving`, and where nothing would stay, those that are only slow stay too: a slow kernel is better than
    none.
    """
    configs = list(configs)
    compiled = {config: found for config, found in results.items() if not isinstance(found, RequestFailed)}
    verdicts = {
        config: verdict(found, capability, kernel_like(config).spill_limit(config)) if found else ""
        for config, found in ((config, compiled.get(config)) for config in configs)
    }
    if not forgiving:
        forgiving = all(verdicts.values())
    kept = [config for config, why in verdicts.items() if not why or (forgiving and why in ONLY_SLOW)]
    return Pruned(tuple(kept), verdicts, compiled)


def verdict(compiled: Compiled, capability: str, most_spills: int = SPILL_LIMIT) -> str:
    """Why a config is not worth a launch; empty if it is."""
    if compiled.error is not None:
        return "does not compile"
    if compiled.shared > shared_limit(capability):
        return "shared memory"
    if compiled.spills is not None and compiled.spills > most_spills:
        return "spills"
    return "serialized WGMMA" if compiled.serialized_wgmma else ""
