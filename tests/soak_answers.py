"""Stands in for the process that tries cases: does what a case's description says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any


def answerer(device: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        what = request["case"]["spec"].get("description")
        if what == "crash":
            os._exit(3)
        if what == "hang":
            time.sleep(60)
        if "SOAK_ANSWERS_SLOW" in os.environ and _is_first(os.environ["SOAK_ANSWERS_SLOW"]):
            # As beside others that compile.
            time.sleep(60)
        if "SOAK_ANSWERS_LOG" in os.environ:
            with open(os.environ["SOAK_ANSWERS_LOG"], "a") as log:
                log.write(f"{os.getpid()} {request['lenient']}\n")
        failing = "SOAK_ANSWERS_FAIL" in os.environ
        return {"kind": "out" if failing else "passed", "detail": "on purpose" if failing else "", "share": 0.1}

    return answer


def _is_first(path: str) -> bool:
    try:
        open(path, "x").close()
    except FileExistsError:
        return False
    return True
