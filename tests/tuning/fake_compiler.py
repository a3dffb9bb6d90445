"""Stands in for the offline compiler in a pool's processes."""

import os
import time
from dataclasses import dataclass

from flashgen.runtime.config import Config


@dataclass(frozen=True)
class Compilation:
    registers: int = 128
    spills: int = 0
    shared: int = 1024
    serialized_wgmma: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Lasting:
    """A request that says how long it may take."""

    config: Config
    length: int


class NothingToPrepare:
    """Tools whose compilers answer at once: there is nothing to begin with."""

    def begin(self, requests):
        return []

    def rehearse(self, workload, config):
        return []

    def prepare(self, problem):
        pass


def make(behaviour):
    """Tiles of 64 keys spill, 256 rows need 100 KiB of shared memory and more."""

    def answer(request):
        config = request.config
        if behaviour == f"crash at {config.BM} {config.BN} {config.num_stages}":
            os.abort()
        if behaviour == "slow":
            time.sleep(0.05)
        return Compilation(spills=4000 if config.BN == 64 else 0, shared=100 * 1024 + 1 if config.BM == 256 else 1024)

    return answer
