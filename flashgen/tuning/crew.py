"""The processes of a tuning run: compilers, and for each GPU one that measures.

Imports neither torch nor triton, so that the processes start while the one that needs them still imports both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashgen.tuning.pool import compilers, gpus_in_sight
from flashgen.tuning.worker import Worker


class Crew:
    """The processes for one generated module, which need not be there before the first request.

    `gpus` are the indices of the GPUs that will measure, None for all of this machine. Where there seem to be GPUs
    their processes start now; what is not there after all is told to who asks. Close it, or use a `with`.
    """

    def __init__(self, variant: Any, module_path: Path, gpus: Sequence[int] | None = (0,)) -> None:
        self._arguments = (str(Path(module_path).resolve()), variant)
        seen = gpus_in_sight()
        self.compilers = compilers(variant, module_path, None if gpus is None else max(1, len(gpus)))
        self._benches = {index: self._bench(index) for index in (range(seen) if gpus is None else gpus)}
        for bench in self._benches.values() if seen else ():
            bench.start()

    def _bench(self, index: int) -> Worker:
        return Worker("flashgen.tuning.measure:KernelBench", *self._arguments, index)

    def bench(self, index: int) -> Worker:
        """What times and proves kernels on this GPU."""
        return self._benches.setdefault(index, self._bench(index))

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        self.compilers.close()
        for bench in self._benches.values():
            bench.close()
