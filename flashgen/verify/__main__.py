"""The child process of `flashgen.verify.isolated`."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

from flashgen.codegen import load_module
from flashgen.verify.run import run_cases


def main() -> None:
    # Whatever a library prints must not end up in the report.
    answers, sys.stdout = sys.stdout, sys.stderr
    job = pickle.loads(sys.stdin.buffer.read())
    module = load_module(Path(sys.argv[1]))
    report = run_cases(module, job.variant, job.cases, level=job.level, device="cpu", seconds=job.seconds)
    json.dump(report.as_dict(), answers)


if __name__ == "__main__":
    main()
