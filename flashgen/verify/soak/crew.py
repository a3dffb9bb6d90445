"""Cases tried in processes of their own, which may crash, hang or spoil their GPU's context."""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flashgen.tuning.worker import RequestFailed, Worker
from flashgen.verify.soak.case import Case, as_dict, from_dict, to_yaml
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


def answerer(device: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The worker's side: tries one case after another."""
    import torch

    from flashgen.verify.soak.trial import attempt

    torch.set_num_threads(1)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        tried = attempt(from_dict(request["case"]), device, request["lenient"])
        return {"kind": tried.finding.kind, "detail": tried.finding.detail, "share": tried.finding.share}

    return answer


@dataclass
class Trier:
    """One process at a time, and what it says of cases. Not for several threads."""

    device: str
    limit: float
    _worker: Worker | None = None
    _asked: int = 0

    def __call__(self, case: Case, lenient: bool = False) -> dict[str, Any]:
        """What was found, as `trial.Finding` has it; "crashed" or "timed out" where the process did not survive."""
        if self._worker is None or self._asked >= CASES_A_PROCESS:
            self.close()
            variables = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} if self.device == "cpu" else {}
            self._worker, self._asked = Worker(ANSWERER, self.device, variables=variables), 0
        self._asked += 1
        try:
            found: dict[str, Any] = self._worker.ask({"case": as_dict(case), "lenient": lenient}, self.limit)
        except RequestFailed as failure:
            return {"kind": failure.reason, "detail": failure.detail, "share": 0.0}
        if found["kind"] == "error" and self.device != "cpu":
            # Whatever a kernel did to the context, the next case has another.
            self.close()
        return found

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None


@dataclass(frozen=True)
class Soak:
    """Indices of one seed, tried by so many processes; each case has at most `limit` seconds. 0 `steps`: failures
    stay as they were drawn."""

    seed: int
    device: str
    jobs: int
    limit: float
    steps: int

    def of(self, indices: Iterable[int], time_is_up: Callable[[], bool] = lambda: False) -> Iterator[Row | None]:
        """A row for each index, as they come; None for one that would have begun when time was up."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in indices:
            waiting.put(index)
        count, answers = waiting.qsize(), queue.SimpleQueue[Any]()

        def serve() -> None:
            trier = Trier(self.device, self.limit)
            try:
                while True:
                    index = waiting.get_nowait()
                    answers.put(None if time_is_up() else self.row(index, trier, time_is_up))
            except queue.Empty:
                return
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                answers.put(error)
            finally:
                trier.close()

        for _ in range(min(self.jobs, count)):
            threading.Thread(target=serve, daemon=True).start()
        for _ in range(count):
            answer = answers.get()
            if isinstance(answer, BaseException):
                raise answer
            yield answer

    def row(self, index: int, trier: Trier, time_is_up: Callable[[], bool] = lambda: False) -> Row:
        """Draw and try one index until something can be said of it; make it small where it fails."""
        start = time.monotonic()
        for attempt in range(DRAWS):
            case = draw(self.seed, index, attempt, large=self.device != "cpu")
            found = trier(case)
            if found["kind"] != "void":
                break
        small = ""
        if found["kind"] != "passed":
            small = to_yaml(self.small(case, found, trier, time_is_up))
        return Row(
            self.seed, index, self.device, attempt, found["kind"], found["detail"], found["share"],
            time.monotonic() - start, case.digest, source_digest(), small,
        )  # fmt: skip

    def small(self, case: Case, found: dict[str, Any], trier: Trier, time_is_up: Callable[[], bool]) -> Case:
        """A hang is not waited for again and again: such a case stays as it is."""
        if found["kind"] == "timed out":
            return case
        end = time.monotonic() + SHRINK_SECONDS

        def signature(smaller: Case) -> str:
            return "" if time_is_up() or time.monotonic() > end else _signature(trier(smaller, lenient=True))

        return shrunk(case, _signature(found), signature, self.steps)


def _signature(found: dict[str, Any]) -> str:
    """What two failures of the same kind have in common: of messages the words, not names, numbers or places."""
    if found["kind"] not in ("refused", "error"):
        return str(found["kind"])
    return f"{found['kind']} {re.sub(r'[0-9]+|[^ ]*[.][^ ]*|.[^ ]*_[^ ]*', '', found['detail'])[:60]}"


def default_jobs() -> int:
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
