"""Measure the tables in data/ again: `python tests/tuning/measure_tables.py --gpus 0,1`, two minutes on two H200.

Each table is the whole space of one workload, what compilation judges hopeless included. With `--agree` the default
search is run instead, in a cache of its own, and compared with the tables: are its winners within 2 % of the best?
A variant is measured on one GPU; several GPUs take variants in turn.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from flashgen.tuning import agreement

DATA = Path(__file__).with_name("data")

# By variant, those that take longest first: batch, heads, length and head_dim of its workloads.
WORKLOADS = {
    "softcap": [(2, 32, 8192, 64)],
    "causal": [(2, 16, 8192, 128), (8, 16, 2048, 128)],
    "alibi": [(2, 16, 8192, 128)],
    "block_sparse": [(2, 16, 8192, 128)],
    "document": [(2, 16, 8192, 128)],
}


def tune_all(gpus: Sequence[str], options: Sequence[str], environment: Mapping[str, str] = {}) -> int:
    """`flashgen tune` for the workloads of each variant; return 0 where every command did."""
    free: SimpleQueue[str] = SimpleQueue()
    for gpu in gpus:
        free.put(gpu)

    def one(variant: str) -> int:
        shapes = [f"--shape=batch={b},heads={h},q_len={n},head_dim={d}" for b, h, n, d in WORKLOADS[variant]]
        command = [sys.executable, "-m", "flashgen", "tune", variant, "--kernel=forward", "--dtype=bfloat16", *shapes]
        gpu = free.get()
        try:
            here = {**os.environ, **environment, "CUDA_VISIBLE_DEVICES": gpu}
            return subprocess.run([*command, *options], env=here, check=False).returncode
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(len(gpus)) as pool:
        return max(pool.map(one, WORKLOADS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", default="0", help="their indices")
    parser.add_argument("--agree", action="store_true", help="compare the default search with the tables")
    parser.add_argument("--seed", default="7", help="of that search")
    given = parser.parse_args()
    gpus = given.gpus.split(",")
    if not given.agree:
        return tune_all(gpus, ["--exhaustive", "--force", f"--table={DATA}"])
    with tempfile.TemporaryDirectory() as cache:
        # Where the search finds no record, of the user's or shipped.
        apart = [f"--out={Path(cache, 'generated')}", f"--seed={given.seed}"]
        failed = tune_all(gpus, apart, {"FLASHGEN_CACHE_DIR": cache})
        return failed or agreement.main([str(DATA), str(Path(cache, "tuned"))])


if __name__ == "__main__":
    sys.exit(main())
