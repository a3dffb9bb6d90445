"""Measure the tables in data/ again: `python tests/tuning/measure_tables.py [GPU...]`, some minutes on an H200.

Each table is the whole space of one workload, what compilation judges hopeless included. A variant is measured on one
GPU; several GPUs take variants in turn.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

DATA = Path(__file__).with_name("data")

# By variant, those that take longest first: batch, heads, length and head_dim of its workloads.
WORKLOADS = {
    "softcap": [(2, 32, 8192, 64)],
    "causal": [(2, 16, 8192, 128), (8, 16, 2048, 128)],
    "alibi": [(2, 16, 8192, 128)],
    "block_sparse": [(2, 16, 8192, 128)],
    "document": [(2, 16, 8192, 128)],
}


def measure(variant: str, gpu: str) -> int:
    """Measure a variant's tables on one GPU; return the command's exit status."""
    shapes = [f"--shape=batch={b},heads={h},q_len={n},head_dim={d}" for b, h, n, d in WORKLOADS[variant]]
    what = [variant, *shapes, "--kernel=forward", "--dtype=bfloat16", "--exhaustive", "--force", f"--table={DATA}"]
    command = [sys.executable, "-m", "flashgen", "tune", *what]
    return subprocess.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu}, check=False).returncode


def main(gpus: list[str]) -> int:
    """Measure all of them; return 0 where every command did."""
    free: SimpleQueue[str] = SimpleQueue()
    for gpu in gpus:
        free.put(gpu)

    def one(variant: str) -> int:
        gpu = free.get()
        try:
            return measure(variant, gpu)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(len(gpus)) as pool:
        return max(pool.map(one, WORKLOADS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["0"]))
