"""Kill a build, or a search with its records, at random moments, and look at what is left: `python tests/kills.py`.

    python tests/kills.py [--count N] [--seed S] [--signal KILL|INT|TERM] [--only build|search]

After each kill no process of it runs, and each file that it was to write is whole or not there; the next run goes on
from there. Exit status 1 where that is not so.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = "FLASHGEN_KILLED"
# How long a killed process's children may go on, in seconds.
GRACE = 0.5
SPEC = "name: tiny\ncausal: true\nhead_dim: 16\ndtype: float32\n"
BUILD = """
    import sys
    from flashgen.cli import main
    sys.argv = ["flashgen", "build", "tiny.yaml", "--target", "sm_90"]
    main()
"""
# A search whose measurements are a worker's, and a record of what was best so far after each of them.
SEARCH = """
    import sys
    from dataclasses import replace
    from itertools import product
    from pathlib import Path
    from flashgen.runtime.config import Config
    from flashgen.runtime.records import Bucket, Key, Record
    from flashgen.tuning.cache import write_record
    from flashgen.tuning.pool import CompilePool
    from flashgen.tuning.study import search
    from flashgen.tuning.worker import Worker
    SPACE = [Config(*values) for values in product((32, 64, 128, 256), (32, 64, 128), (4, 8), (1, 2, 3, 4))]
    KEY = Key("NVIDIA H200", "sm_90", "3.6", "tiny", "forward", "float32", 16, 16, Bucket(1, 1, 64, 64), "spec", "text")
    FACTORY = "fake_bench:make"
    with Worker(FACTORY) as bench, CompilePool(FACTORY, "good day", processes=1) as pool:
        pool.begin(["hang"])
        def record(trial):
            text = replace(KEY, bucket=Bucket(1, 1, trial.config.BM, trial.config.BN))
            write_record(Record(text, trial.config, trial.timing.median_us, 0.0, 1), replace=True)
        search(SPACE, [lambda config, best: bench.ask(config, 30)], place=Path("study.log"), watch=record)
    print("done")
"""


@dataclass(frozen=True)
class Victim:
    """What is killed: its code, how many seconds it takes at most, and what is wrong with a folder it was killed in."""

    code: str
    seconds: float
    look: Callable[[Path], Iterator[str]]


def look_at_build(folder: Path) -> Iterator[str]:
    from packages import files_of

    from flashgen.codegen import render
    from flashgen.spec import load

    package = folder / "generated" / "tiny"
    if package.exists():
        expected = {
            name: text.replace(str(folder / "tiny.yaml"), "tiny.yaml")
            for name, text in render(load(folder / "tiny.yaml")).items()
        }
        if files_of(package) != expected:
            yield f"{package} is not what is rendered"


def look_at_search(folder: Path) -> Iterator[str]:
    from flashgen.runtime.record_table import parse

    for path in (folder / "cache").rglob("*.json"):
        try:
            parse(path.read_text())
        except ValueError as error:
            yield f"{path} is not whole: {error}"
    yield from (f"{path} was set aside" for path in (folder / "cache").rglob("*.damaged"))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SEARCH)], cwd=folder, env=environment(folder, ""), timeout=120,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.stdout != "done\n":
        yield f"the search does not go on: {done.stderr[-500:]}"


VICTIMS = {
    "build": Victim(textwrap.dedent(BUILD), 16.0, look_at_build),
    "search": Victim(textwrap.dedent(SEARCH), 8.0, look_at_search),
}


def environment(folder: Path, mark: str) -> dict[str, str]:
    """What a victim runs in; its children have the mark too."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "tuning")])
    own = {"PYTHONPATH": path, "FLASHGEN_CACHE_DIR": str(folder / "cache"), MARK: mark, "TMPDIR": str(folder)}
    return {**os.environ, **own}


def kill_once(
    name: str, after: float, number: signal.Signals, known: Callable[[int], None] = lambda _: None
) -> list[str]:  # fmt: skip
    """Kill one that has run for so many seconds; what was wrong then."""
    victim, mark = VICTIMS[name], uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "tiny.yaml").write_text(SPEC)
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-c", victim.code], cwd=folder, env=environment(folder, mark), stdout=said,
                stderr=said, start_new_session=True,
            )  # fmt: skip
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            known(len(running(mark)))
        # Ctrl-C reaches all that run in a terminal; a kill one process.
        if process.poll() is None:
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        wrong = []
        try:
            process.wait(GRACE if number == signal.SIGKILL else 30)
        except subprocess.TimeoutExpired:
            wrong.append(f"it still runs after {number.name}")
            process.kill()
            process.wait()
        time.sleep(GRACE)
        wrong += [f"{line} still runs" for line in running(mark)]
        return wrong + list(victim.look(folder))


def running(mark: str) -> list[str]:
    """The command lines of processes with this mark."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and f"{MARK}={mark}\0".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200])
        except OSError:
            continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/kills.py", description=__doc__.split(":", 1)[0])
    parser.add_argument("--count", type=int, default=60, metavar="N", help="kills in all")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the moments")
    parser.add_argument("--signal", choices=("KILL", "INT", "TERM"), default="KILL")
    parser.add_argument("--only", choices=VICTIMS)
    chosen = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    draw, failed = random.Random(chosen.seed), 0
    names = [chosen.only] if chosen.only else list(VICTIMS)
    for place in range(chosen.count):
        name = names[place % len(names)]
        after = draw.uniform(0.0, VICTIMS[name].seconds)
        seen: list[int] = []
        wrong = kill_once(name, after, signal.Signals[f"SIG{chosen.signal}"], seen.append)
        failed += bool(wrong)
        processes = f"{seen[0]} processes" if seen else "done before"
        print(
            f"{place + 1}: {name} after {after:.2f} s, {processes}: {'; '.join(wrong) or 'nothing wrong'}", flush=True
        )
    print(f"{chosen.count - failed} of {chosen.count} left nothing behind")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
