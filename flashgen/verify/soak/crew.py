"""Cases tried in processes of their own, which may crash, hang or spoil their GPU's context."""

from __future__ import annotations

import os
import queue
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flashgen.tuning.nursery import Nursery
from flashgen.tuning.worker import RequestFailed, Worker
from flashgen.verify.soak.case import Case, as_dict, from_dict, from_yaml, to_yaml
from flashgen.verify.soak.draw import draw
from flashgen.verify.soak.rows import Row, source_digest
from flashgen.verify.soak.shrink import shrunk

# What a process answers with.
ANSWERER = "flashgen.verify.soak.crew:answerer"
# Draws of one index before it is given up: some formulas have no finite answer, some masks hide nearly all.
DRAWS = 30
# A process leaves modules behind, one for each case.
CASES_A_PROCESS = 150
# What making one failure small may take.
SHRINK_SECONDS = 90.0
# What torch, cuBLAS and Triton say of a GPU that is full.
_OUT_OF_MEMORY = re.compile("out of memory|ALLOC_FAILED")

Item = TypeVar("Item")


def answerer(device: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The worker's side: tries one case after another. `spoiled`: the GPU's context is of no use any more."""
    import torch

    from flashgen.verify.soak.trial import attempt

    torch.set_num_threads(1)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        # Here, since a process that has begun to use a GPU cannot be forked.
        if device == "cuda" and not torch.cuda.is_initialized():
            # Forked processes have no number of their own; as many as share the GPUs, chance spreads well enough.
            torch.cuda.set_device(random.SystemRandom().randrange(torch.cuda.device_count()))
        finding = attempt(from_dict(request["case"]), device, request["lenient"]).finding
        found = {"kind": finding.kind, "detail": finding.detail, "share": finding.share}
        return found | {"spoiled": device == "cuda" and _is_spoiled()}

    return answer


def _is_spoiled() -> bool:
    """Whether the GPU refuses everything after an error; if not, what the case allocated is given back."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return True
    return False


def nursery(device: str) -> Nursery:
    """What forks the processes of a soak: each would otherwise import torch again."""
    variables = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
    return Nursery(ANSWERER, device, variables={"OMP_NUM_THREADS": "1"} | variables)


@dataclass
class Trier:
    """One process at a time, and what it says of cases. Not for several threads."""

    device: str
    limit: float
    nursery: Nursery
    _worker: Worker | None = None
    _asked: int = 0

    def __call__(self, case: Case, lenient: bool = False) -> dict[str, Any]:
        """What was found, as `trial.Finding` has it; "crashed" or "timed out" where the process did not survive."""
        if self._worker is None or self._asked >= CASES_A_PROCESS:
            self.close()
            self._worker, self._asked = Worker(ANSWERER, self.device, nursery=self.nursery), 0
        self._asked += 1
        try:
            found: dict[str, Any] = self._worker.ask({"case": as_dict(case), "lenient": lenient}, self.limit)
        except RequestFailed as failure:
            return {"kind": failure.reason, "detail": failure.detail, "share": 0.0}
        if found.get("spoiled"):
            # Whatever a kernel did to the context, the next case has another.
            self.close()
        return found

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None


@dataclass(frozen=True)
class Soak:
    """Indices of one seed, tried by so many processes; each case has at most `limit` seconds, and at most so many
    `steps` to be made small once all have been tried."""

    seed: int
    device: str
    jobs: int
    limit: float
    steps: int

    def of(self, indices: Iterable[int], time_is_up: Callable[[], bool] = lambda: False) -> Iterator[Row | None]:
        """A row for each index, as they come; None for one that would have begun when time was up.

        What ran out of memory or of time beside others is tried again when they are done, alone. Where there is no time
        left for that, what was found first stands.
        """
        crowded = []
        for row in self._rows(list(indices), time_is_up):
            if row is not None and self.jobs > 1 and _is_crowded(row):
                crowded.append(row)
            else:
                yield row
        again = replace(self, jobs=1)._rows([row.index for row in crowded], time_is_up)
        for first, row in zip(crowded, again, strict=True):
            yield row or first

    def _rows(self, indices: Sequence[int], time_is_up: Callable[[], bool]) -> Iterator[Row | None]:
        return self._spread(indices, lambda index, trier: None if time_is_up() else self.row(index, trier))

    def made_small(self, rows: Sequence[Row], time_is_up: Callable[[], bool] = lambda: False) -> Iterator[Row]:
        """The rows of failures, as they come, each with its case as small as it gets while there is time."""
        if not self.steps:
            return iter(rows)
        return self._spread(rows, lambda row, trier: replace(row, small=self.small(row, trier, time_is_up)))

    def _spread(self, items: Sequence[Item], work: Callable[[Item, Trier], Any]) -> Iterator[Any]:
        """What comes of each, in any order. A process serves as many as it survives."""
        waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
        for item in items:
            waiting.put(item)
        answers = queue.SimpleQueue[Any]()
        mother = nursery(self.device)

        def serve() -> None:
            trier = Trier(self.device, self.limit, mother)
            try:
                while True:
                    answers.put(work(waiting.get_nowait(), trier))
            except queue.Empty:
                return
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                answers.put(error)
            finally:
                trier.close()

        for _ in range(min(self.jobs, len(items))):
            threading.Thread(target=serve, daemon=True).start()
        try:
            for _ in items:
                answer = answers.get()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            mother.close()

    def row(self, index: int, trier: Trier) -> Row:
        """Draw and try one index until something can be said of it."""
        start = time.monotonic()
        for attempt in range(DRAWS):
            case = draw(self.seed, index, attempt, large=self.device != "cpu")
            found = trier(case)
            if found["kind"] != "void":
                break
        return Row(
            self.seed, index, self.device, attempt, found["kind"], found["detail"], found["share"],
            time.monotonic() - start, case.digest, source_digest(), "" if found["kind"] == "passed" else to_yaml(case),
        )  # fmt: skip

    def small(self, row: Row, trier: Trier, time_is_up: Callable[[], bool] = lambda: False) -> str:
        """The case of a row made small. A hang is not waited for again and again: such a case stays as it is."""
        if row.kind in ("timed out", "void"):
            return row.small
        end = time.monotonic() + SHRINK_SECONDS

        def signature(smaller: Case) -> str:
            return "" if time_is_up() or time.monotonic() > end else _of(trier(smaller, lenient=True))

        return to_yaml(shrunk(from_yaml(row.small), _signature(row.kind, row.detail), signature, self.steps))


def _is_crowded(row: Row) -> bool:
    """Whether others may be to blame: the memory of a GPU is shared, and compilers share the CPU's time."""
    return row.kind == "timed out" or _OUT_OF_MEMORY.search(row.detail) is not None


def _of(found: dict[str, Any]) -> str:
    return _signature(found["kind"], found["detail"])


def _signature(kind: str, detail: str) -> str:
    """What two failures of the same kind have in common: of messages the words, not names, numbers or places."""
    if kind not in ("refused", "error"):
        return kind
    return f"{kind} {re.sub(r'[0-9]+|[^ ]*[.][^ ]*|.[^ ]*_[^ ]*', '', detail)[:60]}"


def default_jobs() -> int:
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
